"""Any array, as a type; and blocks of rows, for what does not fit in memory at once."""

from collections.abc import Iterator
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
