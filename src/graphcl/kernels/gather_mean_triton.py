"""`gather_mean` on a GPU: one pass over the feature rows for both views, and only means are stored.

One program computes one parent's means for a block of features. It draws the same bits as the CPU.
"""

import triton
import triton.language as tl
from torch import Tensor

from graphcl.kernels.counter import FIRST, HALVES, SECOND, STRIDE, Draws, threshold

_STRIDE, _FIRST, _SECOND = tl.constexpr(STRIDE), tl.constexpr(FIRST), tl.constexpr(SECOND)
_BLOCK = 256  # features of a program; 602 features waste a fifth of the lanes
_WORDS = ["edge_0", "edge_1", "own_0", "own_1", "child_0", "child_1"]  # any value, one compilation
_SIZES = ["fan_out", "width", "edge_limit", "feature_limit"]


@triton.jit
def _draw(counter, word_0, word_1):  # type: ignore[no-untyped-def]
    x = counter.to(tl.uint32) * tl.full((), _STRIDE, tl.uint32) + word_0
    x = (x ^ (x >> 16)) * tl.full((), _FIRST, tl.uint32)
    x = x ^ (word_1 - word_0)
    x = (x ^ (x >> 15)) * tl.full((), _SECOND, tl.uint32)
    return x ^ (x >> 16)


@triton.jit(do_not_specialize=[*_WORDS, *_SIZES])  # type: ignore[untyped-decorator]
def _gather_mean_kernel(  # type: ignore[no-untyped-def]
    x, parents, children, weight, out_0, out_1, fan_out, width, edge_limit, feature_limit, scale,
    edge_0, edge_1, own_0, own_1, child_0, child_1,
    stride, OWN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    edge_0, edge_1 = edge_0.to(tl.uint32), edge_1.to(tl.uint32)
    own_0, own_1 = own_0.to(tl.uint32), own_1.to(tl.uint32)
    child_0, child_1 = child_0.to(tl.uint32), child_1.to(tl.uint32)
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    sum_0 = tl.zeros((BLOCK,), tl.float32)
    sum_1 = tl.zeros((BLOCK,), tl.float32)
    weight_0 = 1.0
    weight_1 = 1.0
    for slot in range(fan_out):
        child = row * fan_out + slot
        w = tl.load(weight + child)
        edge = _draw(child, edge_0, edge_1)
        # In a view without this edge the child has weight 0; absent from both, it is not read.
        w_0 = tl.where((edge & 0xFFFF).to(tl.int32) >= edge_limit, w, 0.0)
        w_1 = tl.where((edge >> 16).to(tl.int32) >= edge_limit, w, 0.0)
        weight_0 += w_0
        weight_1 += w_1
        features = x + tl.load(children + child).to(tl.int64) * width + columns
        read = columns < tl.where(w_0 + w_1 > 0, width, 0)
        value = tl.load(features, mask=read, other=0.0).to(tl.float32)
        bits = _draw(columns, _draw(child, child_0, child_1), _draw(child, child_1, child_0))
        sum_0 += tl.where((bits & 0xFFFF).to(tl.int32) >= feature_limit, value * w_0, 0.0)
        sum_1 += tl.where((bits >> 16).to(tl.int32) >= feature_limit, value * w_1, 0.0)
    features = x + tl.load(parents + row).to(tl.int64) * width + columns
    value = tl.load(features, mask=inside, other=0.0).to(tl.float32)
    bits = _draw(columns, _draw(row, own_0, own_1), _draw(row, own_1, own_0))
    value_0 = tl.where((bits & 0xFFFF).to(tl.int32) >= feature_limit, value, 0.0)
    value_1 = tl.where((bits >> 16).to(tl.int32) >= feature_limit, value, 0.0)
    place = row.to(tl.int64) * stride + columns
    tl.store(out_0 + place, (sum_0 + value_0) * (scale / weight_0), mask=inside)
    tl.store(out_1 + place, (sum_1 + value_1) * (scale / weight_1), mask=inside)
    if OWN:
        tl.store(out_0 + width + place, value_0 * scale, mask=inside)
        tl.store(out_1 + width + place, value_1 * scale, mask=inside)


def gather_mean(
    x: Tensor, parents: Tensor, children: Tensor, weight: Tensor, *, draws: Draws, out: Tensor
) -> None:
    """See `graphcl.kernels.gather_mean`; `x` and `out` may be bfloat16, sums are float32."""
    width = x.shape[1]
    limit = threshold(draws.feature_drop)
    block = min(_BLOCK, triton.next_power_of_2(width))
    # As signed words: Triton would treat a word above 2^31 as int64 and compile the kernel again.
    words = [word - (1 << 32) * (word >> 31) for key in draws[2:] for word in key]
    _gather_mean_kernel[(len(parents), triton.cdiv(width, block))](
        x, parents, children, weight, out[0], out[1],
        len(children) // len(parents), width, threshold(draws.edge_drop), limit,
        HALVES / (HALVES - limit), *words, out.stride(1),
        OWN=out.shape[2] > width, BLOCK=block, num_warps=max(1, block // 128),
    )  # fmt: skip
