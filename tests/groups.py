"""Groups of processes: their members are threads, which are quick, or processes."""

import functools
import io
import multiprocessing
import socket
import sys
import tempfile
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from graphcl.cli.main import run
from graphcl.distributed import Share, current_share
from graphcl.training import full_graph

MOST = 4  # processes of a group
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
        patch.setattr(full_graph, "gather_tables", gather_tables)
        return list(pool.map(member, range(world)))


@functools.cache
def server():
    """What starts processes that have imported what most need. A test's process has one."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tests.preloaded", __name__])
    with pytest.MonkeyPatch.context() as patch:  # libraries read these as they are loaded
        for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
            patch.setenv(name, "1")
        forkserver.ensure_running()
    return server


@functools.cache
def _workers():
    """Processes that all tests of a run share: what they import and compile, they do once."""
    return ProcessPoolExecutor(MOST, mp_context=server())


def _at_once(world, work, *arguments, limit):
    """Calls ``work(rank, world, *arguments)`` in processes; returns their results in order."""
    calls = [_workers().submit(work, rank, world, *arguments) for rank in range(world)]
    if failed := next((one for one in as_completed(calls, limit) if one.exception()), None):
        end_workers()  # the others may wait for it for ever
        failed.result()
    return [one.result() for one in calls]


def end_workers():
    """Ends the shared processes; the next group starts others."""
    if _workers.cache_info().currsize:
        for process in _workers()._processes.values():
            process.kill()
        _workers.cache_clear()


def in_processes(world, work, folder, limit=240):
    """Calls ``work(share, folder)``, a function of a test's module, in a group of processes."""
    meeting = tempfile.mktemp(prefix="meet-", dir=folder)
    return _at_once(world, _member, work, meeting, str(folder), limit=limit)


def _member(rank, world, work, meeting, folder):
    meet = {"init_method": f"file://{meeting}", "rank": rank, "world_size": world}
    dist.init_process_group("gloo", **meet)
    try:
        return work(current_share(), Path(folder))
    finally:
        dist.destroy_process_group()


def command(*words, processes=2, limit=240):
    """Runs a command in as many processes, as torchrun would; returns what the first one said.

    Returns:
        Its exit code, and the texts on stdout and stderr.
    """
    return _at_once(processes, _command, words, str(Path.cwd()), free_port(), limit=limit)[0]


def start_members(*words, folder, processes=2):
    """Starts a command in processes of its own, to stop or to kill; stderr is in ``said-RANK``."""
    about = (processes, words, str(folder), free_port())
    members = [server().Process(target=_speak, args=(rank, *about)) for rank in range(processes)]
    for one in members:
        one.start()
    return members


def free_port():
    """A port of this machine that nothing listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _speak(rank, world, words, folder, port):
    _, _, err = _command(rank, world, words, folder, port)
    Path(folder, f"said-{rank}").write_text(err)


def _command(rank, world, words, folder, port):
    variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in (variables | {"MASTER_PORT": port, "MASTER_ADDR": "localhost"}).items():
            patch.setenv(name, str(value))
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["graphcl", *words])
        return run(list(words)), out.getvalue(), err.getvalue()


def same_figures(found, expected, about):
    """Compares what a process's training left with that of one process, up to rounding."""
    np.testing.assert_allclose(found["losses"], expected["losses"], rtol=0, atol=1e-5)
    for name, value in expected.items():
        scale = max(1.0, float(np.abs(value).max(initial=0)))
        np.testing.assert_allclose(
            found[name], value, rtol=0, atol=2e-4 * scale, err_msg=f"{about} {name}"
        )
