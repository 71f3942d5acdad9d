"""Places nodes into parts so that neighbours come together, in passes over the edges.

Every pass streams over the nodes in order. The first is linear deterministic greedy (Stanton and
Kliot, 2012): a node goes where most of its neighbours already are, less where it is full. Later
passes place every node again by where its neighbours are now (restreaming, Nishimura and Ugander,
2013): each is one round of label propagation among parts of bounded size. Nothing is random.
"""

import numpy as np

from graphcl.arrays import Array
from graphcl.kernels.counter import draw_long_word
from graphcl.kernels.parallel import parallel, prange, serial

NOWHERE = -1  # the part of a node that is not placed yet
_KEY = (np.uint32(0x9E3779B9), np.uint32(0x85EBCA6B))  # of the hash; any two words do


def place_by_hash(placed: Array, parts: int) -> None:
    """Places all nodes by a hash of their numbers, in place; sizes differ as chance has it."""
    _hashed(parts, *_KEY, placed)


def place_by_neighbours(
    indptr: Array,
    indices: Array,
    placed: Array,
    sizes: Array,
    *,
    first: int,
    capacity: int,
    again: bool,
) -> None:
    """Places the nodes of a block of rows, in place.

    Args:
        indptr: pointers of the block's rows, from 0.
        indices: their entries, numbers of the whole graph.
        placed: the part of every node of the graph; `NOWHERE` before the first pass.
        sizes: nodes in each part.
        first: the first node of the block.
        capacity: the most nodes in a part; all parts together have room for more than all nodes.
        again: whether this is not the first pass.
    """
    counts = np.zeros(len(sizes), dtype=np.int64)
    _place(indptr, indices, placed, sizes, counts, first, capacity, again)


@parallel
def _hashed(parts, word_0, word_1, placed):  # type: ignore[no-untyped-def]
    for row in prange(placed.shape[0]):
        word = np.int64(draw_long_word(np.int64(row), word_0, word_1))
        placed[row] = (word * parts) >> 32


@serial
def _place(  # type: ignore[no-untyped-def]
    indptr, indices, placed, sizes, counts, first, capacity, again
):
    for row in range(indptr.shape[0] - 1):
        node, start, stop = first + row, indptr[row], indptr[row + 1]
        before = placed[node]
        if before >= 0:
            sizes[before] -= 1
        for entry in range(start, stop):
            part = placed[indices[entry]]
            if part >= 0:
                counts[part] += 1
        # A node that is placed stays unless another part has more of its neighbours.
        best, most = before, np.float64(counts[before]) if before >= 0 else 0.0
        for entry in range(start, stop):
            part = placed[indices[entry]]
            if part < 0 or sizes[part] >= capacity:
                continue
            score = np.float64(counts[part])
            if not again:
                score *= 1.0 - sizes[part] / capacity
            if score > most:
                best, most = part, score
        if best < 0:  # no neighbour is placed where there is room: the emptiest part
            best = np.argmin(sizes)
        for entry in range(start, stop):
            part = placed[indices[entry]]
            if part >= 0:
                counts[part] = 0
        placed[node] = best
        sizes[best] += 1


def number_distinct(values: Array) -> tuple[Array, Array]:
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
    _number_distinct(np.ascontiguousarray(values), table, 64 - bits, found, places, count)
    return found[: count[0]].copy(), places


@serial
def _number_distinct(values, table, shift, found, places, count):  # type: ignore[no-untyped-def]
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
