r"""What is done to each column of a feature table while its rows are read.

A value x of column c becomes :math:`\mathrm{clip}((g(x) - s_c) \cdot f_c)`. For a column of words g
divides by the length of the row's words, the root of their sum of squares; for a column with a
heavy tail :math:`g(x) = \mathrm{sign}(x) \log(1 + |x| / u_c)`; for others g leaves x as it is.

`row_of` and `as_float` read stored rows and numbers inside compiled loops.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import njit, types
from numba.extending import overload
from torch import Tensor

Arrays = tuple[Any, ...]


@dataclass(frozen=True)
class ColumnTransform:
    """One number per column and part of the formula, ``[P]``, all on one device.

    Attributes:
        words: whether g divides by the length of the row's words; bool.
        unit: u, float32; 0 means no logarithm.
        shift: s, float32.
        factor: f, float32.
        limit: results are within plus and minus this, float32; infinite means no limit.
    """

    words: Tensor
    unit: Tensor
    shift: Tensor
    factor: Tensor
    limit: Tensor

    @property
    def has_words(self) -> bool:
        """Whether the lengths of the rows' words are needed."""
        return bool(self.words.any())

    @property
    def keeps_zeros(self) -> bool:
        """Whether a zero stays a zero in every column, so that a sparse table stays sparse."""
        return not bool(self.shift.any())

    def to(self, device: torch.device) -> "ColumnTransform":
        """Returns the transform on a device."""
        return ColumnTransform(*(part.to(device) for part in vars(self).values()))

    def divisors(self, rows: Tensor) -> Tensor:
        """Returns the length of each row's words, or 1 for a row without words."""
        return size_of_rows(rows[:, self.words], "unit")

    def __call__(self, rows: Tensor, divisors: Tensor) -> Tensor:
        """Returns dense float32 rows ``[n, P]``, transformed; `divisors` is ``[n]``."""
        out = torch.where(self.words, rows / divisors[:, None], self._logarithm(rows, self.unit))
        return out.sub_(self.shift).mul_(self.factor).clamp_(-self.limit, self.limit)

    def entries(self, values: Tensor, columns: Tensor, divisors: Tensor) -> Tensor:
        """Returns the stored values of a sparse table, transformed; `columns` says where each is.

        `divisors` has the divisor of each value's row. Only for a transform that keeps zeros.
        """
        others = self._logarithm(values, self.unit[columns])
        out = torch.where(self.words[columns], values / divisors, others)
        limit = self.limit[columns]
        return out.mul_(self.factor[columns]).clamp_(-limit, limit)

    @staticmethod
    def _logarithm(values: Tensor, unit: Tensor) -> Tensor:
        logarithm = torch.log1p(values.abs() / torch.where(unit > 0, unit, 1)) * values.sign()
        return torch.where(unit > 0, logarithm, values)

    def arrays(self, values: Any, row_divisor: Any, word_divisor: Any) -> Arrays:
        """Returns what `row_of` takes for a table: how it is stored, then how it is transformed."""
        parts = (part.numpy() for part in vars(self).values())
        return (values, row_divisor, word_divisor, *parts)


def size_of_rows(rows: Tensor, scaling: str) -> Tensor:
    """Returns what ``row`` or ``unit`` divides each row by, ``[n]``: 1 where that would be 0.

    Squares are in float64: those of large or small float32 would be infinite or 0.
    """
    if scaling == "row":
        sizes = rows.abs().sum(1)
    else:
        sizes = rows.double().square().sum(1).sqrt().to(rows.dtype)
    return torch.where(sizes > 0, sizes, 1)


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


def row_of(table: Any, row: Any, buffer: Any) -> Any:
    """Returns a row of a table; in compiled loops only.

    A plain table's row is returned as it is stored. A transformed table is the tuple of
    `ColumnTransform.arrays`: its row is written into `buffer`, float32 ``[P]``, which is returned.
    """
    raise NotImplementedError


@overload(row_of, inline="always")
def _row_of(table: Any, row: Any, buffer: Any) -> Any:  # noqa: ARG001 (numba passes types)
    if hasattr(table, "ndim"):
        return _plain_row
    return _transformed_row


def _plain_row(table: Any, row: Any, buffer: Any) -> Any:  # noqa: ARG001
    return table[row]


def _transformed_row(table: Any, row: Any, buffer: Any) -> Any:
    return _transformed(table, row, buffer)


@njit(error_model="numpy")
def _transformed(table, row, buffer):  # type: ignore[no-untyped-def]
    values, row_divisor, word_divisor, words, unit, shift, factor, limit = table
    stored = values[row]
    divided, counted = row_divisor.shape[0] > 0, word_divisor.shape[0] > 0
    for column in range(buffer.shape[0]):
        value = as_float(stored[column])
        if divided:
            value = value / row_divisor[row]
        if words[column] and counted:
            value = value / word_divisor[row]
        elif unit[column] > 0:
            size = np.log1p(abs(value) / unit[column])
            value = size if value > 0 else -size
        value = (value - shift[column]) * factor[column]
        buffer[column] = min(max(value, -limit[column]), limit[column])
    return buffer
