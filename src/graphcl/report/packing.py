"""Packs arrays into an HTML page: compactly, and safely whatever the node ids contain.

An array is split into byte planes, deflated and written in base64. Planes compress well because the
high bytes of neighbouring values are alike. Base64 cannot end a script or open a tag.
"""

import base64
import json
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def pack(values: Array) -> dict[str, Any]:
    """Returns an unsigned integer array as ``{"type": "u2", "data": base64}``."""
    width = values.dtype.itemsize
    planes = values.astype(f"<u{width}").view(np.uint8).reshape(-1, width).T
    return {"type": f"u{width}", "data": _deflated(np.ascontiguousarray(planes).tobytes())}


def unpack(packed: dict[str, Any]) -> Array:
    """Returns the array that `pack` was given; `data.js` does the same in the page."""
    width = int(packed["type"][1:])
    raw = zlib.decompress(base64.b64decode(packed["data"]))
    planes = np.frombuffer(raw, np.uint8).reshape(width, -1).T
    return np.ascontiguousarray(planes).view(f"<u{width}").ravel()


def pack_texts(texts: list[str]) -> str:
    """Returns texts as base64 of deflated JSON."""
    clean = [text.encode("utf-8", "replace").decode() for text in texts]
    return _deflated(json.dumps(clean, ensure_ascii=False).encode())


def script_json(value: Any) -> str:
    """Returns JSON that is safe inside a script element: it contains no ``<``."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def quantised(coordinates: Array) -> Array:
    """Returns coordinates ``[N, 2]`` as uint16, scaled to 65,536 steps with their shape kept."""
    low, high = coordinates.min(axis=0), coordinates.max(axis=0)
    side = float((high - low).max())
    centred = (coordinates - (low + high) / 2) / (side if side > 0 else 1) + 0.5
    grid: Array = np.round(np.clip(centred, 0, 1) * 65535).astype(np.uint16)
    return grid


def morton_order(grid: Array) -> Array:
    """Returns the order of points along a Morton curve: near on the map, near in the list."""
    # A point's key interleaves the bits of x and y, so that its high bits name its quadrant.
    key = np.zeros(len(grid), np.uint64)
    x, y = grid[:, 0].astype(np.uint64), grid[:, 1].astype(np.uint64)
    for bit in range(16):
        shift = np.uint64(bit)
        key |= ((x >> shift) & np.uint64(1)) << np.uint64(2 * bit)
        key |= ((y >> shift) & np.uint64(1)) << np.uint64(2 * bit + 1)
    return np.argsort(key, kind="stable")


def relative(neighbours: Array) -> Array:
    """Returns row numbers ``[N, k]`` as offsets from their own row (uint32).

    The lowest bit holds the sign. In Morton order most offsets are small, so their high bytes are
    zero and compress well.
    """
    offset = neighbours.astype(np.int64) - np.arange(len(neighbours))[:, None]
    return np.where(offset < 0, -2 * offset - 1, 2 * offset).astype(np.uint32)


def _deflated(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 6)).decode("ascii")
