"""The unfinished run: `RUN.partial`, beside the run that it will become.

While a run is trained, its checkpoints, TensorBoard's curves and the trials of the recipe ``auto``
lie there, and the finished run is put together there. One process holds it at a time.
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graphcl.errors import RunError
from graphcl.runs.files import LOGS

LOCK = ".lock"
CHOOSING = "choosing"  # trials of the recipe ``auto``, and the one under way


def partial_folder(path: Path) -> Path:
    """Returns where the unfinished training of a run lies: beside it."""
    return path.with_name(f"{path.name}.partial")


@contextmanager
def unfinished_run(path: Path, *, overwrite: bool = False, resume: bool = False) -> Iterator[Path]:
    """Yields the folder of an unfinished run, empty or to be resumed.

    The folder is removed when the block ends. If the block raises, a folder with checkpoints
    stays. Files that a training did not write are never touched. Only one process at a time can
    hold the folder: a lock ensures it, and the lock ends with the process, even by `kill -9`.

    Raises:
        RunError: an unfinished training is there and is neither resumed nor overwritten, or
            another process is at work on it.
    """
    folder = partial_folder(path)
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder}: is a file; checkpoints need a directory of that name")
    if folder.exists() and not (overwrite or resume or _is_idle(folder)):
        raise RunError(
            f"{folder}: holds an unfinished training; go on with --resume, "
            "or begin anew with --overwrite"
        )
    made = [above for above in folder.parents if not above.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{folder}: another process is training this run") from None
        for entry in _own_entries(folder, path):
            kept = entry.name.startswith("checkpoint-") or entry.name in (*LOGS, CHOOSING)
            if entry.name != LOCK and not (resume and kept):
                shutil.rmtree(entry, ignore_errors=True)  # of a process that died while writing
        try:
            yield folder
        except BaseException:
            if _is_idle(folder):
                _tidy(folder, path)
                with suppress(OSError):  # not empty: somebody else's
                    for above in made:
                        above.rmdir()
            raise
        _tidy(folder, path)


def _own_entries(folder: Path, path: Path) -> list[Path]:
    """Returns what a training of `path` has left in its folder."""
    named = ("checkpoint-", ".checkpoint-", f".{path.name}.")
    return [
        entry
        for entry in folder.iterdir()
        if entry.name.startswith(named) or entry.name in (LOCK, *LOGS, CHOOSING)
    ]


def _tidy(folder: Path, path: Path) -> None:
    """Removes what is a training's, and the folder where nothing else is in it."""
    for entry in _own_entries(folder, path):
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    with suppress(OSError):
        folder.rmdir()


def _is_idle(folder: Path) -> bool:
    """Says whether nothing in an unfinished run is worth keeping."""
    return not (any(folder.glob("checkpoint-*")) or (folder / CHOOSING).exists())
