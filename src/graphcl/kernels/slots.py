"""One loop that samples children over a relation and weighs them in both views, on a CPU.

`graphcl.typed_sampling` has the same in plain tensor operations. They take several times as long,
most of it for the draws.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphcl.kernels.counter import Key, draw_long_word, draw_word, threshold
from graphcl.kernels.parallel import parallel, prange, serial

SMALL = 1 << 17  # slots; to start a second thread takes longer than so many


class Slots(NamedTuple):
    """Sampled children of n parents.

    Attributes:
        nodes: their numbers, ``[n · fan_out]``, those of a parent side by side.
        numbers: the relation's entry of each.
        weights: their weights in their parent's mean in both views, ``[2, n · fan_out]``.
        own: the parents' own weights in it, ``[2, n, 1]``.
    """

    nodes: Tensor
    numbers: Tensor
    weights: Tensor
    own: Tensor


def sample_slots(
    indptr: Tensor,
    indices: Tensor,
    entries: Tensor | None,
    edge_ids: Tensor | None,
    nodes: Tensor,
    places: Tensor,
    *,
    fan_out: int,
    edge_drop: float,
    within: bool,
    key: Key,
    edges: Key,
) -> Slots:
    """Draws `fan_out` children of each node with replacement, and drops edges in both views.

    Args:
        indptr: pointers of the direction's CSR.
        indices: the senders.
        entries: the relation's entry behind each place; None: the place itself.
        edge_ids: the edge behind each entry; None: the entry itself.
        nodes: the parents, ``[n]``.
        places: the place in the batch of each parent's seed node.
        fan_out: children per parent.
        edge_drop: probability that an edge is absent.
        within: whether a parent is in its own mean, with weight 1.
        key: the stream that children are drawn from.
        edges: the stream of the edges.
    """
    count = len(nodes) * fan_out
    nothing = torch.empty(0, dtype=torch.int64)
    found = Slots(
        torch.empty(count, dtype=torch.int64),
        torch.empty(count, dtype=torch.int64),
        torch.empty(2, count),
        torch.empty(2, len(nodes), 1),
    )
    behind = [nothing if part is None else part for part in (entries, edge_ids)]
    parts = (indptr, indices, *behind, nodes, places)
    words = [np.uint32(word) for word in (*key, *edges)]
    loop = _sample_small if count < SMALL else _sample
    loop(
        *(part.numpy() for part in parts),
        fan_out,
        *words,
        np.uint32(threshold(edge_drop)),
        within,
        *(part.numpy() for part in found),
    )
    return found


def _sample_slots(  # type: ignore[no-untyped-def]
    indptr, indices, entries, edge_ids, nodes, places, fan_out,
    key_0, key_1, edge_0, edge_1, limit, within, children, numbers, weights, own,
):  # fmt: skip
    low, half, zero = np.uint32(0xFFFF), np.uint32(16), np.float32(0)
    mapped, paired = entries.shape[0] > 0, edge_ids.shape[0] > 0
    for row in prange(nodes.shape[0]):
        start = indptr[nodes[row]]
        degree = indptr[nodes[row] + 1] - start
        each = np.float32(degree / fan_out)
        seed_0 = draw_long_word(places[row], edge_0, edge_1)
        seed_1 = draw_long_word(places[row], edge_1, edge_0)
        total_0 = total_1 = np.float32(1 if within else 0)
        for slot in range(row * fan_out, (row + 1) * fan_out):
            if degree == 0:
                children[slot], numbers[slot] = 0, 0
                weights[0, slot], weights[1, slot] = zero, zero
                continue
            word = np.int64(draw_word(np.uint32(slot), key_0, key_1))
            place = start + ((word * degree) >> 32)
            number = entries[place] if mapped else place
            edge = edge_ids[number] if paired else number
            bits = draw_long_word(edge, seed_0, seed_1)
            children[slot], numbers[slot] = indices[place], number
            w_0 = each if np.uint32(bits & low) >= limit else zero
            w_1 = each if np.uint32(bits >> half) >= limit else zero
            weights[0, slot], weights[1, slot] = w_0, w_1
            total_0 += w_0
            total_1 += w_1
        inverse_0 = np.float32(1) / total_0 if total_0 > zero else zero
        inverse_1 = np.float32(1) / total_1 if total_1 > zero else zero
        own[0, row, 0], own[1, row, 0] = inverse_0, inverse_1
        for slot in range(row * fan_out, (row + 1) * fan_out):
            weights[0, slot] *= inverse_0
            weights[1, slot] *= inverse_1


_sample, _sample_small = parallel(_sample_slots), serial(_sample_slots)
