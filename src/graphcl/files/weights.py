"""Reads weights from safetensors files that may be hostile: the header is checked before loading.

A file consists of eight bytes (the header's length), a JSON header (name, dtype, shape and position
of each tensor) and the tensors. Weights are never read from a pickle.
"""

import json
import math
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from graphcl.errors import RunError
from graphcl.files.npy import regular_size
from graphcl.memory import free_memory_bytes

HEADER_BYTES = 1 << 20  # the header of an encoder has a few hundred bytes
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a safetensors file.

    Raises:
        FileNotFoundError: there is no such file.
        RunError: the file is damaged, truncated, or does not match its header.
    """
    check_tensors(path)
    try:
        return safetensors.torch.load(path.read_bytes())
    except SafetensorError as error:
        raise RunError(f"{path}: damaged or truncated ({error})") from None


def check_tensors(path: Path) -> int:
    """Checks a file's header against its size and the free memory; returns the size."""
    size = regular_size(path, RunError)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 10 or length > min(HEADER_BYTES, size - 8):
            raise RunError(f"{path}: damaged or truncated (a header of {length} bytes in {size})")
        text = file.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: damaged or truncated (its header is not JSON: {error})") from None
    if not isinstance(header, dict):
        raise RunError(f"{path}: damaged or truncated (its header is not a JSON object)")
    for name, about in header.items():
        if name != "__metadata__" and not _fits(about, size - 8 - length):
            raise RunError(
                f"{path}: damaged or truncated ({name[:60]!r} has a wrong dtype, shape or position)"
            )
    available = free_memory_bytes()
    if 2 * size > available:  # the file's bytes and the tensors are in memory together
        raise RunError(f"{path}: {size / 1e9:.1f} GB of weights; {available / 1e9:.1f} GB are free")
    return size


def _fits(about: Any, room: int) -> bool:
    if not isinstance(about, dict):
        return False
    shape, place = about.get("shape"), about.get("data_offsets")
    if about.get("dtype") not in _BYTES or not _counts(shape) or not _counts(place):
        return False
    assert isinstance(shape, list)
    if place is None or len(place) != 2 or not place[0] <= place[1] <= room:
        return False
    length: int = place[1] - place[0]
    return _BYTES[about["dtype"]] * math.prod(shape) == length


def _counts(values: Any) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= 8
        and all(type(value) is int and 0 <= value < 1 << 48 for value in values)
    )
