"""A command's processes: how one ends, and `--processes N`, the same command under torchrun.

Of Ctrl-C and SIGTERM, the first asks a process to end and the second insists.

torchrun starts N workers and starts them all again when one dies; a training then goes on from its
checkpoint. It takes any exit code but 0 for a death. A worker that ends on purpose, with bad input
or because it was asked to stop, therefore leaves its code in a file and exits 0.

When a worker dies, torchrun stops the others by SIGTERM before it starts all again. That is no end
on purpose: the launcher leaves a mark when somebody asked *it* to stop, and only then is a worker
that a signal stopped done.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Never

import typer

from graphcl.errors import RunError


class Interrupts:
    """Whether the user, or whoever runs this machine, has asked the process to stop.

    Attributes:
        asked: whether a first signal came while `patient`.
        patient: whether to wait for the next step's end; else a signal stops the process at once.
    """

    def __init__(self) -> None:
        self.asked = False
        self.patient = False

    def __call__(self) -> bool:
        """Returns `asked`."""
        return self.asked

    def receive(self, _number: int, _frame: Any) -> None:
        """Takes a signal."""
        if self.asked or not self.patient:
            raise KeyboardInterrupt
        self.asked = True
        # Not by `sys.stderr`: the signal may have come in the middle of a line that it writes.
        os.write(2, b"\nsaving after this step; Ctrl-C again stops now\n")


class Ending:
    """How the process ends when its command is done.

    Attributes:
        at_once: whether the interpreter's shutdown is skipped. It ends the threads of some
            libraries in no fixed order, and aborts where one is still computing.
    """

    at_once = False


def end(code: int) -> Never:
    """Ends the process."""
    if not Ending.at_once:
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Yields the process's interrupts, SIGINT and SIGTERM alike, for as long as the block lasts."""
    taken = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield taken  # Python delivers signals to the main thread alone
        return
    with handled(taken.receive):
        yield taken


@contextmanager
def handled(receive: Callable[[int, Any], None]) -> Iterator[None]:
    """Sends SIGINT and SIGTERM to `receive` for as long as the block lasts."""
    signals = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.signal(one, receive) for one in signals]
    try:
        yield
    finally:
        for one, handler in zip(signals, previous, strict=True):
            signal.signal(one, handler)


@contextmanager
def continues(command: str, kept: str, path: Path) -> Iterator[None]:
    """If the block is interrupted, says which file has its results, and exits with 130."""
    try:
        yield
    except KeyboardInterrupt:
        text = f"graphcl {command}: interrupted; finished {kept} are in {path}"
        print(f"{text}; the same command continues from there", file=sys.stderr)
        raise typer.Exit(130) from None


def check_several(name: str, count: int) -> None:
    """Refuses several processes where the system has no `fork` and no signals to end them by.

    Raises:
        RunError: it has not, as Windows.
    """
    if count > 1 and not (hasattr(os, "fork") and hasattr(signal, "SIGKILL")):
        raise RunError(
            f"{name} {count}: this system ({sys.platform}) cannot fork a process or stop it by a "
            f"signal; leave {name} out: one process works"
        )


ProcessesOption = Annotated[
    int, typer.Option(min=1, help="Processes on this machine; torchrun starts and restarts them.")
]
MAX_RESTARTS = 3
_FOLDER = "GRAPHCL_LAUNCH"  # names the folder that launcher and workers share
_ASKED = "asked"  # a file there: somebody asked the launcher to stop
_INTERRUPTED = 130
_ON_PURPOSE = (2, _INTERRUPTED)


def launch(processes: int) -> None:
    """Runs this process's own command in `processes` workers and exits with their outcome.

    Does nothing where one process is asked for, or in a worker.
    """
    if processes == 1 or under_torchrun():
        return
    check_several("--processes", processes)
    with tempfile.TemporaryDirectory(prefix="graphcl-") as folder:
        raise typer.Exit(_run(processes, Path(folder)))


def _run(processes: int, folder: Path) -> int:
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    defaults = {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(processes), "--max-restarts", str(MAX_RESTARTS)),
        # After --, torchrun takes no option for one of its own: --log would be its --log-dir.
        *("-m", "--", "graphcl", *sys.argv[1:]),
    ]
    # A session of its own: torchrun would meet Ctrl-C by killing workers that are about to save.
    agent = subprocess.Popen(
        command, env=defaults | os.environ | {_FOLDER: str(folder)}, start_new_session=True
    )

    def forward(_number: int, _frame: Any) -> None:
        (folder / _ASKED).touch()
        for path in folder.glob("pid-*"):
            try:
                os.kill(int(path.read_text()), signal.SIGTERM)
            except (ProcessLookupError, ValueError):
                continue

    try:
        with handled(forward):
            code = agent.wait()
    finally:
        if agent.poll() is None:
            agent.terminate()
    if code and (folder / _ASKED).exists():
        return _outcome(folder) or _INTERRUPTED
    return _outcome(folder) or (1 if code else 0)


def announce() -> bool:
    """Tells the launcher of this worker; False where another has ended the command already."""
    folder = os.environ.get(_FOLDER)
    if not (folder and under_torchrun()):
        return True
    if (Path(folder) / _ASKED).exists() and not _outcome(Path(folder)):
        (Path(folder) / "code").write_text(str(_INTERRUPTED))
    if _outcome(Path(folder)):
        return False
    (Path(folder) / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    return True


def leave(code: int) -> int:
    """Returns the code to exit with: 0 under a launcher, which is told of an end on purpose."""
    folder = os.environ.get(_FOLDER)
    if not (folder and under_torchrun()):
        return code
    (Path(folder) / f"pid-{os.environ['RANK']}").unlink(missing_ok=True)
    if code not in _ON_PURPOSE:
        return code
    if code == _INTERRUPTED and not (Path(folder) / _ASKED).exists():
        return 1  # torchrun stopped it, because another worker has died
    (Path(folder) / "code").write_text(str(code))
    return 0


def _outcome(folder: Path) -> int:
    path = folder / "code"
    return int(path.read_text() or 0) if path.exists() else 0


def under_torchrun() -> bool:
    """Returns whether torchrun, or another launcher, started this process."""
    # A copy of `graphcl.distributed.launched`, whose module imports torch.
    rendezvous = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return "TORCHELASTIC_RUN_ID" in os.environ or all(one in os.environ for one in rendezvous)
