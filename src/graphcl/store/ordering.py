"""Orders the nodes of a store for its parts: where each node goes, and its new number.

The orders are ``neighbours``, which brings neighbours together; ``hash``, which spreads nodes
evenly whatever they are; and ``as-is``, which leaves the numbers and cuts equal ranges.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.kernels.placing import (
    NOWHERE,
    number_by_part,
    place_by_hash,
    place_by_neighbours,
)

PASSES = 10  # over the edges for ``neighbours``; later ones change little
SLACK = 0.05  # by how much a part may exceed an equal share, so that nodes can move
BLOCK_BYTES = 1 << 24  # of entries or features that are moved at a time
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Numbering:
    """The new numbers of all nodes.

    Attributes:
        starts: the first number of each part, and the number of nodes at the end.
        numbers: the new number of each node; None if numbers stay.
    """

    starts: Array
    numbers: Array | None

    def of_rows(self, rows: slice) -> Array:
        """Returns the new numbers of a range of nodes."""
        if self.numbers is None:
            return np.arange(rows.start, rows.stop)
        return np.asarray(self.numbers[rows], dtype=np.int64)

    def of(self, nodes: Array) -> Array:
        """Returns the new numbers of some nodes."""
        found = nodes if self.numbers is None else self.numbers[nodes]
        return np.asarray(found, dtype=np.int64)

    def owners(self, numbers: Array) -> Array:
        """Returns the part of each new number."""
        return np.searchsorted(self.starts, numbers, side="right") - 1


def order_types(
    sizes: Sequence[int],
    edges: Callable[[], Mapping[str, Any]],
    parts: int,
    order: str,
    folder: Path,
) -> list[Numbering]:
    """Decides which part each node belongs to, and numbers the nodes of each type part by part.

    Args:
        sizes: the number of nodes of each type.
        edges: called for the order ``neighbours``; returns `indptr` and `indices` of the nodes of
            all types, one type after the other.
        parts: how many, at most as many as nodes of all types. A part may lack nodes of a type.
        order: one of the three above.
        folder: for temporary files without a name.
    """
    if order == "as-is":
        return [Numbering(_starts(_equal(size, parts)), None) for size in sizes]
    placed = scratch(sum(sizes), np.int32, folder)
    if order == "hash":
        place_by_hash(placed, parts)
        held = _counted(placed, parts)
    else:
        held = _by_neighbours(edges(), parts, placed)
    _fill_empty(placed, held)
    found, first = [], 0
    for size in sizes:
        own = placed[first : first + size]
        starts = _starts(_counted(own, parts))
        numbers = scratch(size, np.int32 if size < 1 << 31 else np.int64, folder)
        number_by_part(own, starts, numbers)
        found.append(Numbering(starts, numbers))
        first += size
    return found


def _equal(count: int, parts: int) -> Array:
    each, more = divmod(count, parts)
    return np.full(parts, each) + (np.arange(parts) < more)


def _counted(placed: Array, parts: int) -> Array:
    """Returns how many nodes each part has."""
    sizes = np.zeros(parts, dtype=np.int64)
    for rows in slices(len(placed), BLOCK_BYTES // 8):
        sizes += np.bincount(placed[rows], minlength=parts)
    return sizes


def _by_neighbours(fields: Mapping[str, Any], parts: int, placed: Array) -> Array:
    indptr, indices = fields["indptr"], fields["indices"]
    sizes, num_nodes = np.zeros(parts, dtype=np.int64), len(placed)
    capacity = max(-(-num_nodes // parts), int(num_nodes / parts * (1 + SLACK)))
    if capacity * parts == num_nodes:
        capacity += 1  # no node could move
    for rows in slices(num_nodes, BLOCK_BYTES // 4):
        placed[rows] = NOWHERE
    for number in range(PASSES):
        for rows in row_blocks(indptr):
            local, entries = entries_of(indptr, rows)
            block = np.asarray(indices[entries])
            options = {"first": rows.start, "capacity": capacity, "again": number > 0}
            place_by_neighbours(local, block, placed, sizes, **options)
    return sizes


def _fill_empty(placed: Array, sizes: Array) -> None:
    """Gives an empty part a node of the largest: few nodes can leave one empty."""
    for part in np.flatnonzero(sizes == 0):
        largest = int(np.argmax(sizes))
        placed[int(np.argmax(placed == largest))] = part
        sizes[largest] -= 1
        sizes[part] += 1


def entries_of(indptr: Array, rows: slice) -> tuple[Array, slice]:
    """Returns the row pointers of a block, from 0, and which entries it has."""
    pointers = np.asarray(indptr[rows.start : rows.stop + 1], dtype=np.int64)
    return pointers - pointers[0], slice(int(pointers[0]), int(pointers[-1]))


def row_blocks(indptr: Array, entry_bytes: int = 8) -> Iterator[slice]:
    """Yields ranges of rows with few enough entries, or a single row with many."""
    start, entries, last = 0, max(1, BLOCK_BYTES // entry_bytes), len(indptr) - 1
    while start < last:
        limit = min(last, start + entries)
        fits = np.searchsorted(indptr[start : limit + 1], indptr[start] + entries, side="right") - 1
        stop = max(start + 1, start + int(fits))
        yield slice(start, stop)
        start = stop


def slices(count: int, height: int) -> Iterator[slice]:
    """Yields ranges of at most `height` that make up `count`."""
    for start in range(0, count, height):
        yield slice(start, min(start + height, count))


def _starts(sizes: Array) -> Array:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def scratch(length: int, dtype: Any, folder: Path) -> Array:
    """Returns zeros in an unnamed file, which is deleted with the array."""
    if not length:
        return np.zeros(0, dtype)
    with tempfile.TemporaryFile(dir=folder) as file:
        size = length * np.dtype(dtype).itemsize
        os.posix_fallocate(file.fileno(), 0, size)  # a full disk would end the process
        return np.memmap(file, dtype=dtype, mode="r+", shape=(length,))
