"""A Python that has imported torch and graphcl before it is called: each call is a fork of it.

`warm` names a program that takes ``-m module …`` and ``-c code …`` as Python does. Its processes
begin at once instead of after seconds of imports. Each has its own streams, folder, environment,
network, control group of memory, largest size of files and exit code; signals reach it, and it dies
with the program. What it starts by `sys.executable` is of the same kind. Where it matters what a
new interpreter imports or which threads its libraries have, call `sys.executable`.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import resource
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

FOLDER = "GRAPHCL_TESTS_WARM"  # a variable: all workers of a run share the program of one folder
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS"), "1")
PROGRAM = """#!{python} -IS
import json, os, resource, signal, socket, sys
if sys.argv[1:2] == ["-u"]:  # so says torchrun; what is written here is written by lines
    del sys.argv[1]
if sys.argv[1:2] not in (["-m"], ["-c"]):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
passed_on = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
peer = socket.socket(socket.AF_UNIX)
peer.connect({address!r})
largest = resource.getrlimit(resource.RLIMIT_FSIZE)
groups = open("/proc/self/cgroup").read()
about = [sys.argv[1:], os.getcwd(), dict(os.environ), largest, groups]
about = json.dumps(about).encode()
network = os.open("/proc/self/ns/net", os.O_RDONLY)
socket.send_fds(peer, [len(about).to_bytes(4, "big")], [0, 1, 2, network])
peer.sendall(about)
child = int.from_bytes(peer.recv(4), "big")
for one in passed_on:
    signal.signal(one, lambda number, _: os.kill(child, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
code = os.waitstatus_to_exitcode(int.from_bytes(peer.recv(4), "big"))
if code < 0:
    if code != -signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def warm() -> str:
    """Returns the program; the first call of a run starts what it forks."""
    start()
    return str(Path(os.environ[FOLDER]) / "python")


@cache
def start() -> None:
    """Starts the process that is forked, unless an earlier one of this run did; it ends with us."""
    if FOLDER in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    address = str(folder / "socket")
    (folder / "python").write_text(PROGRAM.format(python=sys.executable, address=address))
    (folder / "python").chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.interpreter", str(listening.fileno())],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,  # which the kernel closes when we end
            pass_fds=[listening.fileno()],
            env=os.environ | ONE_THREAD,
        )
    os.environ[FOLDER] = str(folder)
    atexit.register(end, process, folder)


def end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Ends the process that is forked."""
    process.communicate()
    shutil.rmtree(folder)


def call(listening: socket.socket) -> list[Any]:
    """Forks for each call until our parent ends; returns in a fork alone, with what it is given."""
    calls = selectors.DefaultSelector()
    calls.register(0, selectors.EVENT_READ, sys.exit)
    calls.register(listening, selectors.EVENT_READ)
    while True:
        for key, _ in calls.select():
            if key.data:
                key.data()
                continue
            peer, _ = listening.accept()
            length, (*streams, network), _, _ = socket.recv_fds(peer, 4, 4)
            about = peer.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
            if (child := os.fork()) == 0:
                calls.close()
                for one in (peer, listening):
                    one.close()
                for place, stream in enumerate(streams):
                    os.dup2(stream, place)
                    os.close(stream)
                enter(network)
                return json.loads(about)
            for one in (*streams, network):
                os.close(one)
            peer.sendall(child.to_bytes(4, "big"))
            ended = os.pidfd_open(child)
            calls.register(ended, selectors.EVENT_READ, partial(_end, calls, peer, ended, child))
            calls.register(peer, selectors.EVENT_READ, partial(_kill, calls, peer, child))


def _end(calls: selectors.BaseSelector, peer: socket.socket, ended: int, child: int) -> None:
    """Tells the program how its process ended."""
    _, status = os.waitpid(child, 0)
    calls.unregister(ended)
    os.close(ended)
    if peer in calls.get_map():
        calls.unregister(peer)
        with suppress(OSError):
            peer.sendall(status.to_bytes(4, "big"))
    peer.close()


def _kill(calls: selectors.BaseSelector, peer: socket.socket, child: int) -> None:
    """Kills the process of a program that was killed."""
    calls.unregister(peer)
    os.kill(child, signal.SIGKILL)


def enter(network: int) -> None:
    """Makes this process one of a network, unless it is one already."""
    if not os.path.sameopenfile(network, own := os.open("/proc/self/ns/net", os.O_RDONLY)):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(network, 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    for one in (network, own):
        os.close(one)


def join(groups: str) -> None:
    """Puts this process into the control group of memory that a program has."""
    for line in set(groups.splitlines()) - set(Path("/proc/self/cgroup").read_text().splitlines()):
        _, kind, name = line.split(":", 2)
        if kind in ("", "memory"):  # of version 2 and 1
            Path(f"/sys/fs/cgroup/{kind}{name}/cgroup.procs").write_text(str(os.getpid()))


def become(
    words: list[str], folder: str, variables: dict[str, str], largest: list[int], groups: str
) -> None:
    """Makes this process what a new interpreter would be, and runs what it was called for."""
    join(groups)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest[0], largest[1]))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables | ONE_THREAD)  # as the libraries were loaded
    encoding = variables.get("PYTHONIOENCODING", "utf-8")
    sys.stdin, sys.stdout, sys.stderr = (
        open(place, mode, buffering=1, encoding=encoding, closefd=False)  # noqa: SIM115
        for place, mode in enumerate(("r", "w", "w"))
    )
    sys.executable = str(Path(variables[FOLDER]) / "python")
    sys.path[:0] = [folder, *variables.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = [words[0], *words[2:]]
    if words[0] == "-m":
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102


def leave(code: int) -> NoReturn:
    """Ends as an interpreter does, except that it leaves what is loaded to the kernel."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    importlib.import_module("tests.preloaded")
    gc.freeze()  # what is loaded stays, and no fork goes through it
    given = call(socket.socket(fileno=int(sys.argv[1])))
    try:
        become(*given)
    except SystemExit as end:
        if isinstance(end.code, str):
            raise
        leave(end.code or 0)
    leave(0)
