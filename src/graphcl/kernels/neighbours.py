r"""Neighbours drawn at random, the same number for every node.

With replacement, each slot of a node of degree :math:`d` holds its neighbour number
:math:`\lfloor r d / 2^{32} \rfloor` for a 32-bit draw :math:`r`. Without replacement, the slots
hold every neighbour once if :math:`d \le f`, and otherwise a uniform set of :math:`f` neighbours,
drawn by Floyd's method.

With weights and replacement, neighbours are drawn in proportion to the weights of the edges. Entry
e of a row has the threshold :math:`\lceil 2^{32} (w_1 + \dots + w_e) / \sum w \rceil`. A 32-bit
draw r selects the first entry whose threshold is above r. Thresholds are integers, so CPU and GPU
agree, and equal weights give the draws of an unweighted graph.

The draw of a slot is a function of the rank that its node has among all nodes that are drawn for,
so the result does not depend on the device, the number of threads, or on who draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from graphcl.kernels.adjacency import self_weights
from graphcl.kernels.buffers import borrow
from graphcl.kernels.counter import Keys, draw, draw_word, stream_key
from graphcl.kernels.parallel import parallel, prange

_NONE = np.empty(0, dtype=np.int64)
DAMAGED = -2


class Neighbours(NamedTuple):
    """Neighbours that were drawn for n nodes.

    Attributes:
        nodes: their numbers, ``[n · fan_out]`` int64, those of a node side by side. An empty slot
            holds the node itself, or 0 between two types.
        entries: the numbers of their CSR entries, likewise: −1 in an empty slot, `DAMAGED` in the
            slots of a row whose pointers lead out of the entries.
        degree: of each of the n nodes, ``[n]`` int64.
    """

    nodes: Tensor
    entries: Tensor
    degree: Tensor


def draw_neighbours(
    indptr: Tensor,
    indices: Tensor,
    nodes: Tensor,
    ranks: Tensor | None = None,
    *,
    fan_out: int,
    key: Keys,
    replace: bool = True,
    limits: Tensor | None = None,
    first: int = 0,
    within: bool = True,
) -> Neighbours:
    """Draws `fan_out` neighbours of each of `nodes`.

    Nothing outside the arrays is read, whatever the pointers are.

    Args:
        indptr: CSR row pointers, int64, of all nodes or of a range of them.
        indices: CSR column indices, int64; on a CPU also int32.
        nodes: node numbers, ``[n]``, which may repeat.
        ranks: decide the draws of each of them, ``[n]``; None: 0 … n − 1.
        fan_out: slots per node.
        key: the stream of draws.
        replace: whether a neighbour can be drawn twice.
        limits: from `thresholds`, to draw by weight, with replacement.
        first: the node of the first row.
        within: whether neighbours are of the type of `nodes`.
    """
    ranks = torch.arange(len(nodes), device=nodes.device) if ranks is None else ranks
    if nodes.device.type != "cpu":
        return draw_neighbours_reference(
            indptr, indices, nodes, ranks, fan_out=fan_out, key=key, replace=replace,
            limits=limits, first=first, within=within,
        )  # fmt: skip
    drawn, entries = torch.empty(2, len(nodes) * fan_out, dtype=torch.int64)
    by_weight = _NONE if limits is None else limits.numpy()
    arrays = (one.numpy() for one in (indptr, indices, nodes, ranks))
    words = (np.uint32(int(word)) for word in key)
    _draw(
        *arrays, by_weight, first, within, fan_out, replace, *words, drawn.numpy(), entries.numpy()
    )
    return Neighbours(drawn, entries, indptr[nodes - first + 1] - indptr[nodes - first])


def draw_neighbours_reference(
    indptr: Tensor,
    indices: Tensor,
    nodes: Tensor,
    ranks: Tensor | None = None,
    *,
    fan_out: int,
    key: Keys,
    replace: bool = True,
    limits: Tensor | None = None,
    first: int = 0,
    within: bool = True,
) -> Neighbours:
    """`draw_neighbours` in plain tensor operations, on any device, for pointers that are whole."""
    ranks = torch.arange(len(nodes), device=nodes.device) if ranks is None else ranks
    start = indptr[nodes - first][:, None]
    degree = indptr[nodes - first + 1][:, None] - start
    slots = torch.arange(fan_out, device=nodes.device)
    draws = draw(ranks[:, None] * fan_out + slots, key)
    filled = (degree > 0).expand_as(draws) if replace else slots < degree
    if not replace:
        places = start + _floyd(draws, degree)
    elif limits is None:
        places = start + ((draws * degree) >> 32)
    else:
        places = _bisected(limits, draws, start.expand_as(draws), degree)
    entries = torch.where(filled, places, -1)
    itself = nodes[:, None] if within else torch.zeros_like(nodes)[:, None]
    # An empty slot reads entry 0 of the graph, if there is one, and discards it.
    found = indices[entries.clamp(min=0)].long() if len(indices) else torch.zeros_like(entries)
    drawn = torch.where(filled, found, itself)
    return Neighbours(drawn.view(-1), entries.view(-1), degree[:, 0])


def sample_levels(
    indptr: Tensor, indices: Tensor, nodes: Tensor, *, fan_outs: Sequence[int], seed: int
) -> list[Tensor]:
    """Returns `nodes`, drawn neighbours of them, neighbours of these, and so on."""
    levels = [nodes]
    for hop, fan_out in enumerate(fan_outs):
        key = stream_key(seed, "neighbours", hop)
        levels.append(draw_neighbours(indptr, indices, levels[-1], fan_out=fan_out, key=key).nodes)
    return levels


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


def _bisected(limits: Tensor, draws: Tensor, start: Tensor, degree: Tensor) -> Tensor:
    """Returns the first entry of each row whose threshold is above the draw."""
    low, high = start, start + degree
    for _ in range(len(limits).bit_length()):  # no row is longer; its length is not asked of a GPU
        middle = (low + high) // 2
        above = limits[middle.clamp(max=max(len(limits) - 1, 0))] > draws
        open_ = low < high
        high = torch.where(open_ & above, middle, high)
        low = torch.where(open_ & ~above, middle + 1, low)
    return low


@parallel
def _draw(  # type: ignore[no-untyped-def]
    indptr, indices, nodes, ranks, limits, first, within, fan_out, replace, word_0, word_1,
    drawn, entries,
):  # fmt: skip
    for row in prange(nodes.shape[0]):
        node = nodes[row]
        start, stop = indptr[node - first], indptr[node - first + 1]
        degree = stop - start
        damaged = start < 0 or degree < 0 or stop > indices.shape[0]
        slots = entries[row * fan_out : (row + 1) * fan_out]
        for slot in range(fan_out):
            word = np.int64(draw_word(np.uint32(ranks[row] * fan_out + slot), word_0, word_1))
            if damaged:
                slots[slot] = DAMAGED
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
            itself = node if within else 0
            drawn[row * fan_out + slot] = indices[slots[slot]] if slots[slot] >= 0 else itself


@dataclass(frozen=True)
class EdgeWeights:
    """A relation's edge weights, prepared for sampling.

    With replacement, neighbours are drawn in proportion to their weights and count equally. Without
    replacement, they are drawn uniformly and count by their relative weights.

    Attributes:
        limits: with replacement, the module's thresholds, ``[entries]``; else None.
        relative: without, the ratio of each weight to the mean weight of its row; else None.
    """

    limits: Tensor | None = None
    relative: Tensor | None = None

    @classmethod
    def of(cls, indptr: Any, weight: Any, *, replace: bool, device: torch.device) -> Self:
        """Prepares the weights of CSR entries."""
        if replace:
            return cls(limits=thresholds(indptr, weight).to(device))
        pointers, weights = borrow(indptr), borrow(weight)
        means = torch.repeat_interleave(self_weights(pointers, weights), pointers.diff())
        return cls(relative=(weights / means).to(device))


def thresholds(indptr: Any, weight: Any) -> Tensor:
    """Returns the module's thresholds, ``[entries]`` int64, for a positive weight per entry."""
    limits = np.empty(len(weight), dtype=np.int64)
    _thresholds(np.asarray(indptr), np.asarray(weight), limits)
    return torch.from_numpy(limits)


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
