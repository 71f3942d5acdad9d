"""Any array, as a type; and blocks of rows, for what does not fit in memory at once."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]


def blocks(count: int, size: int) -> Iterator[slice]:
    """Yields slices that cover `count` rows, `size` at a time."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def sized_blocks(sizes: Array, first: int = 0, most: int = 1 << 22) -> Iterator[slice]:
    """Yields slices that cover rows of different sizes: `most` at a time, and one row more.

    Args:
        sizes: of the rows.
        first: the number of the first one.
        most: the sum of the sizes of a slice.
    """
    cuts = np.flatnonzero(np.diff(np.cumsum(sizes + 1) // most)) + 1
    ends = [0, *cuts.tolist(), len(sizes)]
    return (slice(first + start, first + end) for start, end in pairwise(ends) if end > start)
