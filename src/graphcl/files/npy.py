"""Reads and maps `.npy` files that may be damaged or hostile; pickles are never read."""

import math
import mmap
import os
import shlex
import stat
import tempfile
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import numpy as np
import numpy.typing as npt

from graphcl.errors import InvalidInputError

Header = tuple[tuple[int, ...], bool, "np.dtype[Any]"]  # shape, Fortran order, dtype


def read_header(file: BinaryIO) -> Header:
    """Reads the header of an `.npy` file and leaves the file at the first byte of the data.

    Raises:
        ValueError: the header is damaged, or has a version that this package never writes.
    """
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"unknown .npy version {version}")


def refuse_gzipped(path: Path, error: type[InvalidInputError]) -> None:
    """Refuses a file that is gzipped, whatever its name is.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidInputError: of the type `error`.
    """
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    if packed:
        kind = (path.with_suffix("") if path.suffix == ".gz" else path).suffix
        unpack = f"gunzip < {shlex.quote(str(path))} > NEW{kind}"
        raise error(f"{path}: is gzipped; unpack it: {unpack}")


def read_npy(path: Path, error: type[InvalidInputError]) -> npt.NDArray[Any]:
    """Reads the array of an `.npy` file into memory.

    Raises:
        InvalidInputError: of the type `error`.
    """
    try:
        refuse_gzipped(path, error)
        with path.open("rb") as raw:  # NumPy would leave a damaged file open
            array: npt.NDArray[Any] = np.lib.format.read_array(raw, allow_pickle=False)
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except InvalidInputError:
        raise
    except MemoryError:
        raise error(f"{path}: its header asks for more memory than there is") from None
    except Exception as problem:  # a damaged header can raise any exception
        if "pickle" in str(problem) or "Object arrays" in str(problem):
            raise error(f"{path}: holds pickled objects, which are never read") from None
        raise error(f"{path}: not a readable .npy file: damaged, or of another kind") from None
    return array


def map_npy(
    path: Path, error: type[InvalidInputError], *, fortran_too: bool = False
) -> npt.NDArray[Any]:
    """Maps the array of a file, read-only, after comparing its header with the file's size.

    An array that lies column by column is refused unless `fortran_too`: we never write one.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidInputError: of the type `error`: the file is damaged, or contains objects.
    """
    size = regular_size(path, error)
    refuse_gzipped(path, error)
    with path.open("rb") as file:
        try:
            shape, fortran, dtype = read_header(file)
        except Exception as problem:  # a damaged header can raise any exception
            usual = isinstance(problem, ValueError | EOFError | SyntaxError | TypeError)
            why = "" if usual else f" ({type(problem).__name__}: {problem})"
            raise error(f"{path}: damaged, not an .npy file{why}") from None
        offset, identity = file.tell(), file_identity(file)
    if dtype.hasobject or (fortran and not fortran_too) or min(shape, default=0) < 0:
        raise error(f"{path}: damaged, holds {dtype} {str(shape)[:60]}; expected rows of numbers")
    needed = offset + dtype.itemsize * math.prod(shape)
    if size != needed:
        raise error(f"{path}: damaged or truncated: has {size} bytes; its header needs {needed}")
    order: Literal["F", "C"] = "F" if fortran else "C"
    table: Any = np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order=order)
    table.file_identity = identity
    return cast("npt.NDArray[Any]", table)


def file_identity(file: BinaryIO) -> tuple[int, ...]:
    """Returns by which an open file is known again after another may have taken its place."""
    found = os.fstat(file.fileno())
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def shorten_npy(path: Path, length: int) -> None:
    """Cuts the array of a file to its first `length` rows, in place; no map of it may be left.

    Raises:
        ValueError: the header cannot be written in its place.
    """
    with path.open("r+b") as raw:
        shape, _, dtype = read_header(raw)
        new = (length, *shape[1:])
        # NumPy pads headers, so that another shape can be written in place.
        offset = raw.tell()
        raw.seek(0)
        about = {"descr": dtype.str, "fortran_order": False, "shape": new}
        np.lib.format.write_array_header_1_0(raw, about)
        if raw.tell() != offset:
            raise ValueError(f"{path}: cannot be cut to {length} rows in place")
        raw.truncate(offset + math.prod(new) * dtype.itemsize)


def regular_size(path: Path, error: type[InvalidInputError]) -> int:
    """Returns a file's size; refuses a pipe or a device, which could block a reader forever."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise error(f"{path}: not a regular file")
    return found.st_size


def advise_random_reads(*arrays: npt.NDArray[Any]) -> None:
    """Tells the kernel that the rows of mapped arrays will be read in random order.

    For arrays larger than memory, the kernel would otherwise read 32 pages around each row, and
    evict as many that are still needed.
    """
    for array in arrays:
        room: Any = array
        while isinstance(room, np.ndarray):  # follow views down to the memory map
            room = room.base
        cast("mmap.mmap", room).madvise(mmap.MADV_RANDOM)


def scratch_array(shape: tuple[int, ...], dtype: Any, folder: Path | None) -> npt.NDArray[Any]:
    """Returns an array in memory, or in an unnamed file of a folder, deleted with the array."""
    if folder is None:
        return np.empty(shape, dtype=dtype)
    with tempfile.TemporaryFile(dir=folder) as file:
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        os.posix_fallocate(file.fileno(), 0, max(1, size))  # a full disk would end the process
        if not size:
            return np.empty(shape, dtype=dtype)
        mapped: npt.NDArray[Any] = np.memmap(file, dtype=dtype, mode="r+", shape=shape)
        return mapped
