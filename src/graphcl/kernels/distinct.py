"""The distinct numbers of an array, by a table of hashes: a pass, and no sorting."""

import numpy as np
import numpy.typing as npt

from graphcl.kernels.parallel import serial

IntArray = npt.NDArray[np.int64]


def number_distinct(values: IntArray) -> tuple[IntArray, IntArray]:
    """Returns the distinct values in the order in which they come, and which of them each one is.

    Args:
        values: int64 from 0 on, ``[n]``.

    Returns:
        The distinct values, and the place of each value among them, ``[n]``.
    """
    bits = max(4, int(2 * len(values)).bit_length())
    table = np.full(1 << bits, -1, dtype=np.int64)  # places among the distinct values
    found, places = np.empty(len(values), np.int64), np.empty(len(values), np.int64)
    count = np.zeros(1, np.int64)
    _number(np.ascontiguousarray(values), table, 64 - bits, found, places, count)
    return found[: count[0]].copy(), places


@serial
def _number(values, table, shift, found, places, count):  # type: ignore[no-untyped-def]
    mask, number = table.shape[0] - 1, 0
    for at in range(values.shape[0]):
        value = values[at]
        # Fibonacci hashing: the high bits of a product with 2^64 over the golden ratio.
        slot = np.int64((np.uint64(value) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(shift))
        while table[slot] >= 0 and found[table[slot]] != value:
            slot = (slot + 1) & mask
        if table[slot] < 0:
            table[slot] = number
            found[number] = value
            number += 1
        places[at] = table[slot]
    count[0] = number
