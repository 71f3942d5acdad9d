"""A group of processes whose members are threads: quick, and all in one debugger."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from graphcl.distributed import Share
from graphcl.training import divided

PATIENCE = 60  # seconds; a member that fails would let the others wait for ever


def together(world, work):
    """Calls ``work(share)`` in one thread for each share; returns the results in order.

    Rows of a `DividedGraph` are gathered among the threads. A backward pass on a CPU runs in the
    thread that asks for it, so it may gather, too.
    """
    tables, meeting = [None] * world, threading.Barrier(world, timeout=PATIENCE)

    def gather_tables(table, share):
        tables[share.rank] = table
        meeting.wait()
        assert len({one.shape for one in tables}) == 1
        every = torch.stack(tables)
        meeting.wait()
        return every

    def member(rank):
        try:
            return work(Share(rank, world))
        except BaseException:
            meeting.abort()
            raise

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(world) as pool:
        patch.setattr(divided, "gather_tables", gather_tables)
        return list(pool.map(member, range(world)))
