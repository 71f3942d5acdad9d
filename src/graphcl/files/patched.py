"""Tables of which a few rows changed: an earlier file under a second name, and a patch.

A table `NAME` in a folder is the file ``NAME.npy``, or three files:

    NAME.base.npy     a table as it was before; its file is shared with whoever made it
    NAME.rows.npy     int64, ascending: rows that differ from the base, then all rows after its last
    NAME.patch.npy    the values of these rows

Such a table is mapped as one plain array. The pages of the base are private to the process, and the
patch is written over them: the kernel copies the pages of changed rows and no others (copy on
write), and new rows have pages of their own. So to make, write or open one takes the time and the
memory of what changed, whatever the size of the table. A system without private pages (Windows)
puts the table together in memory, with the same values, and writes what changes whole.

In lists of edges (CSR), an entry more moves all that follow. There `NAME.rows.npy` has columns:

    cuts [k, 3]       of entries: a place in the base, how many go there, and how many come there,
                      which are the next ones of the patch
    steps [k, 2]      of pointers: a row of the base, and what is added from there on; the patch has
                      the pointers after the base's last

They are put together in memory when they are opened, which takes a hundredth of a second for a
million entries. So long lists are written whole, and stay mapped.
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from graphcl.arrays import Array, Integers
from graphcl.errors import InvalidInputError, demand
from graphcl.files.arrays import file_identity, map_npy, read_header, write_npy

SMALL_BYTES = 1 << 18  # tables of this size are copied and written whole
LONG_BYTES = 1 << 28  # so are lists of edges beyond this size: each process would hold a copy
MOST = 0.125  # of the rows may be in a patch; with more, pages are copied all over the table
SUFFIXES = (".base.npy", ".rows.npy", ".patch.npy")

Share = Callable[[Path, Path], None]
_Base = tuple[Path, object, Integers, Array, tuple[Path, ...]]

_FIXED = 0x10  # MAP_FIXED, which Python's `mmap` does not have
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_PRIVATE_PAGES = hasattr(mmap, "MAP_PRIVATE")
_FAILED = ctypes.c_void_p(-1).value


class _Region:
    """Private memory that begins with a file's bytes and goes on after them.

    NumPy keeps it alive as the base of the array; then it is unmapped.

    Attributes:
        base: the base table's file; its identity, by which it is known again, whatever is at its
            path then; which rows the patch has, and their values; and the files of the table, if it
            is on the disk as it is.
    """

    def __init__(
        self, raw: BinaryIO, rows: Integers, values: Array, files: tuple[Path, ...] = ()
    ) -> None:
        shape, _, dtype = read_header(raw)
        offset = raw.tell()
        self.base: _Base = (Path(raw.name).absolute(), file_identity(raw), rows, values, files)
        total = max(shape[0], int(rows[-1]) + 1 if len(rows) else 0)
        wide = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        size = os.fstat(raw.fileno()).st_size
        self._length = max(offset + total * wide, size)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = (
            *(ctypes.c_void_p, ctypes.c_size_t),
            *(ctypes.c_int,) * 3,
            ctypes.c_int64,
        )
        self._libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        private = mmap.MAP_PRIVATE | _NO_RESERVE
        self._start = self._map(None, self._length, private | mmap.MAP_ANONYMOUS, -1)
        self._map(self._start, size, private | _FIXED, raw.fileno())
        self.__array_interface__ = {
            "version": 3,
            "shape": (total, *shape[1:]),
            "typestr": dtype.str,
            "data": (self._start + offset, False),
        }

    def _map(self, start: int | None, length: int, flags: int, file: int) -> int:
        allowed = mmap.PROT_READ | mmap.PROT_WRITE
        found = self._libc.mmap(start, length, allowed, flags, file, 0)
        if found == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return int(found)

    def madvise(self, option: int) -> None:
        """Tells the kernel how the pages will be read."""
        self._libc.madvise(self._start, self._length, option)

    def __del__(self) -> None:
        if hasattr(self, "_start"):
            self._libc.munmap(self._start, self._length)


class _Joined:
    """A table that was put together in memory from files, which the array keeps by its base.

    Attributes:
        files: the three files.
    """

    def __init__(self, table: Array, files: tuple[Path, ...]) -> None:
        table.flags.writeable = False
        self._table, self.files = table, files
        self.__array_interface__ = table.__array_interface__

    def madvise(self, option: int) -> None:
        """Does nothing: the table is in memory."""


def overlay(table: Array, rows: Integers, values: Any) -> Array:
    """Returns a table with other values in some rows, and perhaps more rows; `table` stays.

    Args:
        table: any array. One that is mapped from a file, and is not small, is not copied.
        rows: ascending. Those from ``len(table)`` on are new, and none is left out.
        values: of these rows.
    """
    values = np.ascontiguousarray(values, table.dtype)
    base = _base(table)
    if base is None or table.nbytes <= SMALL_BYTES or not _PRIVATE_PAGES:
        total = max(len(table), int(rows[-1]) + 1 if len(rows) else 0)
        whole = np.empty((total, *table.shape[1:]), table.dtype)
        whole[: len(table)] = table
        whole[rows] = values
        return whole
    file, identity, before, held, _ = base
    if len(before):  # what the earlier patch has and this one has not
        left = ~np.isin(before, rows, assume_unique=True)
        rows, values = np.concatenate([before[left], rows]), np.concatenate([held[left], values])
        order = np.argsort(rows, kind="stable")
        rows, values = rows[order], values[order]
    with file.open("rb") as raw:
        assert file_identity(raw) == identity
        return _patched(_Region(raw, rows, values))


def _patched(region: _Region) -> Array:
    table: Array = np.asarray(region)
    table[region.base[2]] = region.base[3]
    table.flags.writeable = False
    return table


def _base(table: Array) -> _Base | None:
    """Returns what a mapped table is made of, as a `_Region` has it; None for another table."""
    region: Any = table.base
    identity = getattr(table, "file_identity", None)
    if isinstance(region, _Region) and table.shape == region.__array_interface__["shape"]:
        base = region.base
    elif isinstance(table, np.memmap) and identity is not None:
        file = Path(str(table.filename))
        base = (file, identity, np.zeros(0, np.int64), table[:0], (file,))
    else:
        return None
    try:
        with base[0].open("rb") as raw:  # another file may have taken its place
            return base if file_identity(raw) == base[1] else None
    except OSError:
        return None


def base_file(table: Array) -> Path | None:
    """Returns the file that a table is mapped from, patched or not; None for one in memory."""
    joined: Any = table.base
    if isinstance(joined, _Joined):
        return joined.files[0]
    base = _base(table)
    return None if base is None else base[0]


def write_table(folder: Path, name: str, table: Array, share: Share) -> tuple[Path, ...]:
    """Writes a table into a folder, as a patch if it is one and the patch is not large.

    One that is on the disk as it is shares its files.

    Args:
        folder: a folder that nobody reads yet.
        name: of the table.
        table: any array, perhaps by `overlay`.
        share: gives a file a second name.

    Returns:
        The files.
    """
    base, stored = _base(table), stored_files(table)
    if stored:
        shared = [folder / f"{name}.{file.name.partition('.')[2]}" for file in stored]
        for file, target in zip(stored, shared, strict=True):
            share(file, target)
        return tuple(shared)
    if base is None or len(base[2]) > MOST * len(table) or table.nbytes <= SMALL_BYTES:
        write_npy(folder / f"{name}.npy", table)
        return (folder / f"{name}.npy",)
    file, _, rows, values, _ = base
    files = tuple(folder / f"{name}{suffix}" for suffix in SUFFIXES)
    share(file, files[0])
    write_npy(files[1], rows)
    write_npy(files[2], values)
    return files


def stored_files(table: Array) -> tuple[Path, ...]:
    """Returns the files of a table that is on the disk as it is; none for another."""
    joined: Any = table.base
    if isinstance(joined, _Joined):
        return joined.files
    base = _base(table)
    return () if base is None else base[4]


def write_lists(
    folder: Path, before: Path, tables: Mapping[str, Array], share: Share
) -> dict[str, tuple[Path, ...]] | None:
    """Writes lists in CSR form as changes of those in an earlier folder.

    Args:
        folder: a folder that nobody reads yet.
        before: the earlier folder, with tables of these names, patched or not.
        tables: the pointers, then whatever has a row for each entry.
        share: gives a file a second name.

    Returns:
        The files of each table. None if there is nothing to go on from, or if much has changed, or
        if the tables are so large that they had better be mapped whole; then nothing is written.
    """
    largest = max(table.nbytes for table in tables.values())
    if not SMALL_BYTES < largest <= LONG_BYTES or not all(
        has_table(before, name) for name in tables
    ):
        return None
    files = {name: tuple(folder / f"{name}{suffix}" for suffix in SUFFIXES) for name in tables}
    for name, (shared, *_) in files.items():
        share(table_files(before, name)[0], shared)
    patches = _list_patches(
        {name: map_npy(files[name][0], InvalidInputError) for name in tables}, tables
    )
    for name, (shared, *patch) in files.items():
        if patches is None:
            shared.unlink()
            continue
        for file, array in zip(patch, patches[name], strict=True):
            write_npy(file, array)
    return None if patches is None else files


def _list_patches(
    bases: Mapping[str, Array], tables: Mapping[str, Array]
) -> dict[str, tuple[Integers, Array]] | None:
    """Returns the rows and the patch of each table over its base, as `write_lists` needs them."""
    (name, indptr), *entries = tables.items()
    old, new = np.asarray(bases[name]), np.asarray(indptr)
    size = len(old) - 1
    if len(new) < len(old) or any(
        bases[one].dtype != table.dtype
        or bases[one].shape[1:] != table.shape[1:]
        or len(bases[one]) != old[-1]
        for one, table in entries
    ):
        return None
    before, after = np.diff(old), np.diff(new)
    same = before == after[:size]
    more = np.zeros(len(after) - size, bool)
    kept, there = np.repeat(same, before), np.repeat(np.append(same, more), after)
    for one, table in entries:
        differs = bases[one][kept] != table[there]
        if differs.ndim > 1:
            differs = differs.any(axis=1)
        places = np.flatnonzero(kept)[differs]
        same[np.searchsorted(old, places, side="right") - 1] = False
    changed = np.flatnonzero(~same)
    if len(changed) + len(after) - size > MOST * len(after):
        return None
    shift = new[: size + 1] - old
    starts = np.flatnonzero(np.diff(shift, prepend=0))
    found = {name: (np.stack([starts, shift[starts]], axis=1), new[size + 1 :])}
    cuts = np.stack([old[changed], before[changed], after[changed]], axis=1)
    come = np.repeat(np.append(~same, ~more), after)
    if len(after) > size:  # the entries of all new rows
        cuts = np.concatenate([cuts, [[old[-1], 0, new[-1] - new[size]]]])
    return found | {one: (cuts, np.asarray(table)[come]) for one, table in entries}


def table_files(folder: Path, name: str) -> tuple[Path, ...]:
    """Returns the files of a table, whether they are there or not."""
    whole = folder / f"{name}.npy"
    parts = tuple(folder / f"{name}{suffix}" for suffix in SUFFIXES)
    return parts if parts[0].exists() and not whole.exists() else (whole,)


def has_table(folder: Path, name: str) -> bool:
    """Returns whether a folder has a table of this name."""
    return table_files(folder, name)[0].exists()


def map_table(folder: Path, name: str, error: type[InvalidInputError]) -> Array:
    """Maps a table, read-only.

    Raises:
        FileNotFoundError: there is no such table.
        InvalidInputError: of the type `error`: a file is damaged.
    """
    files = table_files(folder, name)
    base = map_npy(files[0], error)
    if len(files) == 1:
        return base
    try:
        rows, values = map_npy(files[1], error), map_npy(files[2], error)
    except FileNotFoundError as missing:
        raise error(
            f"{missing.filename}: missing; {files[0].name} is not the whole table"
        ) from None
    damaged, joined = f"{files[1]}: damaged, does not fit {files[0].name} and {files[2].name}", None
    if rows.ndim == 2:
        if rows.dtype == np.int64 and values.dtype == base.dtype:
            join = {2: _stepped, 3: _cut}.get(rows.shape[1])
            joined = join and join(base, np.asarray(rows), np.asarray(values))
        if joined is None:
            raise error(damaged)
        return np.asarray(_Joined(joined, files))
    demand(_fits(base, rows, values), damaged, error)
    if not _PRIVATE_PAGES:
        return np.asarray(_Joined(overlay(base, np.asarray(rows), values), files))
    with files[0].open("rb") as raw:
        return _patched(_Region(raw, np.asarray(rows), np.asarray(values), files))


def _fits(base: Array, rows: Array, values: Array) -> bool:
    """Returns whether a patch fits its base; else its rows would be written anywhere."""
    fits = rows.ndim == 1 and rows.dtype == np.int64 and base.ndim >= 1
    fits = fits and values.dtype == base.dtype and values.shape == (len(rows), *base.shape[1:])
    if not fits or not len(rows):
        return fits
    new = int(np.searchsorted(rows, len(base)))
    ascending = int(rows[0]) >= 0 and bool((rows[1:] > rows[:-1]).all())
    return ascending and (new == len(rows) or int(rows[-1]) == len(base) + len(rows) - new - 1)


def _stepped(base: Array, steps: Integers, last: Array) -> Array | None:
    """Returns pointers to which something is added from some rows on; None if it does not fit."""
    starts, added = steps.T
    fits = base.ndim == last.ndim == 1 and base.dtype == np.int64
    if not fits or (len(starts) and not 0 <= starts[0] <= starts[-1] < len(base)):
        return None
    if (starts[1:] <= starts[:-1]).any():
        return None
    table = np.concatenate([base, last])
    steepness = np.diff(added, prepend=0)
    shift = np.zeros(len(base), np.int64)
    shift[starts] = steepness
    table[: len(base)] += shift.cumsum()
    return table


def _cut(base: Array, cuts: Integers, come: Array) -> Array | None:
    """Returns entries some of which were replaced by others; None if it does not fit."""
    places, gone, more = cuts.T
    most = len(base) + len(come)
    if len(cuts) and (cuts.min() < 0 or cuts.max() > most):
        return None
    ends = places + gone
    fits = come.shape[1:] == base.shape[1:] and int(more.sum()) == len(come)
    if not fits or (ends[:-1] > places[1:]).any() or (ends[-1:] > len(base)).any():
        return None
    inside = np.zeros(len(base) + 1, np.int8)  # 1 from a cut's first entry to its last
    np.add.at(inside, places, 1)
    np.add.at(inside, ends, -1)
    kept = np.asarray(base)[inside.cumsum(dtype=np.int8)[:-1] == 0]
    return np.asarray(np.insert(kept, np.repeat(places - (gone.cumsum() - gone), more), come, 0))
