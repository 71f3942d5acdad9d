r"""Neighbours drawn at random, the same number for every node.

With replacement, each slot of a node of degree :math:`d` holds its neighbour number
:math:`\lfloor r d / 2^{32} \rfloor` for a 32-bit draw :math:`r`. Without replacement, the slots
hold every neighbour once if :math:`d \le f`, and otherwise a uniform set of :math:`f` neighbours,
drawn by Floyd's method. An empty slot holds the node itself.

`EdgeWeights` draws in proportion to the weights of the edges, with replacement. Entry e of a row
has the threshold :math:`\lceil 2^{32} (w_1 + \dots + w_e) / \sum w \rceil`. A 32-bit draw r selects
the first entry whose threshold is above r. Thresholds are integers, so CPU and GPU agree, and equal
weights give the draws of `sample_neighbours`.

The draw of a slot is a function of its position, so the result does not depend on the device or the
number of threads.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from graphcl.kernels.adjacency import self_weights
from graphcl.kernels.buffers import borrow
from graphcl.kernels.counter import Key, draw, draw_word, positions
from graphcl.kernels.parallel import parallel, prange


def sample_neighbours(
    indptr: Tensor, indices: Tensor, nodes: Tensor, *, fan_out: int, replace: bool, key: Key
) -> Tensor:
    """Returns `fan_out` neighbours of each of `nodes`, ``[len(nodes) · fan_out]``.

    Args:
        indptr: CSR row pointers, int64, on the same device as the other tensors.
        indices: CSR column indices, int64; on a CPU also int32.
        nodes: node numbers, which may repeat.
        fan_out: slots per node.
        replace: whether a neighbour can be drawn twice.
        key: the stream of draws.
    """
    if nodes.device.type != "cpu":
        return sample_neighbours_reference(
            indptr, indices, nodes, fan_out=fan_out, replace=replace, key=key
        )
    children = torch.empty(len(nodes) * fan_out, dtype=torch.int64)
    arrays = (indptr.numpy(), indices.numpy(), nodes.numpy())
    _sample(*arrays, fan_out, replace, *map(np.uint32, key), children.numpy())
    return children


def sample_neighbours_reference(
    indptr: Tensor, indices: Tensor, nodes: Tensor, *, fan_out: int, replace: bool, key: Key
) -> Tensor:
    """`sample_neighbours` in plain tensor operations, on any device."""
    start = indptr[nodes][:, None]
    degree = indptr[nodes + 1][:, None] - start
    draws = draw(positions(len(nodes) * fan_out, nodes.device), key).view(-1, fan_out)
    if replace:
        offsets = (draws * degree) >> 32
        filled = (degree > 0).expand(-1, fan_out)
    else:
        offsets = _floyd(draws, degree)
        filled = torch.arange(fan_out, device=nodes.device) < degree
    # An empty slot reads entry 0 of the graph, if there is one, and discards it.
    place = torch.where(filled, start + offsets, 0)
    found = indices[place] if len(indices) else torch.zeros_like(place)
    return torch.where(filled, found, nodes[:, None]).view(-1)


def _floyd(draws: Tensor, degree: Tensor) -> Tensor:
    """Floyd's method: for j = d − f … d − 1, take a random number up to j, or j if it is taken."""
    fan_out = draws.shape[1]
    offsets = torch.arange(fan_out, device=draws.device).repeat(len(draws), 1)
    many = degree[:, 0] > fan_out
    for slot in range(fan_out):
        last = degree[:, 0] - fan_out + slot
        chosen = (draws[:, slot] * (last + 1)) >> 32
        taken = (offsets[:, :slot] == chosen[:, None]).any(1)
        offsets[:, slot] = torch.where(many, torch.where(taken, last, chosen), slot)
    return offsets


@parallel
def _sample(  # type: ignore[no-untyped-def]
    indptr, indices, nodes, fan_out, replace, word_0, word_1, children
):
    for row in prange(nodes.shape[0]):
        node = nodes[row]
        start = indptr[node]
        degree = indptr[node + 1] - start
        slots = children[row * fan_out : (row + 1) * fan_out]
        first = row * fan_out
        for slot in range(fan_out):
            word = np.int64(draw_word(np.uint32(first + slot), word_0, word_1))
            if degree == 0 or (not replace and slot >= degree):
                slots[slot] = node
            elif replace:
                slots[slot] = indices[start + ((word * degree) >> 32)]
            elif degree <= fan_out:
                slots[slot] = indices[start + slot]
            else:
                last = degree - fan_out + slot
                chosen = indices[start + ((word * (last + 1)) >> 32)]
                for before in range(slot):
                    if slots[before] == chosen:
                        chosen = indices[start + last]
                        break
                slots[slot] = chosen


def draw_entries(
    indptr: Tensor,
    entries: int,
    rows: Tensor,
    places: Tensor,
    *,
    fan_out: int,
    replace: bool,
    key: Key,
    limits: Tensor | None = None,
) -> Tensor:
    """Returns which entries of a CSR `sample_neighbours` draws, for nodes from all over a level.

    On a CPU. Nothing outside `indptr` and `limits` is read, whatever the pointers are.

    Args:
        indptr: CSR row pointers of all nodes, or of some.
        entries: how many entries there are.
        rows: rows of `indptr`, ``[n]``, which may repeat.
        places: the place of each of them in its level, ``[n]``: draws depend on it.
        fan_out: slots per row.
        replace: whether an entry can be drawn twice.
        key: the stream of draws.
        limits: from `thresholds`, to draw by weight, with replacement.

    Returns:
        Numbers of entries, ``[n · fan_out]``: −1 in an empty slot, −2 in the slots of a row whose
        pointers are damaged.
    """
    drawn = torch.empty(len(rows) * fan_out, dtype=torch.int64)
    by_weight = np.empty(0, dtype=np.int64) if limits is None else limits.numpy()
    arrays = (indptr.numpy(), rows.numpy(), places.numpy(), by_weight)
    _draw_entries(*arrays, entries, fan_out, replace, *map(np.uint32, key), drawn.numpy())
    return drawn


@parallel
def _draw_entries(  # type: ignore[no-untyped-def]
    indptr, rows, places, limits, entries, fan_out, replace, word_0, word_1, drawn
):
    for row in prange(rows.shape[0]):
        start, stop = indptr[rows[row]], indptr[rows[row] + 1]
        degree = stop - start
        damaged = start < 0 or degree < 0 or stop > entries
        first = places[row] * fan_out
        slots = drawn[row * fan_out : (row + 1) * fan_out]
        for slot in range(fan_out):
            word = np.int64(draw_word(np.uint32(first + slot), word_0, word_1))
            if damaged:
                slots[slot] = -2
            elif degree == 0 or (not replace and slot >= degree):
                slots[slot] = -1
            elif replace and limits.shape[0] > 0:
                low, high = start, stop - 1
                while low < high:
                    middle = (low + high) // 2
                    if limits[middle] > word:
                        high = middle
                    else:
                        low = middle + 1
                slots[slot] = low
            elif replace:
                slots[slot] = start + ((word * degree) >> 32)
            elif degree <= fan_out:
                slots[slot] = start + slot
            else:
                last = degree - fan_out + slot
                chosen = start + ((word * (last + 1)) >> 32)
                for before in range(slot):
                    if slots[before] == chosen:
                        chosen = start + last
                        break
                slots[slot] = chosen


@dataclass(frozen=True)
class EdgeWeights:
    """A graph's edge weights, prepared for sampling.

    With replacement, neighbours are drawn in proportion to their weights and count equally. Without
    replacement, they are drawn uniformly and count by their relative weights.

    Attributes:
        limits: with replacement, the module's thresholds, ``[entries]``; else None.
        relative: without, the ratio of each weight to the mean weight of its row; else None.
        entries: without, the numbers 0 … entries − 1; else None.
    """

    limits: Tensor | None = None
    relative: Tensor | None = None
    entries: Tensor | None = None

    @classmethod
    def of(cls, indptr: Any, weight: Any, *, replace: bool, device: torch.device) -> Self:
        """Prepares the weights of a graph's CSR entries."""
        if replace:
            return cls(limits=thresholds(indptr, weight).to(device))
        pointers, weights = borrow(indptr), borrow(weight)
        means = torch.repeat_interleave(self_weights(pointers, weights), pointers.diff())
        entries = torch.arange(len(weights), device=device)
        return cls(relative=(weights / means).to(device), entries=entries)

    def sample(
        self, indptr: Tensor, indices: Tensor, nodes: Tensor, *, fan_out: int, key: Key
    ) -> tuple[Tensor, Tensor | None]:
        """Returns `fan_out` neighbours of each of `nodes`, and the weight of each; None means 1."""
        if self.limits is not None:
            drawn = sample_by_weight(indptr, indices, self.limits, nodes, fan_out=fan_out, key=key)
            return drawn, None
        assert self.entries is not None
        assert self.relative is not None
        # Entry numbers are drawn in place of neighbours: they lead to the neighbour and its weight.
        places = sample_neighbours(
            indptr, self.entries, nodes, fan_out=fan_out, replace=False, key=key
        )
        parents = nodes.repeat_interleave(fan_out)
        degree = (indptr[nodes + 1] - indptr[nodes])[:, None]
        filled = (torch.arange(fan_out, device=nodes.device) < degree).view(-1)
        if not len(self.entries):
            return parents, None
        places = torch.where(filled, places, 0)
        return torch.where(filled, indices[places], parents), self.relative[places]


def thresholds(indptr: Any, weight: Any) -> Tensor:
    """Returns the module's thresholds, ``[entries]`` int64, for a positive weight per entry."""
    limits = np.empty(len(weight), dtype=np.int64)
    _thresholds(np.asarray(indptr), np.asarray(weight), limits)
    return torch.from_numpy(limits)


def sample_by_weight(
    indptr: Tensor, indices: Tensor, limits: Tensor, nodes: Tensor, *, fan_out: int, key: Key
) -> Tensor:
    """`sample_neighbours` by weight, with replacement; `limits` are from `thresholds`."""
    if nodes.device.type != "cpu":
        return sample_by_weight_reference(indptr, indices, limits, nodes, fan_out=fan_out, key=key)
    children = torch.empty(len(nodes) * fan_out, dtype=torch.int64)
    arrays = (indptr.numpy(), indices.numpy(), limits.numpy(), nodes.numpy())
    _sample_by_weight(*arrays, fan_out, *map(np.uint32, key), children.numpy())
    return children


def sample_by_weight_reference(
    indptr: Tensor, indices: Tensor, limits: Tensor, nodes: Tensor, *, fan_out: int, key: Key
) -> Tensor:
    """`sample_by_weight` in plain tensor operations, on any device: a bisection in every slot."""
    draws = draw(positions(len(nodes) * fan_out, nodes.device), key).view(-1, fan_out)
    start = indptr[nodes][:, None].expand(-1, fan_out)
    stop = indptr[nodes + 1][:, None].expand(-1, fan_out)
    low, high = start, stop
    longest = int(indptr.diff().max()) if len(indptr) > 1 else 0
    for _ in range(longest.bit_length()):
        middle = (low + high) // 2
        above = limits[middle.clamp(max=max(len(limits) - 1, 0))] > draws
        open_ = low < high
        high = torch.where(open_ & above, middle, high)
        low = torch.where(open_ & ~above, middle + 1, low)
    filled = stop > start
    found = indices[torch.where(filled, low, 0)] if len(indices) else low
    return torch.where(filled, found, nodes[:, None]).view(-1)


@parallel
def _thresholds(indptr, weight, limits):  # type: ignore[no-untyped-def]
    for row in prange(indptr.shape[0] - 1):
        start, stop = indptr[row], indptr[row + 1]
        total = 0.0
        for entry in range(start, stop):
            total += weight[entry]
        before = 0.0
        for entry in range(start, stop):
            before += weight[entry]
            limits[entry] = np.int64(np.ceil(before * 4294967296.0 / total))
        if stop > start:  # exactly 2^32, whatever the rounding: every draw finds an entry
            limits[stop - 1] = 4294967296


@parallel
def _sample_by_weight(  # type: ignore[no-untyped-def]
    indptr, indices, limits, nodes, fan_out, word_0, word_1, children
):
    for row in prange(nodes.shape[0]):
        node = nodes[row]
        start, stop = indptr[node], indptr[node + 1]
        for slot in range(row * fan_out, (row + 1) * fan_out):
            if start == stop:
                children[slot] = node
                continue
            word = np.int64(draw_word(np.uint32(slot), word_0, word_1))
            low, high = start, stop - 1
            while low < high:
                middle = (low + high) // 2
                if limits[middle] > word:
                    high = middle
                else:
                    low = middle + 1
            children[slot] = indices[low]
