"""Commands without what only Unix has: ``python -m tests.elsewhere FOLDER PORT``.

`leave_unix` hides modules and functions that Windows lacks, and keeps some of its laws: a folder
cannot be opened, and nothing that is open or mapped can be renamed or removed. What this package
asks of `/proc` is not there. `sys.platform` stays: libraries read it, and they are those of Linux.
"""

import importlib
import json
import mmap
import os
import select
import shutil
import signal
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

MISSING = {
    os: ("fork", "posix_fallocate", "sched_getaffinity", "sysconf", "O_NOFOLLOW", "O_NONBLOCK"),
    signal: ("SIGKILL", "SIGHUP"),
    mmap: ("MAP_PRIVATE", "MAP_ANONYMOUS", "PROT_READ", "PROT_WRITE", "MADV_RANDOM"),
}
COMMANDS = (
    "train cora --out run --set epochs=1 --set dim=8 --set layers=1 --device cpu",
    "update run --nodes nodes.csv --edges edges.csv",
    "predict run --labels labels.csv --no-rivals --out answers.csv",
    "neighbors run new -k 2",
    "embed run --out z.npy",
)
SERVE = "serve run --map none --port"
REFUSED = ("train cora --processes 2 --out other", "serve run --workers 2")


def leave_unix() -> None:
    """Hides what only Unix has, for as long as the process lasts."""
    for library in ("psutil", "torch", "numba"):  # of Linux: they need it themselves
        importlib.import_module(library)
    sys.modules |= {"fcntl": None, "resource": None}  # type: ignore[dict-item]
    for module, names in MISSING.items():
        for name in names:
            delattr(module, name)
    del sys.modules["psutil"].Process.rlimit
    for name in [name for name in sys.modules if name.partition(".")[0] == "filelock"]:
        del sys.modules[name]  # without fcntl it has other locks
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    real_exists, real_select = Path.exists, select.select

    def exists(path: Path, **options: Any) -> bool:
        return not str(path).startswith(("/proc", "/sys")) and real_exists(path, **options)

    def wait(*files: Any) -> Any:
        if any(isinstance(one, int) for several in files[:3] for one in several):
            raise OSError(10038, "not a socket")
        return real_select(*files)

    Path.exists, select.select = exists, wait  # type: ignore[method-assign, assignment]
    sys.addaudithook(refuse)


def refuse(event: str, given: tuple[Any, ...]) -> None:
    """Refuses to this package what Windows refuses."""
    if event not in ("open", "os.rename", "os.remove", "os.rmdir") or caller() != "graphcl":
        return
    paths = [str(Path(one).absolute()) for one in given[:2] if isinstance(one, str | Path)]
    if event != "open":
        used = [one for one in in_use() if f"{one}/".startswith(tuple(f"{at}/" for at in paths))]
        if used:
            raise PermissionError(13, "is in use", used[0])
    elif paths and paths[0].startswith(("/proc/", "/sys/")):
        raise FileNotFoundError(2, "no such file", paths[0])
    elif paths and Path(paths[0]).is_dir():
        raise PermissionError(13, "is a folder", paths[0])


def caller() -> str:
    """Returns the package that asks the standard library for what is done."""
    frame, name = sys._getframe(2), ""
    while frame.f_back and name in ("", "os", "pathlib", "shutil", "tempfile", "contextlib"):
        name = frame.f_globals["__name__"].partition(".")[0]
        frame = frame.f_back
    return name


def mapped() -> set[str]:
    """Returns the files that this process maps."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in maps if "/" in line}


def in_use() -> set[str]:
    """Returns the files and folders that this process has open, and the files that it maps."""
    found = mapped()
    for handle in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{handle}"))  # noqa: PTH115
    return found


def main() -> None:
    """Runs commands in a folder, serves the run on a port, and says how each command ended."""
    folder, port = sys.argv[1:]
    os.chdir(folder)
    leave_unix()
    from graphcl.cli.main import run
    from graphcl.cli.processes import end
    from graphcl.files import patched

    patched.SMALL_BYTES = 0  # Cora's tables count as large
    codes = {one: run(one.split()) for one in (*COMMANDS, *REFUSED)}
    threading.Thread(target=ask, args=[f"http://127.0.0.1:{port}/metrics"], daemon=True).start()
    codes[SERVE] = run([*SERVE.split(), port])
    Path("codes.json").write_text(json.dumps(codes))
    end(0)


def ask(address: str) -> None:
    """Waits until the service answers, keeps its figures, and asks it to stop."""
    while not Path("figures.txt").exists():
        with suppress(OSError), urllib.request.urlopen(address) as answer:
            Path("figures.txt").write_bytes(answer.read())
        time.sleep(0.1)
    signal.raise_signal(signal.SIGTERM)


if __name__ == "__main__":
    main()
