"""`--processes N`: the same command under torchrun, and its outcome brought back.

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
from pathlib import Path
from typing import Annotated, Any

import typer

from graphcl.cli._shared.interrupts import handled
from graphcl.distributed import launched
from graphcl.errors import require

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
    require(processes >= 1, "graphcl", "--processes", "at least 1", processes)
    if processes == 1 or launched():
        return
    with tempfile.TemporaryDirectory(prefix="graphcl-") as folder:
        raise typer.Exit(_run(processes, Path(folder)))


def _run(processes: int, folder: Path) -> int:
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    defaults = {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(processes), "--max-restarts", str(MAX_RESTARTS)),
        *("-m", "graphcl", *sys.argv[1:]),
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
    if not (folder and launched()):
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
    if not (folder and launched()):
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
