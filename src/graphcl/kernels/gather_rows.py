r"""Weighted sums of perturbed feature rows, for both views, without storing the rows.

For each parent u with children c, and in each view,

.. math:: m_u = \sum_c w_c\, \tilde x_c ,

where :math:`\tilde x` is :math:`x` after dropout. A node has the same draws wherever it occurs in
the tree of one seed node. Unlike `graphcl.kernels.gather_mean`, parents and children may be of
different types, and the weights are given for each view.
"""

import numpy as np
import torch
from torch import Tensor

from graphcl.kernels.buffers import block_height
from graphcl.kernels.counter import (
    HALVES,
    Key,
    draw_long_word,
    draw_word,
    feature_draws,
    kept,
    threshold,
)
from graphcl.kernels.parallel import parallel, prange, serial

CHUNK_ELEMENTS = 1 << 25
SMALL = 1 << 17  # elements; to start a second thread takes longer than so many


def gather_rows(
    x: Tensor,
    children: Tensor,
    weights: Tensor,
    places: Tensor,
    *,
    feature_drop: float,
    key: Key,
    out: Tensor,
    rows: Tensor | None = None,
) -> None:
    """Writes the module's sums into `out`, ``[2, n, P]``.

    Args:
        x: features ``[num_nodes, P]``, float32.
        children: node numbers, ``[n · fan_out]``, those of a parent side by side.
        weights: of the children in both views, ``[2, n · fan_out]``; 0 leaves a child out.
        places: the place in the batch of each parent's seed node, ``[n]``.
        feature_drop: probability that a feature is zero.
        key: the stream of the features.
        out: may be some columns of a wider table.
        rows: where the features of the children are in `x`; None: at their numbers.
    """
    at = children if rows is None else rows
    if x.is_cuda:
        gather_rows_reference(
            x, children, weights, places, feature_drop=feature_drop, key=key, out=out, rows=rows
        )
        return
    words = [np.uint32(word) for word in key]
    limit = np.uint32(threshold(feature_drop))
    parts = (x, children, at, weights[0], weights[1], places, out[0], out[1])
    arrays = (one.numpy() for one in parts)
    loop = _small if len(children) * x.shape[1] < SMALL else _parallel
    loop(*arrays, *words, limit)


def gather_rows_reference(
    x: Tensor,
    children: Tensor,
    weights: Tensor,
    places: Tensor,
    *,
    feature_drop: float,
    key: Key,
    out: Tensor,
    rows: Tensor | None = None,
) -> None:
    """`gather_rows` in plain tensor operations, in chunks of parents, on any device."""
    count, width, limit = len(places), x.shape[1], threshold(feature_drop)
    fan_out = len(children) // max(count, 1)
    at = children if rows is None else rows
    height = max(1, block_height(CHUNK_ELEMENTS) // max(1, fan_out * width))
    for start in range(0, count, height):
        some = slice(start, min(start + height, count))
        below = slice(some.start * fan_out, some.stop * fan_out)
        of_seed = places[some].repeat_interleave(fan_out)
        bits = feature_draws(of_seed, children[below], width, key)
        scaled = x[at[below]].float() * (HALVES / (HALVES - limit))
        for view in (0, 1):
            dropped = torch.where(kept(bits, view, limit), scaled, 0)
            weight = weights[view, below].view(-1, 1, fan_out)
            out[view, some] = (weight @ dropped.view(-1, fan_out, width))[:, 0]


def _gather_rows(  # type: ignore[no-untyped-def]
    x, children, at, weight_0, weight_1, places, out_0, out_1, key_0, key_1, limit
):
    width, parents = x.shape[1], places.shape[0]
    fan_out = children.shape[0] // max(parents, 1)
    low, half, zero = np.uint32(0xFFFF), np.uint32(16), np.float32(0)
    nothing = np.uint32(0x10000)  # a limit above every half of a draw: all features are dropped
    scale = np.float32(65536 / (65536 - np.int64(limit)))
    blocks = -(-parents // 64)
    for block in prange(blocks):
        sums = np.zeros((2, width + 16), np.float32)  # as in `gather_mean`: apart in memory
        sum_0, sum_1 = sums[0], sums[1]
        for row in range(block * 64, min(block * 64 + 64, parents)):
            seed_0 = draw_long_word(places[row], key_0, key_1)
            seed_1 = draw_long_word(places[row], key_1, key_0)
            for child in range(row * fan_out, (row + 1) * fan_out):
                w_0, w_1 = weight_0[child], weight_1[child]
                if w_0 == zero and w_1 == zero:
                    continue
                node, row_of = children[child], at[child]
                word_0 = draw_long_word(node, seed_0, seed_1)
                word_1 = draw_long_word(node, seed_1, seed_0)
                limit_0 = limit if w_0 != zero else nothing
                limit_1 = limit if w_1 != zero else nothing
                for column in range(width):
                    bits = draw_word(np.uint32(column), word_0, word_1)
                    value = x[row_of, column]
                    sum_0[column] += w_0 * value if np.uint32(bits & low) >= limit_0 else zero
                    sum_1[column] += w_1 * value if np.uint32(bits >> half) >= limit_1 else zero
            for column in range(width):
                out_0[row, column] = sum_0[column] * scale
                out_1[row, column] = sum_1[column] * scale
                sum_0[column] = zero
                sum_1[column] = zero


_parallel, _small = parallel(_gather_rows), serial(_gather_rows)
