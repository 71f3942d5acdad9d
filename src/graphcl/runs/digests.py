"""Checksums of the files of a run, in `digests.json`, by which damage is told.

They are written when a run or a version appears. Its graph is a store, which has its own checksums.
What is added later, such as answers and pages, has none. Embeddings are compared with theirs
whenever they are read whole, all files by ``graphcl check RUN``. Checksums protect against
accidents: whoever can change a file can change its checksum, too.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from graphcl.errors import RunError
from graphcl.files.atomic import write_whole
from graphcl.files.patched import table_files
from graphcl.files.text import read_text

DIGESTS = "digests.json"
BYTES = 1 << 24  # a hundred thousand files
_LEVELS = 2  # of folders between a run and the embeddings of a type: ``RUN/types/0-author``
_compared = set[tuple[int, ...]]()  # files that this process has compared already


def write_digests(run: Path, left_out: tuple[str, ...] = (), before: Path | None = None) -> None:
    """Writes the checksums of all files into the folder of a run that is complete.

    Args:
        run: the folder.
        left_out: folders in it that are left out.
        before: a run or a version with which it may share files; these are not read again.
    """
    known = {}
    for name, digest in read_digests(before).items() if before is not None else ():
        file = Path(str(before), name)
        if file.is_file():
            known[_inode(file)] = digest
    found = {}
    for file in _files(run, left_out):
        found[file.relative_to(run).as_posix()] = known.get(_inode(file)) or _digest(file)
    write_whole(run / DIGESTS, json.dumps(found, indent=1) + "\n")


def add_digests(run: Path, files: list[Path]) -> None:
    """Writes the checksums of files that were added to a run, beside those of the others."""
    added = {file.relative_to(run).as_posix(): _digest(file) for file in files}
    write_whole(run / DIGESTS, json.dumps(read_digests(run) | added, indent=1) + "\n")


def read_digests(run: Path) -> dict[str, str]:
    """Returns the checksums of a run's files, by their paths in it; none where it has none.

    Raises:
        RunError: the file is damaged.
    """
    path = run / DIGESTS
    if not path.is_file():
        return {}
    try:
        found = json.loads(read_text(path, RunError, limit=BYTES))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: damaged ({error})") from None
    known = isinstance(found, dict) and all(isinstance(one, str) for one in found.values())
    if not known or any(Path(name).is_absolute() or ".." in Path(name).parts for name in found):
        raise RunError(f"{path}: damaged; it should hold the checksums of files of the run")
    return dict(found)


def check_files(run: Path, on_file: Callable[[str, int], None] = lambda *_: None) -> None:
    """Compares all files of a run that have a checksum.

    Args:
        run: the run, or the folder of a version.
        on_file: is called after each file with its path in the run and its size in bytes.

    Raises:
        RunError: a file is missing, or differs from what was written.
    """
    for name, digest in read_digests(run).items():
        compare(run / name, digest)
        on_file(name, (run / name).stat().st_size)


def check_table(folder: Path, name: str) -> None:
    """Compares the files of a table of a run, such as its embeddings, once in a process.

    Args:
        folder: of the run, or of a type in it.
        name: of the table.

    Raises:
        RunError: a file differs from what was written.
    """
    run = folder
    for _ in range(_LEVELS):
        if not (run / DIGESTS).is_file():
            run = run.parent
    known = read_digests(run)
    for file in table_files(folder, name):
        digest = known.get(file.relative_to(run).as_posix())
        identity = _identity(file)
        if digest is not None and identity not in _compared:
            compare(file, digest)
            _compared.add(identity)


def compare(file: Path, digest: str) -> None:
    """Compares a file with its checksum.

    Raises:
        RunError: it is missing, or differs from what was written.
    """
    try:
        same = _digest(file) == digest
    except OSError as error:
        raise RunError(f"{file}: cannot be read ({error.strerror})") from None
    if not same:
        raise RunError(
            f"{file}: altered or damaged (its checksum differs); copy the run from a backup, or "
            "train again"
        )


def _digest(file: Path) -> str:
    from graphcl.store.reader import file_digest  # imports SciPy, which a run's words do not need

    return file_digest(file)


def _files(run: Path, left_out: tuple[str, ...]) -> Iterator[Path]:
    for folder, names, files in os.walk(run):
        if Path(folder) == run:
            names[:] = [name for name in names if name not in left_out]
        names.sort()
        yield from (Path(folder, name) for name in sorted(files) if name != DIGESTS)


def _inode(file: Path) -> tuple[int, int]:
    about = file.stat()
    return about.st_dev, about.st_ino


def _identity(file: Path) -> tuple[int, ...]:
    about: Any = file.stat()
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
