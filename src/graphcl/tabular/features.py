"""The features of nodes, made in blocks from columns and the tables beside them: dense, or sparse.

Features have up to three parts, side by side: those of the node table's columns (or of a matrix),
those of tags, and vectors.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError
from graphcl.tabular.kinds import Other, encode
from graphcl.tabular.numbers import Floats, Numbers, Places
from graphcl.tabular.preparation import CATEGORY, NUMBER, Preparation
from graphcl.tabular.sources import Source

SPARSE_WIDTH = 512  # features; with fewer, features are dense whatever they hold
SPARSE_SHARE = 0.1  # of all values that are not zero: with more, features are dense
_SORTED = 1 << 22  # entries that are sorted at a time


class ArraySink(Protocol):
    """Where arrays are created: in memory, or by the writer of a store."""

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """Returns a new array of zeros, called `name`, for the caller to fill."""

    def shorten(self, name: str, length: int) -> None:
        """Cuts an array to its first `length` entries."""


class FeaturePart(Protocol):
    """Features that stand side by side with others."""

    @property
    def width(self) -> int:
        """Number of features."""

    @property
    def filled(self) -> int:
        """Number of values that are not zero, at most."""

    def fill(self, x: npt.NDArray[np.float32]) -> None:
        """Fills `x`, zeros ``[nodes, width]``."""

    def entries(self) -> Iterator["Entries"]:
        """Yields rows, columns and values that are not zero; rows ascend in each part."""


Entries = tuple[Places, Places, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class NodeFeatures:
    """The features of a node table.

    Attributes:
        preparation: what becomes of each column.
        source: the node table.
        numbers: the values of the columns of numbers, and of others that have none.
        others: the other columns, by name.
    """

    preparation: Preparation
    source: Source
    numbers: Numbers
    others: Mapping[str, Other]

    @property
    def names(self) -> list[str]:
        """The names of the features."""
        return [name for column in self.preparation.columns for name in column.features]

    @property
    def width(self) -> int:
        """Number of features."""
        return sum(len(column.features) for column in self.preparation.columns)

    @property
    def filled(self) -> int:
        """Number of values that are not zero, at most."""
        facts, entries = self.numbers.facts, 0
        for column in self.preparation.columns:
            if column.kind == NUMBER:
                place = self.numbers.place(column.name)
                absent = int(facts.absent[place]) if column.fill else 0
                entries += int(facts.filled[place]) + absent
            else:
                each = 1 if column.kind == CATEGORY else len(column.features)
                entries += facts.rows * each
        return entries

    def fill(self, x: npt.NDArray[np.float32]) -> None:
        """Fills the first columns of `x`, zeros with at least as many rows as the table."""
        place, filling = self._destinations()
        for piece in self.numbers.pieces():
            block = piece.dense(filling)
            to = place[piece.column : piece.column + piece.columns]
            rows = slice(piece.first, piece.first + piece.rows)
            if piece.columns and to[0] >= 0 and (np.diff(to) == 1).all():
                x[rows, to[0] : to[-1] + 1] = block
            else:
                x[rows, to[to >= 0]] = block[:, to >= 0]
        for first, start, block in self._encoded():
            x[first : first + len(block), start : start + block.shape[1]] = block

    def entries(self) -> Iterator[Entries]:
        """Yields rows, columns and values that are not zero; rows ascend in each part."""
        place, filling = self._destinations()
        for piece in self.numbers.pieces():
            rows, columns, values = piece.entries(filling)
            to = place[columns]
            yield rows[to >= 0], to[to >= 0], values[to >= 0]
        for first, start, block in self._encoded():
            rows, columns = np.nonzero(block)
            yield first + rows, start + columns, block[rows, columns]

    def _destinations(self) -> tuple[Places, Floats]:
        """Returns for each column of numbers its feature, or −1, and what a missing value is."""
        width = len(self.numbers.facts.total)
        place, filling = np.full(width, -1), np.zeros(width)
        start = 0
        for column in self.preparation.columns:
            if column.kind == NUMBER:
                at = self.numbers.place(column.name)
                place[at], filling[at] = start, column.fill
            start += len(column.features)
        return place, filling

    def _encoded(self) -> Iterator[tuple[int, int, npt.NDArray[np.float32]]]:
        """Yields the first row, the first feature and the features of other columns."""
        start = 0
        for column in self.preparation.columns:
            if column.kind != NUMBER:
                for first, batch in self.others[column.name].batches(column.kind):
                    block = encode(column, batch.column(0), self.preparation.arrays)
                    if not np.isfinite(block).all():
                        row, _ = np.argwhere(~np.isfinite(block))[0]
                        raise GraphError(
                            f"{self.source.name}: row {first + int(row) + 1}, column "
                            f"{column.name!r}: a value does not fit in a float32 feature"
                        )
                    yield first, start, block
            start += len(column.features)


def mostly_zeros(parts: Sequence[FeaturePart], rows: int) -> bool:
    """Returns whether features are so many, and so many of them 0, as to be sparse."""
    width = sum(part.width for part in parts)
    filled = sum(part.filled for part in parts)
    return width >= SPARSE_WIDTH and filled <= SPARSE_SHARE * rows * width


def fill_parts(parts: Sequence[FeaturePart], x: npt.NDArray[np.float32]) -> None:
    """Fills the first columns of `x`, zeros with a row for each node, with all parts in order."""
    start = 0
    for part in parts:
        part.fill(x[:, start : start + part.width])
        start += part.width


def entries_of(parts: Sequence[FeaturePart]) -> Iterator[Entries]:
    """Yields rows, columns and values of all parts that are not zero; rows ascend in each."""
    start = 0
    for part in parts:
        for rows, columns, values in part.entries():
            yield rows, start + columns, values
        start += part.width


def fill_sparse(
    into: ArraySink,
    entries: Callable[[], Iterator[Entries]],
    num_nodes: int,
) -> None:
    """Fills the arrays of a CSR matrix from entries, which are read twice, part by part.

    Args:
        into: where the arrays are created.
        entries: yields rows, columns and values; rows ascend in each part.
        num_nodes: number of rows.
    """
    indptr = into.array("x_indptr", (num_nodes + 1,), np.int64)
    for rows, _, _ in entries():
        if len(rows):
            first = int(rows[0])
            counts = np.bincount(rows - first)
            indptr[first + 1 : first + 1 + len(counts)] += counts
    np.cumsum(indptr, out=indptr)
    indices = into.array("x_indices", (int(indptr[-1]),), np.int32)
    data = into.array("x_data", (int(indptr[-1]),), np.float32)
    free = np.array(indptr[:-1])  # the next free place of each row
    for rows, columns, values in entries():
        if len(rows):
            starts = np.flatnonzero(np.diff(rows, prepend=-1))
            lengths = np.diff(starts, append=len(rows))
            rank = np.arange(len(rows)) - np.repeat(starts, lengths)
            places = free[rows] + rank
            indices[places], data[places] = columns, values
            free[rows[starts]] += lengths
    _sort_rows(indptr, indices, data)


def _sort_rows(indptr: Places, indices: Any, data: Any) -> None:
    """Sorts the columns in each row, a few rows at a time."""
    first, rows = 0, len(indptr) - 1
    while first < rows:
        last = int(np.searchsorted(indptr, indptr[first] + _SORTED, side="right")) - 1
        last = min(max(last, first + 1), rows)
        part = slice(int(indptr[first]), int(indptr[last]))
        owners = np.repeat(np.arange(last - first), np.diff(indptr[first : last + 1]))
        columns = np.asarray(indices[part])
        keys = owners * (1 << 32) + columns
        if (np.diff(keys) < 0).any():
            order = np.argsort(keys, kind="stable")
            indices[part], data[part] = columns[order], np.asarray(data[part])[order]
        first = last
