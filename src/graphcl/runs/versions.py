"""Versions of a run: the graph it was trained on grows, and the run grows with it.

``RUN`` itself is version 0, as it was trained. Each update adds ``RUN/versions/N``, a whole run
with the graph of its day in ``graph``, a store. ``RUN/versions/current`` holds the number of the
version that every command uses. It is replaced by a rename, as the last step: a process that dies
before leaves the old version in use. Files that an update does not change are hard links to those
of the version before.
"""

import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from filelock import FileLock, Timeout

from graphcl.errors import RunError, StoreError, is_command, why_failed
from graphcl.files.atomic import remove_folder, whole_folder, write_whole
from graphcl.files.records import aligned
from graphcl.files.text import read_text
from graphcl.runs import files as runs

VERSIONS, CURRENT, LOCK = "versions", "current", ".lock"
KEEP = 10  # versions beside the training
GRAPH = "graph"  # the store in a version
ABOUT = "version.json"  # when it was made, from what, and by which change

Asked = TypeVar("Asked", bound=Callable[..., Any])
Mark = tuple[tuple[int, int], ...]  # see `mark_of`
NOTHING = (0, 0)  # of a file that is not there


class OwnGraphError(RunError):
    """The graph that a version keeps is damaged: nothing is answered without it."""


@dataclass(frozen=True)
class Version:
    """A version of a run.

    Attributes:
        number: 0 is the training.
        path: its folder, a run.
        current: whether commands use it.
        about: what its `version.json` says; empty for version 0.
        bytes: its size on disk, without what it shares with the versions before.
    """

    number: int
    path: Path
    current: bool
    about: dict[str, Any]
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Returns the version as JSON has it."""
        shown = {"version": self.number, "current": self.current, "bytes": self.bytes}
        return {**shown, "path": str(self.path), **self.about}


def run_root(run: Path) -> Path:
    """Returns the run that a folder is a version of; a run that is none is its own."""
    if run.parent.name == VERSIONS and (run.parent / CURRENT).is_file():
        return run.parent.parent
    return run


def current_number(run: Path) -> int:
    """Returns the number of the version that commands use.

    Raises:
        RunError: the file that names it is damaged, or that version is not there.
    """
    path = run / VERSIONS / CURRENT
    if not path.is_file():
        return 0
    text = read_text(path, RunError).strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        wrong = "damaged; it should hold the number of a version"
    elif not _folder(run, int(text)).is_dir():
        wrong = f"names version {text}, which is not there"
    else:
        return int(text)
    newest = _way_back(run, str(numbers(run)[-1]))
    raise RunError(f"{path}: {wrong}; use the newest that is: {newest}")


def _way_back(run: Path, number: str = "") -> str:
    """Returns how the caller goes back to a version, by default the one before."""
    if is_command():
        return f"graphcl update {shlex.quote(str(run))} --rollback {number}".rstrip()
    return f"graphcl.Run({str(run)!r}).rollback({number})"


def current_run(run: Path) -> Path:
    """Returns the folder of the version that commands use; for a run without versions, the run."""
    return _folder(run, current_number(run))


def own_graph(run: Path) -> Path | None:
    """Returns the store with the graph of a version; None for a run that is none."""
    return run / GRAPH if (run / ABOUT).is_file() else None


@contextmanager
def own_graph_read(run: Path) -> Iterator[None]:
    """Says what helps where the graph that a version keeps turns out to be damaged.

    Raises:
        OwnGraphError: it is.
    """
    try:
        yield
    except StoreError as error:
        back = _way_back(run_root(run))
        raise OwnGraphError(f"{error}; use an earlier version: {back}") from None


def mark_of(run: Path) -> Mark:
    """Returns what changes whenever another version of a run is used, or the run is replaced.

    Both files are replaced by a rename, so one that was never looked at has another number.
    """
    return _mark(run / runs.CONFIG), _mark(run / VERSIONS / CURRENT)


def _mark(path: Path) -> tuple[int, int]:
    try:
        about = path.stat()
    except OSError:
        return NOTHING
    return about.st_ino, about.st_mtime_ns


def kept_place(run: Path) -> Callable[[], None]:
    """Returns what refuses to go on once another training has taken the place of a run.

    Files are read one after the other: some could be of the one, and some of the other.

    Args:
        run: the run, or the folder of one of its versions.
    """
    before = _mark(run / runs.CONFIG)

    def check() -> None:
        if _mark(run / runs.CONFIG) not in (before, NOTHING):  # what is gone was not replaced
            raise RunError(f"{run}: another training has taken its place meanwhile; try again")

    return check


def _folder(run: Path, number: int) -> Path:
    return run / VERSIONS / str(number) if number else run


def numbers(run: Path) -> list[int]:
    """Returns the numbers of all versions, ascending, 0 first."""
    folder = run / VERSIONS
    named = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return [0, *sorted(int(name) for name in named if name.isascii() and name.isdecimal())]


def versions(run: Path) -> list[Version]:
    """Returns all versions of a run, oldest first."""
    current, seen, found = current_number(run), set[int](), []
    for number in numbers(run):
        path = _folder(run, number)
        about = runs.read_object(path / ABOUT) if number else {}
        found.append(Version(number, path, number == current, about, _size(path, seen)))
    return found


def _size(path: Path, seen: set[int]) -> int:
    """Returns the bytes of the files in a folder; of one with several names, only the first."""
    total = 0
    for folder, names, files in os.walk(path):
        if VERSIONS in names and Path(folder) == path:
            names.remove(VERSIONS)
        for name in files:
            about = Path(folder, name).lstat()
            if about.st_ino not in seen:
                total += about.st_size
                seen.add(about.st_ino)
    return total


@contextmanager
def changing(run: Path) -> Iterator[None]:
    """Holds the versions of a run: one process at a time changes them.

    Raises:
        RunError: another process does.
    """
    folder = run / VERSIONS
    folder.mkdir(exist_ok=True)
    try:
        held = FileLock(folder / LOCK).acquire(timeout=0)
    except Timeout:
        raise RunError(f"{run}: another process is changing its versions") from None
    with held:
        yield


@contextmanager
def new_version(run: Path) -> Iterator[tuple[int, Path]]:
    """Yields the number of a new version and an empty folder for it, which must become a run.

    If the block ends well, the version appears whole and is the current one. The caller holds
    `changing`.

    Raises:
        RunError: a file of it could not be written.
    """
    for left in (run / VERSIONS).glob(".*/"):  # of processes that were killed
        shutil.rmtree(left, ignore_errors=True)
    number = numbers(run)[-1] + 1
    try:
        with whole_folder(_folder(run, number)) as staging:
            yield number, staging
        use_version(run, number)
    except OSError as error:
        raise RunError(
            f"{run}: version {number} could not be written ({why_failed(error)}); the one before "
            "it stays in use"
        ) from None


def use_version(run: Path, number: int) -> None:
    """Makes a version the current one.

    Raises:
        RunError: there is no such version.
    """
    known = numbers(run)
    if number not in known:
        listed = ", ".join(map(str, known))
        raise RunError(f"{run}: has no version {number}; its versions: {listed}")
    write_whole(run / VERSIONS / CURRENT, f"{number}\n")


def keep_newest(run: Path, count: int) -> list[int]:
    """Removes the oldest versions until `count` are left beside the training; returns them.

    The current version stays.
    """
    made, current = numbers(run)[1:], current_number(run)
    extra = [number for number in made if number != current][: max(0, len(made) - count)]
    for number in extra:
        remove_folder(_folder(run, number))
    return extra


def share_files(source: Path, folder: Path, names: Sequence[str]) -> None:
    """Links files of a version into another, as far as they are there; copies where links fail.

    No file of a run is ever written to again: a new one takes its place.
    """
    for name in names:
        if (source / name).is_file():
            share_file(source / name, folder / name)


def share_file(source: Path, target: Path) -> None:
    """Gives a file a second name, or copies it where the disk has no links.

    A symbolic link is followed: a relative one would lead elsewhere from the target's folder.
    """
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def describe(found: Sequence[Version]) -> list[str]:
    """Returns a table of versions, with a head; a star marks the one in use."""
    rows = [["version", "made", "MB", "nodes", "by"]]
    for one in found:
        nodes = one.about.get("nodes")
        made = "update" if one.number else "training"
        rows.append(
            [
                f"{'*' if one.current else ' '} {one.number}",
                str(one.about.get("made", ""))[:19].replace("T", " "),
                f"{one.bytes / 1e6:,.1f}",
                f"{nodes:,}" if isinstance(nodes, int) else "",
                "update, trained on" if one.about.get("retrained") else made,
            ]
        )
    return aligned(rows)


def rollback(run: str | Path, version: int | None = None) -> int:
    """Makes an earlier version of a run the current one; returns its number.

    Args:
        run: the run.
        version: its number; None is the one that the current was made from. A later one can be
            chosen too.

    Raises:
        RunError: there is no such version.
    """
    root = run_root(Path(run))
    runs.read_config(root)
    with changing(root):
        known = numbers(root)
        # A file that names another version is damaged; it is written anew.
        if len(known) == 1 and not (root / VERSIONS / CURRENT).is_file():
            raise RunError(f"{root}: has no versions but the training")
        if version is None:  # that which the current one was made from, or the newest older one
            current = current_number(root)
            if current == 0:
                raise RunError(
                    f"{root}: is at version 0, as it was trained; there is no earlier one"
                )
            older = [one for one in known if one < current]
            made_from = runs.read_object(current_run(root) / ABOUT).get("from")
            version = made_from if made_from in older else older[-1]
        use_version(root, version)
    return version


def of_one_version(asked: Asked) -> Asked:
    """Lets an answer of a `Run` be of one version, also if another comes into use meanwhile."""

    @wraps(asked)
    def answer(run: Any, *args: Any, **options: Any) -> Any:
        if run._version is None:
            folder, run = run.folder, copy(run)
            run._version = folder
        check = kept_place(run._version)
        found = asked(run, *args, **options)
        check()
        return found

    return cast("Asked", answer)
