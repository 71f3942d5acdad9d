"""Writes files and folders so that they appear whole or not at all.

Everything that this package writes goes through here. The content is written to a hidden entry
beside the target, flushed to the disk, and renamed:

    with whole_file(path) as staging:        # or: write_whole(path, text)
        figure.savefig(staging)
    with whole_folder(path) as staging:
        (staging / "config.toml").write_text(text)

If the block fails or is interrupted, the old content stays and the hidden entry is removed. An
error that names the hidden entry, or nothing, as on a full disk, names the target instead. If the
process is killed or the machine loses power, either the old or the new content remains, complete.
The hidden entry of a killed process is removed when the same target is written again: a process
locks its entry for as long as it runs, so an entry without a lock is abandoned. Windows, which has
no such locks and renames nothing that is open, keeps it: it must be removed by hand.

Permissions follow the umask, as for any new file.
"""

import glob
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import has_fcntl, lock_descriptor

from graphcl.errors import InvalidInputError, demand, option, why_failed


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields an empty hidden file that replaces `path` if the block succeeds.

    The hidden file has the suffix of `path`, because some writers choose a format by it. The parent
    folder must exist.

    Raises:
        OSError: the file cannot be written; an old file at `path` is unchanged.
    """
    with _staged(path, path.parent, path.suffix, folder=False) as staging:
        yield staging
        sync(staging)
        staging.replace(path)
        sync(path.parent)


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file through `whole_file`, text as UTF-8."""
    with whole_file(path) as staging:
        staging.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def whole_folder(path: Path, *, within: Path | None = None) -> Iterator[Path]:
    """Yields an empty hidden folder that replaces `path` if the block succeeds.

    An old folder at `path` stays until the new one is complete. It is then moved aside and removed;
    the caller checks beforehand whether it may be removed (see `check_new_folder`). Parent folders
    are created. The hidden folder is created in `within`, on the same disk, or beside `path`.

    Raises:
        OSError: the folder cannot be written; an old folder at `path` is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    above = within or path.parent
    with _staged(path, above, "", folder=True) as staging:
        yield staging
        for folder, _, names in os.walk(staging):
            for name in names:
                sync(Path(folder, name))
            sync(Path(folder))
        aside = above / _hidden_name(path, ".old")
        try:
            if path.exists():
                path.rename(aside)
            staging.rename(path)
        finally:
            if not path.exists() and aside.exists():
                aside.rename(path)  # the second rename failed: bring the old folder back
        sync(path.parent)
        _remove(aside)


def remove_folder(path: Path) -> None:
    """Removes a folder. It is hidden first, so that a half-removed one is never taken for whole."""
    aside = path.with_name(_hidden_name(path, ".old"))
    path.rename(aside)
    shutil.rmtree(aside)


def sync(path: Path) -> None:
    """Waits until a file's content, or the names in a folder, are on the disk."""
    if not has_fcntl and path.is_dir():
        return  # Windows opens no folders
    handle = os.open(path, os.O_RDONLY if has_fcntl else os.O_RDWR)  # which it wants for a flush
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_new_file(
    path: Path, suffixes: Collection[str], error: type[InvalidInputError], *, overwrite: bool
) -> None:
    """Checks an output file before any work is done for it."""
    check_suffix(path, suffixes, error)
    demand(not path.is_dir(), f"{path}: is a directory", error)
    demand(
        overwrite or not path.exists(),
        f"{path}: already exists; pass {option('overwrite', True)} or choose another "
        f"{option('out')}",
        error,
    )
    above = path.absolute().parent
    demand(above.is_dir(), f"{path}: the folder {above} does not exist", error)


def check_suffix(path: Path, suffixes: Collection[str], error: type[InvalidInputError]) -> None:
    """Refuses a name that ends in none of these."""
    *most, last = suffixes
    demand(
        path.suffix in suffixes, f"{path}: the name must end in {', '.join(most)} or {last}", error
    )


def check_new_folder(
    path: Path, kind: str, marker: str, error: type[InvalidInputError], *, overwrite: bool
) -> None:
    """Checks the folder of a new run or store (its `kind`) before any work is done for it.

    Every folder of this kind contains the file `marker`. A folder without it is not ours and is
    never overwritten, unless it is empty.
    """
    refuse_remote(path, error)
    demand(path.name not in ("", ".."), f"{path}: a {kind} is a new folder; give it a name", error)
    if path.is_dir() and any(path.iterdir()):
        demand(
            (path / marker).is_file(),
            f"{path}: holds files that are not part of a {kind}; choose another place",
            error,
        )
        demand(
            overwrite,
            f"{path}: already holds a {kind}; pass {option('overwrite', True)} or choose another "
            "place",
            error,
        )
    demand(path.is_dir() or not path.exists(), f"{path}: is a file; a {kind} is a directory", error)
    above = next(folder for folder in path.absolute().parents if folder.exists())
    probe = above / _hidden_name(path, "")
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as problem:
        raise error(f"{path}: cannot be written in {above} ({problem.strerror})") from None


def refuse_remote(path: Path, error: type[InvalidInputError]) -> None:
    """Refuses to write to another place than this machine, such as ``s3://``.

    Raises:
        InvalidInputError: of the type `error`.
    """
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", str(path))  # `Path` leaves one slash
    if found:
        raise error(
            f"{found[1]}://…: nothing is written to an object store; name a place on this machine "
            "and copy it, as by: aws s3 cp --recursive FOLDER s3://BUCKET/FOLDER"
        )


@contextmanager
def _staged(path: Path, above: Path, suffix: str, *, folder: bool) -> Iterator[Path]:
    """Yields a new, locked, hidden entry in the folder `above`; removes it if it still exists."""
    ending = f".partial{suffix}"
    leftovers = above.glob(f".{glob.escape(path.name)}.????????{glob.escape(ending)}")
    for leftover in leftovers if has_fcntl else ():
        _remove_abandoned(leftover)
    while True:
        staging = above / _hidden_name(path, ending)
        try:
            if folder:
                staging.mkdir()
            flags = os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT | os.O_EXCL
            opened = os.devnull if folder and not has_fcntl else staging  # Windows opens no folders
            handle = os.open(opened, flags, 0o666)
        except OSError as error:
            error.filename = str(path)  # the user does not know the hidden name
            raise
        if not has_fcntl:
            os.close(handle)  # what is open could not be renamed
            break
        with suppress(OSError):  # not every disk has locks
            lock_descriptor(handle, blocking=False)
        if staging.exists():
            break
        os.close(handle)  # another process removed it before it was locked: try again
    try:
        yield staging
    except OSError as error:
        named = str(error.filename or staging)
        if not named.startswith(str(staging)):
            raise
        # Made anew: NumPy's has a text alone, which a name put into it would hide.
        named = named.replace(str(staging), str(path), 1)
        raise OSError(error.errno, why_failed(error), named) from error
    finally:
        if has_fcntl:
            os.close(handle)
        _remove(staging)


def _hidden_name(path: Path, ending: str) -> str:
    return f".{path.name}.{secrets.token_hex(4)}{ending}"


def _remove_abandoned(path: Path) -> None:
    with suppress(OSError):  # gone already, not ours to remove, or on a disk without locks
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if lock_descriptor(handle, blocking=False):
                _remove(path)
        finally:
            os.close(handle)


def _remove(path: Path) -> None:
    """Removes a file or a folder; ignores one that is missing or cannot be removed."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()
