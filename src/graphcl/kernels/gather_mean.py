r"""The first layer's means on a sampled tree, for both views, without storing the tree's features.

In each view, the mean of a parent :math:`u` with children :math:`c` of weight :math:`w_c` is

.. math::
    m_u = \frac{\tilde x_u + \sum_{c\ \mathrm{kept}} w_c\, \tilde x_c}
               {1 + \sum_{c\ \mathrm{kept}} w_c},

where an edge is kept with probability 1 − `edge_drop` and :math:`\tilde x` is :math:`x` after
dropout. In the tree of one seed node, an edge and a node have the same draws wherever they occur.
At fan-outs (10, 10, 10) a batch has 1,111 feature rows per seed node and 111 means per view. Each
row is read once and perturbed for both views, and only the means are written.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphcl.kernels.buffers import block_height
from graphcl.kernels.columns import row_of
from graphcl.kernels.counter import (
    HALVES,
    Draws,
    draw_long_word,
    draw_word,
    edge_draws,
    feature_draws,
    kept,
    threshold,
)
from graphcl.kernels.floats import as_float
from graphcl.kernels.parallel import parallel, prange
from graphcl.kernels.stored_features import StoredFeatures

CHUNK_ELEMENTS = 1 << 25  # of the reference on a GPU: each int64 temporary takes 256 MB
_NONE = np.empty(0, dtype=np.int64)


class Held(NamedTuple):
    """A table that has the rows of a tree's nodes alone, and seed nodes from all over a batch.

    Attributes:
        parents: the row of each parent in the table, ``[n]`` int64.
        children: the row of each child, ``[n · fan_out]`` int64.
        places: the place in the batch of each seed node, int64; draws depend on it.
    """

    parents: Tensor
    children: Tensor
    places: Tensor


def gather_mean(
    x: Tensor | StoredFeatures,
    parents: Tensor,
    children: Tensor,
    weight: Tensor,
    *,
    draws: Draws,
    out: Tensor,
    edges: Tensor | None = None,
    held: Held | None = None,
) -> None:
    """Writes the module's means for both views into `out`.

    Args:
        x: features ``[num_nodes, P]``; on a CPU a float32 tensor, or a table in a store's type.
        parents: node numbers of one level, ``[n]``.
        children: node numbers of the next level, ``[n · fan_out]``, those of a parent side by side.
        weight: weight of each child, ``[n · fan_out]`` float32; 0 marks an empty slot.
        draws: the perturbation.
        out: ``[2, n, P]``; or ``[2, n, 2P]``, where the parents' own perturbed features follow the
            means.
        edges: if given, the draw of each child's edge is written here, ``[n · fan_out]`` int64.
        held: on a CPU: where in `x` the nodes are, if it does not have all of them, in order.
    """
    if isinstance(x, Tensor) and x.is_cuda:
        try:
            from graphcl.kernels.gather_mean_triton import gather_mean as fused
        except ImportError:
            fused = gather_mean_reference
        fused(x, parents, children, weight, draws=draws, out=out, edges=edges)
        return
    words = [np.uint32(word) for key in (draws.edges, draws.features) for word in key]
    limits = [np.uint32(threshold(drop)) for drop in (draws.edge_drop, draws.feature_drop)]
    stored = StoredFeatures(x) if isinstance(x, Tensor) else x
    tree = (parents.numpy(), children.numpy(), weight.numpy())
    own = out.shape[2] > x.shape[1]
    found = torch.empty(0, dtype=torch.int64) if edges is None else edges
    outputs = (out[0].numpy(), out[1].numpy(), found.numpy())
    moved = (_NONE,) * 3 if held is None else tuple(part.numpy() for part in held)
    _gather_mean(
        *stored.arrays(), *tree, *moved, *words, *limits, draws.first, draws.per_seed, own, *outputs
    )


def gather_mean_reference(
    x: Tensor,
    parents: Tensor,
    children: Tensor,
    weight: Tensor,
    *,
    draws: Draws,
    out: Tensor,
    edges: Tensor | None = None,
    held: Held | None = None,
) -> None:
    """`gather_mean` in plain tensor operations, in chunks of parents, on any device."""
    fan_out, width = len(children) // len(parents), x.shape[1]
    height = max(1, block_height(CHUNK_ELEMENTS) // (fan_out * width))
    for start in range(0, len(parents), height):
        rows = slice(start, min(start + height, len(parents)))
        below = slice(rows.start * fan_out, rows.stop * fan_out)
        upper, lower = parents[rows], children[below]
        positions = torch.arange(rows.start, rows.stop, device=x.device)
        places = positions // draws.per_seed
        places = draws.first + places if held is None else held.places[places]
        below_places = places.repeat_interleave(fan_out)
        drawn = edge_draws(below_places, upper.repeat_interleave(fan_out), lower, draws.edges)
        if edges is not None:
            edges[below] = drawn
        where = (upper, lower) if held is None else (held.parents[rows], held.children[below])
        own = dropped(x[where[0]], places, upper, draws)
        around = dropped(x[where[1]], below_places, lower, draws)
        for view in (0, 1):
            keep = kept(drawn, view, threshold(draws.edge_drop))
            w = torch.where(keep, weight[below], 0).view(-1, 1, fan_out)
            total = own[view] + (w @ around[view].view(-1, fan_out, width))[:, 0]
            out[view, rows, :width] = total / (1 + w.sum(2))
            if out.shape[2] > width:
                out[view, rows, width:] = own[view]


def dropped(rows: Tensor, places: Tensor, nodes: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """Returns two views of the feature rows of `nodes` after dropout, in float32."""
    bits = feature_draws(places, nodes, rows.shape[1], draws.features)
    limit = threshold(draws.feature_drop)
    scaled = rows.float() * (HALVES / (HALVES - limit))
    first_view, second_view = (torch.where(kept(bits, view, limit), scaled, 0) for view in (0, 1))
    return first_view, second_view


@parallel
def _gather_mean(  # type: ignore[no-untyped-def]
    x, column_scale, row_divisor, parents, children, weight, parent_rows, child_rows, places,
    edge_0, edge_1, feature_0, feature_1, edge_limit, feature_limit,
    first, per_seed, with_own, out_0, out_1, edges,
):  # fmt: skip
    width = column_scale.shape[0]
    fan_out = children.shape[0] // parents.shape[0]
    low, half = np.uint32(0xFFFF), np.uint32(16)
    nothing = np.uint32(0x10000)  # a limit above every half of a draw: all features are dropped
    zero = np.float32(0)
    scaled, store_edges = row_divisor.shape[0] > 0, edges.shape[0] > 0
    moved = places.shape[0] > 0
    scale = np.float32(65536 / (65536 - np.int64(feature_limit)))
    for row in prange(parents.shape[0]):
        # Not summed in `out_0` and `out_1`: they are often a multiple of 4,096 bytes apart, and
        # then each store stalls the other's load (measured: four times slower). The 16 extra
        # columns keep these two rows from such a distance at common widths.
        sums = np.zeros((2, width + 16), np.float32)
        sum_0, sum_1 = sums[0], sums[1]
        buffer = np.empty(width, np.float32)
        weight_0, weight_1 = np.float32(1), np.float32(1)
        parent = np.int64(parents[row])
        place = np.int64(places[row // per_seed]) if moved else first + row // per_seed
        seed_edge_0 = draw_long_word(place, edge_0, edge_1)
        seed_edge_1 = draw_long_word(place, edge_1, edge_0)
        seed_feature_0 = draw_long_word(place, feature_0, feature_1)
        seed_feature_1 = draw_long_word(place, feature_1, feature_0)
        for child in range(row * fan_out, (row + 1) * fan_out):
            w, node = weight[child], np.int64(children[child])
            low_node, high_node = min(parent, node), max(parent, node)
            low_0 = draw_long_word(low_node, seed_edge_0, seed_edge_1)
            low_1 = draw_long_word(low_node, seed_edge_1, seed_edge_0)
            edge = draw_long_word(high_node, low_0, low_1)
            if store_edges:
                edges[child] = edge
            in_0 = w != zero and np.uint32(edge & low) >= edge_limit
            in_1 = w != zero and np.uint32(edge >> half) >= edge_limit
            if not (in_0 or in_1):
                continue
            weight_0 += w if in_0 else zero
            weight_1 += w if in_1 else zero
            # One loop over the columns serves both views, also if only one of them has the edge.
            limit_0 = feature_limit if in_0 else nothing
            limit_1 = feature_limit if in_1 else nothing
            word_0 = draw_long_word(node, seed_feature_0, seed_feature_1)
            word_1 = draw_long_word(node, seed_feature_1, seed_feature_0)
            where = np.int64(child_rows[child]) if moved else node
            features = row_of(x, where, buffer)
            divisor = row_divisor[where] if scaled else np.float32(1)
            for column in range(width):
                bits = draw_word(np.uint32(column), word_0, word_1)
                value = as_float(features[column])
                value = (value / divisor if scaled else value) * w
                sum_0[column] += value if np.uint32(bits & low) >= limit_0 else zero
                sum_1[column] += value if np.uint32(bits >> half) >= limit_1 else zero
        word_0 = draw_long_word(parent, seed_feature_0, seed_feature_1)
        word_1 = draw_long_word(parent, seed_feature_1, seed_feature_0)
        where = np.int64(parent_rows[row]) if moved else parent
        features = row_of(x, where, buffer)
        divisor = row_divisor[where] if scaled else np.float32(1)
        mean_0, mean_1 = out_0[row], out_1[row]
        factor_0, factor_1 = scale / weight_0, scale / weight_1
        for column in range(width):
            bits = draw_word(np.uint32(column), word_0, word_1)
            value = as_float(features[column])
            value = value / divisor if scaled else value
            value_0 = value if np.uint32(bits & low) >= feature_limit else zero
            value_1 = value if np.uint32(bits >> half) >= feature_limit else zero
            mean_0[column] = (sum_0[column] + value_0) * factor_0 * column_scale[column]
            mean_1[column] = (sum_1[column] + value_1) * factor_1 * column_scale[column]
            if with_own:
                mean_0[width + column] = value_0 * scale * column_scale[column]
                mean_1[width + column] = value_1 * scale * column_scale[column]
