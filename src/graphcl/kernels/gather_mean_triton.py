"""`gather_mean` on a GPU: one pass over the feature rows for both views, and only means are stored.

One program computes one parent's means for a block of features. It draws the same bits as the CPU.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphcl.kernels.counter import FIRST, HALVES, SECOND, STRIDE, Draws, threshold
from graphcl.kernels.gather_mean import Family

_STRIDE, _FIRST, _SECOND = tl.constexpr(STRIDE), tl.constexpr(FIRST), tl.constexpr(SECOND)
_BLOCK = 256  # features of a program; 602 features waste a fifth of the lanes
_SIZES = ["fan_out", "width", "edge_limit", "feature_limit", "at", "own"]  # one compilation for all


@triton.jit
def _draw(counter, word_0, word_1):  # type: ignore[no-untyped-def]
    x = counter.to(tl.uint32) * tl.full((), _STRIDE, tl.uint32) + word_0
    x = (x ^ (x >> 16)) * tl.full((), _FIRST, tl.uint32)
    x = x ^ (word_1 - word_0)
    x = (x ^ (x >> 15)) * tl.full((), _SECOND, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def _draw_long(number, word_0, word_1):  # type: ignore[no-untyped-def]
    beyond = (number >> 32).to(tl.uint32) * tl.full((), _FIRST, tl.uint32)
    return _draw(number, word_0, word_1 + beyond)


@triton.jit(do_not_specialize=_SIZES)  # type: ignore[untyped-decorator]
def _gather_mean_kernel(  # type: ignore[no-untyped-def]
    x, parents, children, weight, places, parent_rows, child_rows, out_0, out_1, edges,
    words, fan_out, width, edge_limit, feature_limit, scale, at, own, stride,
    WITHIN: tl.constexpr, ORDER: tl.constexpr, OWN: tl.constexpr, EDGES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    edge_0, edge_1 = tl.load(words).to(tl.uint32), tl.load(words + 1).to(tl.uint32)
    feature_0, feature_1 = tl.load(words + 2).to(tl.uint32), tl.load(words + 3).to(tl.uint32)
    row = tl.program_id(0).to(tl.int64)  # positions of children can be above 2^31
    place = tl.load(places + row).to(tl.int64)
    seed_edge_0 = _draw_long(place, edge_0, edge_1)
    seed_edge_1 = _draw_long(place, edge_1, edge_0)
    seed_feature_0 = _draw_long(place, feature_0, feature_1)
    seed_feature_1 = _draw_long(place, feature_1, feature_0)
    parent = tl.load(parents + row).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    sum_0 = tl.zeros((BLOCK,), tl.float32)
    sum_1 = tl.zeros((BLOCK,), tl.float32)
    weight_0 = 1.0 if WITHIN else 0.0
    weight_1 = 1.0 if WITHIN else 0.0
    for slot in range(fan_out):
        child = row * fan_out + slot
        w = tl.load(weight + child)
        node = tl.load(children + child).to(tl.int64)
        if ORDER == 0:
            one, other = tl.minimum(parent, node), tl.maximum(parent, node)
        elif ORDER == 1:
            one, other = node, parent
        else:
            one, other = parent, node
        one_0 = _draw_long(one, seed_edge_0, seed_edge_1)
        one_1 = _draw_long(one, seed_edge_1, seed_edge_0)
        edge = _draw_long(other, one_0, one_1)
        if EDGES:
            tl.store(edges + child, edge.to(tl.int64), mask=tl.program_id(1) == 0)
        # In a view without this edge the child has weight 0; absent from both, it is not read.
        w_0 = tl.where((edge & 0xFFFF).to(tl.int32) >= edge_limit, w, 0.0)
        w_1 = tl.where((edge >> 16).to(tl.int32) >= edge_limit, w, 0.0)
        weight_0 += w_0
        weight_1 += w_1
        features = x + tl.load(child_rows + child).to(tl.int64) * width + columns
        read = columns < tl.where(w_0 + w_1 > 0, width, 0)
        value = tl.load(features, mask=read, other=0.0).to(tl.float32)
        word_0 = _draw_long(node, seed_feature_0, seed_feature_1)
        word_1 = _draw_long(node, seed_feature_1, seed_feature_0)
        bits = _draw(columns, word_0, word_1)
        sum_0 += tl.where((bits & 0xFFFF).to(tl.int32) >= feature_limit, value * w_0, 0.0)
        sum_1 += tl.where((bits >> 16).to(tl.int32) >= feature_limit, value * w_1, 0.0)
    factor_0 = scale / tl.where(weight_0 > 0, weight_0, 1.0)
    factor_1 = scale / tl.where(weight_1 > 0, weight_1, 1.0)
    target = row * stride + columns
    if WITHIN:
        itself = x + tl.load(parent_rows + row).to(tl.int64) * width + columns
        value = tl.load(itself, mask=inside, other=0.0).to(tl.float32)
        word_0 = _draw_long(parent, seed_feature_0, seed_feature_1)
        word_1 = _draw_long(parent, seed_feature_1, seed_feature_0)
        bits = _draw(columns, word_0, word_1)
        value_0 = tl.where((bits & 0xFFFF).to(tl.int32) >= feature_limit, value, 0.0)
        value_1 = tl.where((bits >> 16).to(tl.int32) >= feature_limit, value, 0.0)
        sum_0 += value_0
        sum_1 += value_1
        if OWN:
            tl.store(out_0 + own + target, value_0 * scale, mask=inside)
            tl.store(out_1 + own + target, value_1 * scale, mask=inside)
    tl.store(out_0 + at + target, sum_0 * factor_0, mask=inside)
    tl.store(out_1 + at + target, sum_1 * factor_1, mask=inside)


def gather_mean(
    x: Tensor,
    family: Family,
    *,
    draws: Draws,
    out: Tensor,
    column: int = 0,
    own: int | None = None,
    edges: Tensor | None = None,
) -> None:
    """See `graphcl.kernels.gather_mean`; `x` and `out` may be bfloat16, sums are float32."""
    width = x.shape[1]
    limit = threshold(draws.feature_drop)
    block = min(_BLOCK, triton.next_power_of_2(width))
    # From memory, not as arguments: a recorded step reads other keys at every replay.
    words: Any = (*draws.edges, *draws.features)
    keys = torch.stack(words) if isinstance(words[0], Tensor) else torch.tensor(words).to(x.device)
    above = family.parents if family.parent_rows is None else family.parent_rows
    under = family.children if family.child_rows is None else family.child_rows
    written = family.places if edges is None else edges  # a pointer that is not used
    _gather_mean_kernel[(len(family.parents), triton.cdiv(width, block))](
        x, *family[:4], above, under, out[0], out[1], written, keys,
        family.fan_out, width, threshold(draws.edge_drop), limit, HALVES / (HALVES - limit),
        column, 0 if own is None else own, out.stride(1), WITHIN=draws.within, ORDER=draws.order,
        OWN=own is not None, EDGES=edges is not None, BLOCK=block,
        num_warps=max(1, block // 128),
    )  # fmt: skip
