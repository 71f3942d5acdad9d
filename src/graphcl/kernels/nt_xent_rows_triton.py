r"""What NT-Xent does once per node on a GPU, before and after the sums over pairs.

Three kernels, one launch each, because launches take most of the time on small graphs: unit rows
and positives from the embeddings, the loss of each node from its sums, the gradient from the pulls.
`graphcl.losses.nt_xent` has the equations; numbers that are few are float64.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphcl.kernels.launching import aligned, launch
from graphcl.kernels.nt_xent_tiles_triton import enlarged

_LANES = 1024  # coordinates that a program reads at a time
_NODES = 128  # of a program of `_finish_kernel`
MAGNIFIED = 256.0  # factor of the tables: the rounding errors of small numbers stay normal float16


@triton.jit
def _inverse(square, tiny):  # type: ignore[no-untyped-def]
    """Returns the inverse of a norm from its square; 0 for a zero row."""
    norm = tl.sqrt(square)
    return tl.where(norm < tiny, 0.0, 1.0 / tl.maximum(norm, tiny))


@triton.jit
def _unit(h, scale):  # type: ignore[no-untyped-def]
    return (h.to(tl.float64) * scale).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _store_row(  # type: ignore[no-untyped-def]
    rows, operands, z, place, operand_place, depth, inside,
    SPLIT: tl.constexpr, ROUND: tl.constexpr, MAGNIFIED: tl.constexpr,
):  # fmt: skip
    """Stores a row in one half, or in two and as a float32 operand of the second product."""
    large = z * MAGNIFIED
    high = large.to(tl.float16)
    tl.store(rows + place, high.to(rows.dtype.element_ty), mask=inside)
    if SPLIT:
        low = (large - high.to(tl.float32)).to(tl.float16)
        tl.store(rows + place + depth, low.to(rows.dtype.element_ty), mask=inside)
        if ROUND:  # tensor cores cut off the last 13 bits of a float32
            bits = (large.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
            large = bits.to(tl.float32, bitcast=True)
        tl.store(operands + operand_place, large, mask=inside)


@triton.jit
def _load_pair(h_1, h_2, node, lane, stride_1, stride_2, inside):  # type: ignore[no-untyped-def]
    a = tl.load(h_1 + node * stride_1 + lane, mask=inside, other=0.0)
    b = tl.load(h_2 + node * stride_2 + lane, mask=inside, other=0.0)
    return a.to(tl.float64), b.to(tl.float64)


@triton.jit(do_not_specialize=["nodes", "half", "width", "depth", "stride_1", "stride_2"])  # type: ignore[untyped-decorator]
def _rows_kernel(  # type: ignore[no-untyped-def]
    h_1, h_2, rows, operands, inverse_norm, positives,
    nodes, half, width, depth, stride_1, stride_2, tiny,
    SPLIT: tl.constexpr, ROUND: tl.constexpr, MAGNIFIED: tl.constexpr,
    NODES: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Writes both unit rows of a node, their inverse norms and their cosine; zeros for padding."""
    node = tl.program_id(0).to(tl.int64) * NODES + tl.arange(0, NODES)
    row, lanes = node[:, None], tl.arange(0, LANES)[None, :]
    square_1 = tl.zeros((NODES, LANES), tl.float64)
    square_2 = tl.zeros((NODES, LANES), tl.float64)
    product = tl.zeros((NODES, LANES), tl.float64)
    for k in range(0, width, LANES):
        inside = (row < nodes) & (k + lanes < width)
        a, b = _load_pair(h_1, h_2, row, k + lanes, stride_1, stride_2, inside)
        square_1 += a * a
        square_2 += b * b
        product += a * b
    scale_1 = _inverse(tl.sum(square_1, 1), tiny)
    scale_2 = _inverse(tl.sum(square_2, 1), tiny)
    tl.store(inverse_norm + node, scale_1, mask=node < nodes)
    tl.store(inverse_norm + nodes + node, scale_2, mask=node < nodes)
    tl.store(positives + node, tl.sum(product, 1) * scale_1 * scale_2, mask=node < nodes)
    stride = 2 * depth if SPLIT else depth
    for k in range(0, depth, LANES):
        inside = (row < nodes) & (k + lanes < width)
        a, b = _load_pair(h_1, h_2, row, k + lanes, stride_1, stride_2, inside)
        a, b = _unit(a, scale_1[:, None]), _unit(b, scale_2[:, None])
        inside = (row < half) & (k + lanes < depth)
        place, operand = row * stride + k + lanes, row * depth + k + lanes
        _store_row(rows, operands, a, place, operand, depth, inside, SPLIT, ROUND, MAGNIFIED)
        place, operand = place + half * stride, operand + half * depth
        _store_row(rows, operands, b, place, operand, depth, inside, SPLIT, ROUND, MAGNIFIED)


@triton.jit
def _softplus(x):  # type: ignore[no-untyped-def]
    small = tl.exp(-tl.abs(x))
    one = 1.0 + small
    # log(1 + small) with the rounding of the sum taken back, so that tiny losses are exact, too.
    logarithm = tl.where(one == 1.0, small, tl.log(one) * (small / (one - 1.0)))
    return tl.maximum(x, 0.0) + logarithm


@triton.jit(do_not_specialize=["nodes", "half"])  # type: ignore[untyped-decorator]
def _finish_kernel(  # type: ignore[no-untyped-def]
    sums, positives, terms, weights, pulls, nodes, half, scale,
    COLD: tl.constexpr, NODES: tl.constexpr,
):  # fmt: skip
    """Writes the loss of each node, r (cold: ℓ to base 2) of its rows, and q of both together."""
    node = tl.program_id(0) * NODES + tl.arange(0, NODES)
    inside = node < nodes
    positive = tl.load(positives + node, mask=inside, other=0.0) * scale  # to base 2
    loss = tl.zeros((NODES,), tl.float64)
    pull = tl.zeros((NODES,), tl.float64)
    for second in tl.static_range(2):
        total = tl.load(sums + second * half + node, mask=inside, other=1.0).to(tl.float64)
        if not COLD:
            total = tl.log(total) * 1.4426950408889634 + scale
        gap = total - positive
        gap = tl.maximum(gap * 0.6931471805599453, -1e4)  # without negatives it is -inf
        term = _softplus(gap)
        loss += term
        pull += 1.0 / (1.0 + tl.exp(-tl.maximum(gap, -700.0)))
        logarithm = positive + term * 1.4426950408889634
        weight = logarithm if COLD else tl.exp2(scale - logarithm)
        tl.store(weights + second * nodes + node, weight.to(tl.float32), mask=inside)
    tl.store(terms + node, loss, mask=inside)
    tl.store(pulls + node, pull.to(tl.float32), mask=inside)


@triton.jit(do_not_specialize=["nodes", "half", "width", "depth", "stride_1", "stride_2"])  # type: ignore[untyped-decorator]
def _gradient_kernel(  # type: ignore[no-untyped-def]
    h_1, h_2, pulled, inverse_norm, pulls, peak, grad, out_1, out_2,
    nodes, half, width, depth, stride_1, stride_2, factor,
    HALF: tl.constexpr, MAGNIFIED: tl.constexpr, NODES: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Adds a node's positives to its pulls and writes the gradient of both its embeddings."""
    node = tl.program_id(0).to(tl.int64) * NODES + tl.arange(0, NODES)
    row, lanes = node[:, None], tl.arange(0, LANES)[None, :]
    scale_1 = tl.load(inverse_norm + node, mask=node < nodes, other=0.0)
    scale_2 = tl.load(inverse_norm + nodes + node, mask=node < nodes, other=0.0)
    pull = tl.load(pulls + node, mask=node < nodes, other=0.0)[:, None]
    reduce = 1.0 / (MAGNIFIED * enlarged(peak, HALF))
    along_1 = tl.zeros((NODES, LANES), tl.float32)
    along_2 = tl.zeros((NODES, LANES), tl.float32)
    for k in range(0, width, LANES):
        inside = (row < nodes) & (k + lanes < width)
        a, b = _load_pair(h_1, h_2, row, k + lanes, stride_1, stride_2, inside)
        a, b = _unit(a, scale_1[:, None]), _unit(b, scale_2[:, None])
        place = pulled + row * depth + k + lanes
        g_1 = tl.load(place, mask=inside, other=0.0) * reduce - pull * b
        g_2 = tl.load(place + half * depth, mask=inside, other=0.0) * reduce - pull * a
        along_1 += a * g_1
        along_2 += b * g_2
    radial_1, radial_2 = tl.sum(along_1, 1)[:, None], tl.sum(along_2, 1)[:, None]
    common = tl.load(grad).to(tl.float64) * factor
    factor_1 = (common * scale_1).to(tl.float32)[:, None]
    factor_2 = (common * scale_2).to(tl.float32)[:, None]
    for k in range(0, width, LANES):
        inside = (row < nodes) & (k + lanes < width)
        a, b = _load_pair(h_1, h_2, row, k + lanes, stride_1, stride_2, inside)
        a, b = _unit(a, scale_1[:, None]), _unit(b, scale_2[:, None])
        place = pulled + row * depth + k + lanes
        g_1 = tl.load(place, mask=inside, other=0.0) * reduce - pull * b
        g_2 = tl.load(place + half * depth, mask=inside, other=0.0) * reduce - pull * a
        d_1 = (g_1 - radial_1 * a) * factor_1  # the length of h does not change z
        d_2 = (g_2 - radial_2 * b) * factor_2
        tl.store(out_1 + row * width + k + lanes, d_1.to(out_1.dtype.element_ty), mask=inside)
        tl.store(out_2 + row * width + k + lanes, d_2.to(out_2.dtype.element_ty), mask=inside)


def write_rows(
    h_1: Tensor, h_2: Tensor, rows: Tensor, operands: Tensor, *, rounded: bool
) -> tuple[Tensor, Tensor]:
    """Writes the tables of unit rows; returns inverse norms ``[2m]`` and cosines ``[m]``, float64.

    Both tables have first views, padding, second views, padding, all `MAGNIFIED`.

    Args:
        h_1: embeddings of the first view, ``[m, d]``.
        h_2: embeddings of the second view.
        rows: ``[2 · padded m, padded d]`` in float16; or twice as wide, and the rounding error of
            the left half is stored in the right one.
        operands: `rows`; or, if they are split, a table ``[2 · padded m, padded d]`` in float32.
        rounded: round `operands` to what a tensor core reads of a float32.
    """
    h_1, h_2 = (h if h.stride(1) == 1 else h.contiguous() for h in (h_1, h_2))
    (nodes, width), split = h_1.shape, operands is not rows
    both, depth = operands.shape
    inverse_norm = h_1.new_empty(2 * nodes, dtype=torch.float64)
    positives = h_1.new_empty(nodes, dtype=torch.float64)
    together, lanes = _shape(depth, on_gpu=h_1.is_cuda)
    launch(
        _rows_kernel,
        (triton.cdiv(both // 2, together),),
        (h_1, h_2, rows, operands, inverse_norm, positives, nodes, both // 2, width, depth,
         h_1.stride(0), h_2.stride(0), _tiny(h_1.dtype)),
        (split, rounded, MAGNIFIED, together, lanes),
        kind=_kind(h_1, h_2, rows, operands),
        num_warps=4,
    )  # fmt: skip
    return inverse_norm, positives


def finish_sums(
    sums: Tensor, positives: Tensor, scale: float, *, cold: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the loss of each node, the weights of its rows and the pull of its positive.

    Args:
        sums: over the negatives of each row of the table; cold: their logarithms to base 2.
        positives: cosine of each node's two views.
        scale: log2(e) / temperature.
        cold: whether the temperature is so low that sums are logarithms.
    """
    nodes = len(positives)
    terms = torch.empty_like(positives)
    weights = sums.new_empty(2 * nodes)
    pulls = sums.new_empty(nodes)
    launch(
        _finish_kernel,
        (triton.cdiv(nodes, _NODES),),
        (sums, positives, terms, weights, pulls, nodes, len(sums) // 2, scale),
        (cold, _NODES),
        kind=(sums.device,),
        num_warps=4,
    )
    return terms, weights, pulls


def gradient(
    h_1: Tensor,
    h_2: Tensor,
    pulled: Tensor,
    inverse_norm: Tensor,
    pulls: Tensor,
    peak: Tensor,
    grad: Tensor,
    factor: float,
    *,
    half: bool,
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of both views, each contiguous; `grad` is that of the loss.

    `half` says that the weights behind `pulled` were enlarged, by `peak`.
    """
    h_1, h_2 = (h if h.stride(1) == 1 else h.contiguous() for h in (h_1, h_2))
    (nodes, width), (both, depth) = h_1.shape, pulled.shape
    out_1, out_2 = h_1.new_empty(h_1.shape), h_2.new_empty(h_2.shape)
    together, lanes = _shape(width, on_gpu=h_1.is_cuda)
    launch(
        _gradient_kernel,
        (triton.cdiv(nodes, together),),
        (h_1, h_2, pulled, inverse_norm, pulls, peak, grad, out_1, out_2,
         nodes, both // 2, width, depth, h_1.stride(0), h_2.stride(0), factor),
        (half, MAGNIFIED, together, lanes),
        kind=_kind(h_1, h_2, grad),
        num_warps=4,
    )  # fmt: skip
    return out_1, out_2


def _kind(*tensors: Tensor) -> tuple[Any, ...]:
    return tensors[0].device, *((tensor.dtype, aligned(tensor)) for tensor in tensors)


def _shape(width: int, *, on_gpu: bool) -> tuple[int, int]:
    """Returns how many nodes a program takes, and how many coordinates at a time."""
    lanes: int = min(_LANES, max(16, 1 << (width - 1).bit_length()))
    # The interpreter takes as long for a program of many nodes as for one of a single node.
    return (max(1, _LANES // lanes), lanes) if on_gpu else (256, lanes)


def _tiny(dtype: torch.dtype) -> float:
    """Returns the smallest norm that is not zero: the smallest normal number of the inputs."""
    return float(torch.finfo(torch.float32 if dtype.itemsize == 2 else dtype).tiny)
