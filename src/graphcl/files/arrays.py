"""Reads arrays from files that may be damaged or hostile: `.npy`, `.npz` and safetensors.

Sizes are checked before memory is used, and pickles are never read. An `.npz` file is a zip of
`.npy` files. A hostile one can declare terabytes in a kilobyte, name its members
`../../etc/passwd`, or contain pickles. So the sizes that the archive and the headers of its arrays
declare are checked first, and nothing is ever extracted to disk.
"""

import errno
import hashlib
import json
import math
import mmap
import os
import shlex
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Literal, cast

import numpy as np
import numpy.typing as npt

from graphcl.errors import InvalidInputError, RunError, demand
from graphcl.memory import free_memory_bytes

if TYPE_CHECKING:
    from torch import Tensor

MEMBERS = 64
RATIO = 200  # how many times a large member may grow when unpacked; deflate can reach 1,000
LARGE_BYTES = 1 << 28
KINDS = "biufUS"
DIGEST = "blake2b"  # of the numbers, in the header of a safetensors file
Header = tuple[tuple[int, ...], bool, "np.dtype[Any]"]  # shape, Fortran order, dtype


def read_header(file: BinaryIO) -> Header:
    """Reads the header of an `.npy` file and leaves the file at the first byte of the data.

    Raises:
        ValueError: the header is damaged, or has a version that this package never writes.
    """
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    demand(version in readers, f"unknown .npy version {version}", ValueError)
    # NumPy reads a header by `ast`, which fails now and then in Python 3.11 while another thread
    # uses it, too: they share a counter of how deep they are.
    begin = file.tell()
    for _ in range(20):
        with suppress(SystemError):
            return readers[version](file)
        file.seek(begin)
    return readers[version](file)


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
        return np.array(map_npy(path, error, fortran_too=True))
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None


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
    demand(not dtype.hasobject, f"{path}: holds pickled objects, which are never read", error)
    demand(
        (fortran_too or not fortran) and min(shape, default=0) >= 0,
        f"{path}: damaged, holds {dtype} {str(shape)[:60]}; expected rows of numbers",
        error,
    )
    needed = offset + dtype.itemsize * math.prod(shape)
    demand(
        size == needed,
        f"{path}: damaged or truncated: has {size} bytes; its header needs {needed}",
        error,
    )
    order: Literal["F", "C"] = "F" if fortran else "C"
    table: Any = np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order=order)
    table.file_identity = identity
    return cast("npt.NDArray[Any]", table)


def file_identity(file: BinaryIO) -> tuple[int, ...]:
    """Returns what tells an open file from another that has taken its place since."""
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
        demand(raw.tell() == offset, f"{path}: cannot be cut to {length} rows in place", ValueError)
        raw.truncate(offset + math.prod(new) * dtype.itemsize)


def regular_size(path: Path, error: type[InvalidInputError]) -> int:
    """Returns a file's size; refuses a pipe or a device, which could block a reader forever."""
    found = path.stat()
    demand(stat.S_ISREG(found.st_mode), f"{path}: not a regular file", error)
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
        if hasattr(mmap, "MADV_RANDOM"):  # Windows is told nothing
            cast("mmap.mmap", room).madvise(mmap.MADV_RANDOM)


def scratch_array(shape: tuple[int, ...], dtype: Any, folder: Path | None) -> npt.NDArray[Any]:
    """Returns an array in memory, or in an unnamed file of a folder, deleted with the array."""
    if folder is None or 0 in shape:
        return np.empty(shape, dtype=dtype)
    with tempfile.TemporaryFile(dir=folder) as file:
        mapped: npt.NDArray[Any] = np.memmap(file, dtype=dtype, mode="w+", shape=shape)
        _reserve(file, mapped.nbytes, folder)
        return mapped


def create_npy(path: Path, shape: tuple[int, ...], dtype: Any) -> "np.memmap[Any, np.dtype[Any]]":
    """Returns a writable map of a new file of zeros, whose disk space is reserved.

    Raises:
        OSError: there is not enough space.
    """
    table = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    with path.open("r+b") as file:
        _reserve(file, path.stat().st_size, path)
    return table


def write_npy(path: Path, array: Any) -> None:
    """Writes an array into a new file. `np.save` says nothing where its last bytes find no room.

    Raises:
        OSError: there is not enough space.
    """
    array = np.asarray(array)
    create_npy(path, array.shape, array.dtype)[...] = array


def _reserve(file: IO[bytes], size: int, named: Path) -> None:
    """Reserves disk space for a sparse file; an error names the file, or the folder of one without.

    Without it, a process that writes to a mapped file is killed by SIGBUS when the disk is full.
    macOS reserves nothing: there, the space must be free now. On Windows no file is sparse.
    """
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        elif hasattr(os, "statvfs") and shutil.disk_usage(file.fileno()).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        error.filename = str(named)
        raise


def read_npz(
    path: Path, names: Collection[str] | None, error: type[InvalidInputError]
) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays `names` of an `.npz` file, as far as it has them; None reads all.

    Raises:
        InvalidInputError: of the type `error`: the file is damaged or refused.
    """
    try:
        regular_size(path, error)
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    refuse_gzipped(path, error)
    with path.open("rb") as raw:
        demand(
            raw.read(6) != b"\x93NUMPY",
            f"{path}: is a single array; a graph is an .npz of several",
            error,
        )
    try:
        with zipfile.ZipFile(path) as archive:
            chosen = check_members(archive, path, error)
            wanted = {name: info for name, info in chosen.items() if names is None or name in names}
            return {name: _read(archive, info, path, error) for name, info in wanted.items()}
    except InvalidInputError:
        raise
    except Exception as problem:  # a damaged archive can raise any exception
        why = "a CRC-32 is wrong" if "CRC" in str(problem) else "damaged, or of another kind"
        raise error(f"{path}: not a readable .npz file: {why}") from None


def check_members(
    archive: zipfile.ZipFile, path: object, error: type[InvalidInputError], suffix: str = ".npy"
) -> dict[str, zipfile.ZipInfo]:
    """Returns the members of an archive by name; refuses an archive with a suspicious member."""
    infos = archive.infolist()
    demand(
        len(infos) <= MEMBERS,
        f"{path}: holds {len(infos)} members; at most {MEMBERS} are read",
        error,
    )
    found: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name, size, packed = info.filename, info.file_size, info.compress_size
        plain = name == Path(name).name and name.isprintable() and "\\" not in name
        demand(
            plain and not name.startswith("."),
            f"{path}: holds a member named {name[:60]!r}; expected a plain file name",
            error,
        )
        demand(name.removesuffix(suffix) not in found, f"{path}: holds {name!r} twice", error)
        demand(
            not info.flag_bits & 1 and info.compress_type in (0, 8),
            f"{path}: {name} is encrypted, or packed in an unusual way",
            error,
        )
        demand(
            size <= max(LARGE_BYTES, RATIO * packed),
            f"{path}: {name} would grow {size // max(1, packed)} times to {size} bytes; refused",
            error,
        )
        found[name.removesuffix(suffix)] = info
    total = sum(info.file_size for info in infos)
    available = free_memory_bytes()
    demand(
        total <= available,
        f"{path}: its arrays need {total / 1e9:.1f} GB; {available / 1e9:.1f} GB are free",
        error,
    )
    return found


def _read(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, error: type[InvalidInputError]
) -> npt.NDArray[Any]:
    with archive.open(info) as member:
        shape, _, dtype = read_header(cast("BinaryIO", member))
        demand(not dtype.hasobject, f"{path}: holds pickled objects, which are never read", error)
        demand(
            dtype.kind in KINDS and dtype.names is None,
            f"{path}: {info.filename} holds {dtype}; expected numbers or text",
            error,
        )
        needed = member.tell() + dtype.itemsize * math.prod(shape)
        demand(
            min(shape, default=0) >= 0 and len(shape) <= 2 and needed == info.file_size,
            f"{path}: {info.filename} claims shape {str(shape)[:60]} of {dtype}, but has "
            f"{info.file_size} bytes",
            error,
        )
    with archive.open(info) as member:  # again from the start, now that the header is trusted
        array: npt.NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
        member.read(1)  # zipfile compares the checksum only when it reaches the end
        return array


def with_digest(content: bytes) -> bytes:
    """Returns a safetensors file with a digest of its numbers in the header: `read_digested`."""
    start, header, digest = _opened(content)
    header["__metadata__"] = header.get("__metadata__", {}) | {DIGEST: digest}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[start:]


def _opened(content: bytes) -> tuple[int, dict[str, Any], str]:
    """Returns where the numbers of a safetensors file begin, its header, and their digest."""
    start = 8 + int.from_bytes(content[:8], "little")
    digest = hashlib.blake2b(memoryview(content)[start:], digest_size=16).hexdigest()
    return start, json.loads(content[8:start]), digest


def read_tensors(path: Path) -> "dict[str, Tensor]":
    """Returns the tensors of a safetensors file.

    Raises:
        FileNotFoundError: there is no such file.
        RunError: the file is damaged, truncated, or does not match its header.
    """
    import safetensors.torch  # here, because most readers of arrays need no torch

    try:
        return safetensors.torch.load(read_digested(path)[0])
    except KeyError as error:  # a kind of numbers that torch does not have
        raise RunError(f"{path}: damaged or truncated (holds {error})") from None


def read_digested(path: Path) -> tuple[bytes, dict[str, str]]:
    """Returns a safetensors file, and the texts in its header.

    Raises:
        FileNotFoundError: there is no such file.
        RunError: the file is damaged, truncated, or does not match its header or its digest.
    """
    check_tensors(path)
    content = path.read_bytes()
    _, header, digest = _opened(content)
    about = header.get("__metadata__", {})
    said = f"{path}: damaged; its numbers are not those that were written"
    demand(about.get(DIGEST, digest) == digest, said, RunError)
    return content, about


def check_tensors(path: Path) -> int:
    """Checks a file's header against its size, and both against the free memory; returns the size.

    safetensors itself compares the dtype, the shape and the position of every tensor with the file.
    """
    from safetensors import SafetensorError, safe_open

    size, available = regular_size(path, RunError), free_memory_bytes()
    demand(  # the file's bytes and the tensors are in memory together
        2 * size <= available,
        f"{path}: {size / 1e9:.1f} GB of weights; {available / 1e9:.1f} GB are free",
        RunError,
    )
    try:
        with safe_open(path, "numpy"):
            return size
    except SafetensorError as error:
        raise RunError(f"{path}: damaged or truncated ({error})") from None
