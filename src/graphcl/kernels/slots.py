"""Loops that sample children over a relation and weigh them in both views, on a CPU.

`graphcl.typed_drawing` has the same in plain tensor operations. They take several times as long,
most of it for the draws. `sample_means` also takes the mean of the children's features. All kept
children of a parent have one weight then, so it is applied to their sum, and of a level whose
children have no children nothing else need be stored.
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
    ranks: Tensor,
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
        ranks: the number of each parent in its level of the whole batch, which decides its draws.
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
    parts = (indptr, indices, *behind, nodes, places, ranks)
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
    indptr, indices, entries, edge_ids, nodes, places, ranks, fan_out,
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
            drawn = (ranks[row] - row) * fan_out + slot
            word = np.int64(draw_word(np.uint32(drawn), key_0, key_1))
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


class Means(NamedTuple):
    """Where `sample_means` writes, and which features it reads.

    Attributes:
        x: features of the senders, ``[senders, P]`` float32.
        features: their stream.
        feature_drop: probability that a feature is zero.
        own: the parents' own perturbed features, ``[2, n, P]``, if they are in their means.
        out: the means, ``[2, n, P]``; may be some columns of a wider table.
    """

    x: Tensor
    features: Key
    feature_drop: float
    own: Tensor
    out: Tensor


def sample_means(
    indptr: Tensor,
    indices: Tensor,
    entries: Tensor | None,
    edge_ids: Tensor | None,
    nodes: Tensor,
    places: Tensor,
    ranks: Tensor,
    means: Means,
    *,
    fan_out: int,
    edge_drop: float,
    within: bool,
    key: Key,
    edges: Key,
    stored: bool,
) -> Slots | None:
    """Does what `sample_slots` and `graphcl.kernels.gather_rows` do, and writes the means.

    The arguments are those of `sample_slots`. Unless the children are `stored`, None is returned.
    """
    count = len(nodes) * fan_out if stored else 0
    nothing = torch.empty(0, dtype=torch.int64)
    found = Slots(
        torch.empty(count, dtype=torch.int64),
        nothing,
        torch.empty(2, count),
        torch.empty(2, len(nodes) if stored else 0, 1),
    )
    behind = [nothing if part is None else part for part in (entries, edge_ids)]
    parts = (indptr, indices, *behind, nodes, places, ranks)
    words = [np.uint32(word) for word in (*key, *edges)]
    limits = [np.uint32(threshold(rate)) for rate in (edge_drop, means.feature_drop)]
    loop = _means_small if len(nodes) * fan_out * means.x.shape[1] < SMALL else _means
    loop(
        *(part.numpy() for part in parts),
        fan_out,
        *words,
        limits[0],
        within,
        stored,
        *(part.numpy() for part in (found.nodes, found.weights, found.own)),
        *(part.numpy() for part in (means.x, means.own[0], means.own[1])),
        *(part.numpy() for part in (means.out[0], means.out[1])),
        *(np.uint32(word) for word in means.features),
        limits[1],
    )
    return found if stored else None


def _sample_means(  # type: ignore[no-untyped-def]
    indptr, indices, entries, edge_ids, nodes, places, ranks, fan_out,
    key_0, key_1, edge_0, edge_1, limit, within, stored, children, weights, own,
    x, own_0, own_1, out_0, out_1, feature_0, feature_1, feature_limit,
):  # fmt: skip
    low, half, zero = np.uint32(0xFFFF), np.uint32(16), np.float32(0)
    nothing = np.uint32(0x10000)  # a limit above every half of a draw: all features are dropped
    mapped, paired = entries.shape[0] > 0, edge_ids.shape[0] > 0
    width, parents = x.shape[1], nodes.shape[0]
    scale = np.float32(65536 / (65536 - np.int64(feature_limit)))
    self_weight = np.float32(1 if within else 0)
    for block in prange(-(-parents // 64)):
        first, last = block * 64, min(block * 64 + 64, parents)
        sums = np.zeros((2, width + 16), np.float32)  # as in `gather_mean`: apart in memory
        sum_0, sum_1 = sums[0], sums[1]
        senders, states = np.empty(64 * fan_out, np.int64), np.zeros(64 * fan_out, np.uint8)
        degrees = np.empty(64, np.int64)
        # Draws before sums: one after the other, each row would wait for its pointers from memory.
        for row in range(first, last):
            start = indptr[nodes[row]]
            degree = indptr[nodes[row] + 1] - start
            degrees[row - first] = degree
            seed_0 = draw_long_word(places[row], edge_0, edge_1)
            seed_1 = draw_long_word(places[row], edge_1, edge_0)
            for slot in range(fan_out if degree > 0 else 0):
                drawn = ranks[row] * fan_out + slot
                word = np.int64(draw_word(np.uint32(drawn), key_0, key_1))
                place = start + ((word * degree) >> 32)
                number = entries[place] if mapped else place
                edge = edge_ids[number] if paired else number
                bits = draw_long_word(edge, seed_0, seed_1)
                at = (row - first) * fan_out + slot
                senders[at] = indices[place]
                states[at] = (np.uint32(bits & low) >= limit) + 2 * (
                    np.uint32(bits >> half) >= limit
                )
        for row in range(first, last):
            degree = degrees[row - first]
            each = np.float32(degree / fan_out)
            node_0 = draw_long_word(places[row], feature_0, feature_1)
            node_1 = draw_long_word(places[row], feature_1, feature_0)
            kept_0 = kept_1 = 0
            for at in range((row - first) * fan_out, (row - first + 1) * fan_out):
                state = states[at]
                if state == 0:
                    continue
                node = senders[at]
                in_0, in_1 = state & 1, state >> 1
                kept_0 += in_0
                kept_1 += in_1
                # One loop over the columns serves both views, also if one of them lacks the edge.
                limit_0 = feature_limit if in_0 else nothing
                limit_1 = feature_limit if in_1 else nothing
                word_0 = draw_long_word(node, node_0, node_1)
                word_1 = draw_long_word(node, node_1, node_0)
                features = x[node]
                for column in range(width):
                    bits = draw_word(np.uint32(column), word_0, word_1)
                    value = features[column]
                    sum_0[column] += value if np.uint32(bits & low) >= limit_0 else zero
                    sum_1[column] += value if np.uint32(bits >> half) >= limit_1 else zero
            total_0, total_1 = self_weight + each * kept_0, self_weight + each * kept_1
            inverse_0 = np.float32(1 / total_0) if total_0 > zero else zero
            inverse_1 = np.float32(1 / total_1) if total_1 > zero else zero
            factor_0, factor_1 = scale * each * inverse_0, scale * each * inverse_1
            mean_0, mean_1 = out_0[row], out_1[row]
            if within:
                for column in range(width):
                    mean_0[column] = sum_0[column] * factor_0 + own_0[row, column] * inverse_0
                    mean_1[column] = sum_1[column] * factor_1 + own_1[row, column] * inverse_1
            else:
                for column in range(width):
                    mean_0[column] = sum_0[column] * factor_0
                    mean_1[column] = sum_1[column] * factor_1
            sum_0[:] = zero
            sum_1[:] = zero
            if stored:
                own[0, row, 0], own[1, row, 0] = inverse_0, inverse_1
                for slot in range(fan_out):
                    at = (row - first) * fan_out + slot
                    full = degree > 0
                    children[row * fan_out + slot] = senders[at] if full else 0
                    weights[0, row * fan_out + slot] = each * inverse_0 * (states[at] & 1)
                    weights[1, row * fan_out + slot] = each * inverse_1 * (states[at] >> 1)


_means, _means_small = parallel(_sample_means), serial(_sample_means)
