r"""The first layer's means on a sampled tree, for both views, without storing the tree's features.

In each view, the mean of a parent :math:`u` with children :math:`c` of weight :math:`w_c` is

.. math::
    m_u = \frac{\tilde x_u + \sum_{c\ \mathrm{kept}} w_c\, \tilde x_c}
               {1 + \sum_{c\ \mathrm{kept}} w_c},

where an edge is kept with probability 1 − `edge_drop` and :math:`\tilde x` is :math:`x` after
dropout. At fan-outs (10, 10, 10) a batch has 1,111 feature rows per seed node and 111 means per
view. Each row is read once and perturbed for both views, and only the means are written.
"""

import numpy as np
import torch
from torch import Tensor

from graphcl.kernels.buffers import block_height
from graphcl.kernels.counter import HALVES, Draws, Key, draw, draw_word, kept, row_keys, threshold
from graphcl.kernels.parallel import parallel, prange
from graphcl.kernels.stored_features import StoredFeatures, as_float

CHUNK_ELEMENTS = 1 << 25  # of the reference on a GPU: each int64 temporary takes 256 MB


def gather_mean(
    x: Tensor | StoredFeatures,
    parents: Tensor,
    children: Tensor,
    weight: Tensor,
    *,
    draws: Draws,
    out: Tensor,
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
    """
    if isinstance(x, Tensor) and x.is_cuda:
        try:
            from graphcl.kernels.gather_mean_triton import gather_mean as fused
        except ImportError:
            fused = gather_mean_reference
        fused(x, parents, children, weight, draws=draws, out=out)
        return
    words = [np.uint32(word) for key in draws[2:] for word in key]
    limits = [np.uint32(threshold(drop)) for drop in (draws.edge_drop, draws.feature_drop)]
    stored = StoredFeatures(x) if isinstance(x, Tensor) else x
    tree = (parents.numpy(), children.numpy(), weight.numpy())
    own = out.shape[2] > x.shape[1]
    _gather_mean(*stored.arrays(), *tree, *words, *limits, own, out[0].numpy(), out[1].numpy())


def gather_mean_reference(
    x: Tensor, parents: Tensor, children: Tensor, weight: Tensor, *, draws: Draws, out: Tensor
) -> None:
    """`gather_mean` in plain tensor operations, in chunks of parents, on any device."""
    fan_out, width = len(children) // len(parents), x.shape[1]
    height = max(1, block_height(CHUNK_ELEMENTS) // (fan_out * width))
    for start in range(0, len(parents), height):
        rows = slice(start, min(start + height, len(parents)))
        below = slice(rows.start * fan_out, rows.stop * fan_out)
        position = torch.arange(below.start, below.stop, device=x.device)
        edges = draw(position, draws.edges)
        own = dropped(x[parents[rows]], rows.start, draws.parents, draws.feature_drop)
        around = dropped(x[children[below]], below.start, draws.children, draws.feature_drop)
        for view in (0, 1):
            keep = kept(edges, view, threshold(draws.edge_drop))
            w = torch.where(keep, weight[below], 0).view(-1, 1, fan_out)
            total = own[view] + (w @ around[view].view(-1, fan_out, width))[:, 0]
            out[view, rows, :width] = total / (1 + w.sum(2))
            if out.shape[2] > width:
                out[view, rows, width:] = own[view]


def dropped(rows: Tensor, first: int, key: Key, feature_drop: float) -> tuple[Tensor, Tensor]:
    """Returns two views of feature rows after dropout, in float32; `first` is their first draw."""
    position = torch.arange(first, first + len(rows), device=rows.device)
    word_0, word_1 = row_keys(position, key)
    columns = torch.arange(rows.shape[1], device=rows.device)
    bits = draw(columns, (word_0[:, None], word_1[:, None]))
    limit = threshold(feature_drop)
    scaled = rows.float() * (HALVES / (HALVES - limit))
    first_view, second_view = (torch.where(kept(bits, view, limit), scaled, 0) for view in (0, 1))
    return first_view, second_view


@parallel
def _gather_mean(  # type: ignore[no-untyped-def]
    x, column_scale, row_divisor, parents, children, weight,
    edge_0, edge_1, own_0, own_1, child_0, child_1,
    edge_limit, feature_limit, with_own, out_0, out_1,
):  # fmt: skip
    width = x.shape[1]
    fan_out = children.shape[0] // parents.shape[0]
    low, half = np.uint32(0xFFFF), np.uint32(16)
    nothing = np.uint32(0x10000)  # a limit above every half of a draw: all features are dropped
    zero = np.float32(0)
    scaled = row_divisor.shape[0] > 0
    scale = np.float32(65536 / (65536 - np.int64(feature_limit)))
    for row in prange(parents.shape[0]):
        # Not summed in `out_0` and `out_1`: they are often a multiple of 4,096 bytes apart, and
        # then each store stalls the other's load (measured: four times slower). The 16 extra
        # columns keep these two rows from such a distance at common widths.
        sums = np.zeros((2, width + 16), np.float32)
        sum_0, sum_1 = sums[0], sums[1]
        weight_0, weight_1 = np.float32(1), np.float32(1)
        for child in range(row * fan_out, (row + 1) * fan_out):
            w = weight[child]
            edge = draw_word(np.uint32(child), edge_0, edge_1)
            in_0 = w != zero and np.uint32(edge & low) >= edge_limit
            in_1 = w != zero and np.uint32(edge >> half) >= edge_limit
            if not (in_0 or in_1):
                continue
            weight_0 += w if in_0 else zero
            weight_1 += w if in_1 else zero
            # One loop over the columns serves both views, also if only one of them has the edge.
            limit_0 = feature_limit if in_0 else nothing
            limit_1 = feature_limit if in_1 else nothing
            word_0 = draw_word(np.uint32(child), child_0, child_1)
            word_1 = draw_word(np.uint32(child), child_1, child_0)
            features = x[children[child]]
            divisor = row_divisor[children[child]] if scaled else np.float32(1)
            for column in range(width):
                bits = draw_word(np.uint32(column), word_0, word_1)
                value = as_float(features[column])
                value = (value / divisor if scaled else value) * w
                sum_0[column] += value if np.uint32(bits & low) >= limit_0 else zero
                sum_1[column] += value if np.uint32(bits >> half) >= limit_1 else zero
        word_0 = draw_word(np.uint32(row), own_0, own_1)
        word_1 = draw_word(np.uint32(row), own_1, own_0)
        features = x[parents[row]]
        divisor = row_divisor[parents[row]] if scaled else np.float32(1)
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
