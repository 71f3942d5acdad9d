"""Reads arrays from `.npz` files that may be hostile: sizes are checked before memory is used.

An `.npz` file is a zip of `.npy` files. A hostile one can declare terabytes in a kilobyte, name its
members `../../etc/passwd`, or contain pickles. So the sizes that the archive and the headers of its
arrays declare are checked first, and nothing is ever extracted to disk or unpickled.
"""

import math
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from graphcl.errors import InvalidInputError
from graphcl.files.npy import read_header, refuse_gzipped, regular_size
from graphcl.memory import free_memory_bytes

MEMBERS = 64
RATIO = 200  # how many times a large member may grow when unpacked; deflate can reach 1,000
LARGE_BYTES = 1 << 28
KINDS = "biufUS"


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
        if raw.read(6) == b"\x93NUMPY":
            raise error(f"{path}: is a single array; a graph is an .npz of several")
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
    if len(infos) > MEMBERS:
        raise error(f"{path}: holds {len(infos)} members; at most {MEMBERS} are read")
    found: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.filename
        plain = name == Path(name).name and name.isprintable() and "\\" not in name
        if not plain or name.startswith("."):
            raise error(f"{path}: holds a member named {name[:60]!r}; expected a plain file name")
        if name.removesuffix(suffix) in found:
            raise error(f"{path}: holds {name!r} twice")
        if info.flag_bits & 1 or info.compress_type not in (0, 8):
            raise error(f"{path}: {name} is encrypted, or packed in an unusual way")
        if info.file_size > max(LARGE_BYTES, RATIO * info.compress_size):
            times = info.file_size // max(1, info.compress_size)
            raise error(
                f"{path}: {name} would grow {times} times to {info.file_size} bytes; refused"
            )
        found[name.removesuffix(suffix)] = info
    total = sum(info.file_size for info in infos)
    available = free_memory_bytes()
    if total > available:
        raise error(
            f"{path}: its arrays need {total / 1e9:.1f} GB; {available / 1e9:.1f} GB are free"
        )
    return found


def _read(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, error: type[InvalidInputError]
) -> npt.NDArray[Any]:
    with archive.open(info) as member:
        shape, _, dtype = read_header(cast("BinaryIO", member))
        if dtype.hasobject:
            raise error(f"{path}: holds pickled objects, which are never read")
        if dtype.kind not in KINDS or dtype.names is not None:
            raise error(f"{path}: {info.filename} holds {dtype}; expected numbers or text")
        needed = member.tell() + dtype.itemsize * math.prod(shape)
        if min(shape, default=0) < 0 or len(shape) > 2 or needed != info.file_size:
            raise error(
                f"{path}: {info.filename} claims shape {str(shape)[:60]} of {dtype}, but has "
                f"{info.file_size} bytes"
            )
    with archive.open(info) as member:  # again from the start, now that the header is trusted
        array: npt.NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
        member.read(1)  # zipfile compares the checksum only when it reaches the end
        return array
