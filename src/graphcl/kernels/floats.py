"""Stored numbers as float32, inside compiled loops."""

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import overload


def as_float(value: Any) -> Any:
    """Returns a stored value as float32; in compiled loops only."""
    raise NotImplementedError


@overload(as_float, inline="always")
def _as_float(value: Any) -> Any:
    if value == types.uint16:
        return _half
    return _single


def _single(value: Any) -> Any:
    return np.float32(value)


@njit(inline="always")
def _half_bits(value):  # type: ignore[no-untyped-def]
    # With exponent and fraction at their positions in float32, the bits stand for 2^-112 times the
    # number, also for subnormals. Unlike the CPU's own conversion, this vectorises everywhere.
    bits = np.uint32(value)
    sign = np.uint32((bits & np.uint32(0x8000)) << np.uint32(16))
    rest = np.uint32((bits & np.uint32(0x7FFF)) << np.uint32(13))
    return np.uint32(sign | rest).view(np.float32) * np.float32(2.0**112)


def _half(value: Any) -> Any:
    return _half_bits(value)
