"""Facts about the columns of feature tables, read in blocks of rows.

A table may be dense, sparse or mapped from a store, and is never converted as a whole. Sums are
float64. The height of a block depends on the table's width alone, so that a table has the same
facts, bit for bit, in memory and mapped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch

from graphcl.arrays import Doubles
from graphcl.distributed import ALONE, Share, gather_tables

_BLOCK = 1 << 20  # values at a time: 8 MB of float64


class Rows(NamedTuple):
    """Some rows of a feature table.

    Attributes:
        x: a feature table as `Graph` has it.
        nodes: the rows that are looked at; None means all.
    """

    x: Any
    nodes: npt.NDArray[np.int64] | None = None

    @property
    def number(self) -> int:
        """Number of rows."""
        return int(self.x.shape[0]) if self.nodes is None else len(self.nodes)

    def blocks(self, height: int) -> Iterator[Any]:
        """Yields the rows in blocks, dense or CSR as the table is."""
        for start in range(0, self.number, height):
            block = slice(start, start + height)
            yield self.x[block] if self.nodes is None else self.x[self.nodes[block]]


@dataclass(frozen=True)
class ColumnFacts:
    """What one pass over the rows says of each column, ``[P]``.

    Attributes:
        rows: number of rows.
        filled: how many values are not zero.
        low: the smallest value.
        high: the largest value.
        total: the sum.
        size: the sum of absolute values.
        binary: whether every value is 0 or 1.
        whole: whether every value is a whole number.
    """

    rows: int
    filled: Doubles
    low: Doubles
    high: Doubles
    total: Doubles
    size: Doubles
    binary: npt.NDArray[np.bool_]
    whole: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, tables: Sequence[Rows], share: Share = ALONE) -> "ColumnFacts":
        """Reads the tables once; in a group of processes that `share` them, each reads its own."""
        width = int(tables[0].x.shape[1])
        filled, total, size = (np.zeros(width) for _ in range(3))
        low, high = np.full(width, np.inf), np.full(width, -np.inf)
        others = np.zeros(width, np.bool_)  # where a value is neither 0 nor 1
        broken = np.zeros(width, np.bool_)  # where a value is not a whole number
        for table in tables:
            sparse = scipy.sparse.issparse(table.x)
            each = -(-table.x.nnz // max(1, table.x.shape[0])) if sparse else width
            for block in table.blocks(max(1, _BLOCK // max(1, each))):
                for columns, values, starts in _parts(block):
                    filled[columns] += _sums(values != 0, starts)
                    total[columns] += _sums(values, starts)
                    size[columns] += _sums(np.abs(values), starts)
                    low[columns] = np.minimum(low[columns], _least(values, starts))
                    high[columns] = np.maximum(high[columns], -_least(-values, starts))
                    others[columns] |= _sums((values != 0) & (values != 1), starts) > 0
                    broken[columns] |= _sums(values != np.floor(values), starts) > 0
        rows = int(summed(np.array([sum(table.number for table in tables)]), share)[0])
        filled, total, size = (summed(one, share) for one in (filled, total, size))
        low, high = each_of(low, share).min(0), each_of(high, share).max(0)
        others, broken = (each_of(one, share).max(0) for one in (others, broken))
        absent = filled < rows  # a value that is not stored is a zero
        low = np.where(absent, np.minimum(low, 0), low)
        high = np.where(absent, np.maximum(high, 0), high)
        return cls(rows, filled, low, high, total, size, ~others, ~broken)


def _parts(block: Any) -> Iterator[tuple[Any, Doubles, Any]]:
    """Yields columns, their values, and where each column's values begin (None: a dense block)."""
    if not scipy.sparse.issparse(block):
        yield slice(None), np.asarray(block, np.float64), None
        return
    csc = block.tocsc()
    starts = csc.indptr[:-1]
    some = np.flatnonzero(np.diff(csc.indptr))
    if len(some):
        yield some, csc.data.astype(np.float64), starts[some]


def _sums(values: Any, starts: Any) -> Doubles:
    found: Doubles = (
        values.sum(0, dtype=np.float64)
        if starts is None
        else np.add.reduceat(values.astype(np.float64), starts)
    )
    return found


def _least(values: Any, starts: Any) -> Doubles:
    found: Doubles = values.min(0) if starts is None else np.minimum.reduceat(values, starts)
    return found


@dataclass(frozen=True)
class Moments:
    """Mean, deviation and kurtosis of columns; a normal column has kurtosis 3."""

    mean: Doubles
    deviation: Doubles
    kurtosis: Doubles

    @classmethod
    def of(
        cls,
        tables: Sequence[Rows],
        columns: npt.NDArray[np.int64],
        unit: Doubles,
        near: Doubles,
        share: Share = ALONE,
    ) -> "Moments":
        """Reads some columns once.

        Args:
            tables: the rows.
            columns: the columns.
            unit: of each column: see `logarithm`; 0 means no logarithm.
            near: a number near the mean of each column: sums of powers are taken around it.
            share: of several processes, each of which has other rows.
        """
        sums, rows = np.zeros((4, len(columns))), 0
        height = max(1, _BLOCK // max(1, len(columns)))
        for table in tables:
            rows += table.number
            for block in table.blocks(height):
                some = block[:, columns]
                dense = some.toarray() if scipy.sparse.issparse(some) else some
                apart = logarithm(np.asarray(dense, np.float64), unit) - near
                power = np.ones_like(apart)
                for order in range(4):
                    power *= apart
                    sums[order] += power.sum(0)
        rows = int(summed(np.array([rows]), share)[0])
        first, second, third, fourth = summed(sums, share) / rows
        variance = np.maximum(second - first**2, 0)
        central = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
        squared = np.where(variance > 0, variance, 1) ** 2
        return cls(near + first, np.sqrt(variance), np.maximum(central, 0) / squared)


def logarithm(values: Doubles, unit: Doubles) -> Doubles:
    """Returns sign(x) log(1 + |x| / unit); where the unit is 0, x as it is."""
    found: Doubles = np.log1p(np.abs(values) / np.where(unit > 0, unit, 1)) * np.sign(values)
    return np.where(unit > 0, found, values)


def each_of(array: npt.NDArray[Any], share: Share) -> npt.NDArray[Any]:
    """Returns the arrays of all processes, ``[world, *shape]``; all must have one shape."""
    flat = torch.from_numpy(np.ascontiguousarray(array).view(np.uint8))
    every = gather_tables(flat, share).numpy()
    return every.view(array.dtype).reshape(share.world, *array.shape)


def summed(array: npt.NDArray[Any], share: Share) -> npt.NDArray[Any]:
    """Returns the sum of the arrays of all processes, in the order of ranks."""
    found: npt.NDArray[Any] = each_of(array, share).sum(0)
    return found
