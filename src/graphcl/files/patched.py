"""Tables of which a few rows changed: an earlier file under a second name, and a patch.

A table `NAME` in a folder is the file ``NAME.npy``, or three files:

    NAME.base.npy     a table as it was before; its file is shared with whoever made it
    NAME.rows.npy     int64, ascending: rows that differ from the base, then all rows after its last
    NAME.patch.npy    the values of these rows

Such a table is mapped as one plain array. The pages of the base are private to the process, and the
patch is written over them: the kernel copies the pages of changed rows and no others (copy on
write), and new rows have pages of their own. So to make, write or open one takes the time and the
memory of what changed, whatever the size of the table.
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from graphcl.errors import InvalidInputError
from graphcl.files.arrays import file_identity, map_npy, read_header

SMALL_BYTES = 1 << 25  # tables of this size are copied and written whole
MOST = 0.125  # of the rows may be in a patch; with more, pages are copied all over the table
SUFFIXES = (".base.npy", ".rows.npy", ".patch.npy")

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]
Share = Callable[[Path, Path], None]

_FIXED = 0x10  # MAP_FIXED, which Python's `mmap` does not have
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_FAILED = ctypes.c_void_p(-1).value


class _Region:
    """Private memory that begins with a file's bytes and goes on after them.

    NumPy keeps it alive as the base of the array; then it is unmapped.

    Attributes:
        file: the base table's file.
        identity: by which its file is known again, whatever is at its path then.
        base_rows: how many rows it has.
        rows: which rows the patch has.
        values: their values.
        files: those of the table, if it is on the disk as it is.
    """

    def __init__(
        self, raw: BinaryIO, rows: IntArray, values: Array, files: tuple[Path, ...] = ()
    ) -> None:
        shape, _, dtype = read_header(raw)
        offset, self.files = raw.tell(), files
        self.file, self.identity = Path(raw.name).absolute(), file_identity(raw)
        self.base_rows, self.rows, self.values = shape[0], rows, values
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


def overlay(table: Array, rows: IntArray, values: Any) -> Array:
    """Returns a table with other values in some rows, and perhaps more rows; `table` stays.

    Args:
        table: any array. One that is mapped from a file, and is not small, is not copied.
        rows: ascending. Those from ``len(table)`` on are new, and none is left out.
        values: of these rows.
    """
    values = np.ascontiguousarray(values, table.dtype)
    base = _base(table)
    if base is None or table.nbytes <= SMALL_BYTES:
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
    table[region.rows] = region.values
    table.flags.writeable = False
    return table


def _base(table: Array) -> tuple[Path, object, IntArray, Array, tuple[Path, ...]] | None:
    """Returns the file of a mapped table, its identity and its patch; None for another table.

    Last are the files of the table, if it is on the disk as it is.
    """
    region: Any = table.base
    identity: Any
    if isinstance(region, _Region):
        same = table.shape == region.__array_interface__["shape"]
        file, identity = region.file, region.identity
        rows, values, files = region.rows, region.values, region.files
    else:
        identity = getattr(table, "file_identity", None)
        same = identity is not None and isinstance(table, np.memmap)
        file = Path(str(getattr(table, "filename", "")))
        rows, values, files = np.zeros(0, np.int64), table[:0], (file,)
    if not same:
        return None
    try:
        with file.open("rb") as raw:  # another file may have taken its place
            same = file_identity(raw) == identity
            return (file, identity, rows, values, files) if same else None
    except OSError:
        return None


def base_file(table: Array) -> Path | None:
    """Returns the file that a table is mapped from, patched or not; None for one in memory."""
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
    base = _base(table)
    if base is not None and base[4]:
        shared = [folder / f"{name}.{file.name.partition('.')[2]}" for file in base[4]]
        for file, target in zip(base[4], shared, strict=True):
            share(file, target)
        return tuple(shared)
    if base is None or len(base[2]) > MOST * len(table) or table.nbytes <= SMALL_BYTES:
        np.save(folder / f"{name}.npy", table)
        return (folder / f"{name}.npy",)
    file, _, rows, values, _ = base
    files = tuple(folder / f"{name}{suffix}" for suffix in SUFFIXES)
    share(file, files[0])
    np.save(files[1], rows)
    np.save(files[2], values)
    return files


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
    _check(files, base, rows, values, error)
    with files[0].open("rb") as raw:
        return _patched(_Region(raw, np.asarray(rows), np.asarray(values), files))


def _check(
    files: tuple[Path, ...], base: Array, rows: Array, values: Array, error: type[InvalidInputError]
) -> None:
    """Refuses a patch that does not fit its base: its rows would be written anywhere."""
    fits = rows.ndim == 1 and rows.dtype == np.int64 and base.ndim >= 1
    fits = fits and values.dtype == base.dtype and values.shape == (len(rows), *base.shape[1:])
    if fits and len(rows):
        new = int(np.searchsorted(rows, len(base)))
        fits = int(rows[0]) >= 0 and bool((rows[1:] > rows[:-1]).all())
        fits = fits and (new == len(rows) or int(rows[-1]) == len(base) + len(rows) - new - 1)
    if not fits:
        raise error(f"{files[1]}: damaged, does not fit {files[0].name} and {files[2].name}")
