"""Groups of processes: their members are threads, which are quick, or processes."""

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from graphcl.distributed import Share, current_share
from graphcl.training import row_parallel

PATIENCE = 60  # seconds; a member that fails would let the others wait for ever


def together(world, work):
    """Calls ``work(share)`` in one thread for each share; returns the results in order.

    Rows of a divided graph are gathered among the threads. A backward pass on a CPU runs in the
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
        patch.setattr(row_parallel, "gather_tables", gather_tables)
        return list(pool.map(member, range(world)))


def in_processes(world, work, folder, limit=240):
    """Calls ``work(share, folder)``, a function of a test's module, in a group of processes."""
    server = multiprocessing.get_context("forkserver")  # imports once for all
    server.set_forkserver_preload([work.__module__])
    arguments = [(work, rank, world, str(folder)) for rank in range(world)]
    members = [server.Process(target=_process, args=one) for one in arguments]
    for one in members:
        one.start()
    for one in members:
        one.join(limit)
        assert one.exitcode == 0


def _process(work, rank, world, folder):
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meet-{work.__module__}-{world}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    work(current_share(), Path(folder))
    dist.destroy_process_group()


def same_figures(found, expected, about):
    """Compares what a process's training left with that of one process, up to rounding."""
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=0, atol=1e-5)
    for name, value in expected.items():
        scale = max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(
            found[name], value, rtol=0, atol=2e-4 * scale, err_msg=f"{about} {name}"
        )
