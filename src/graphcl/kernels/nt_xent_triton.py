r"""The two sums of NT-Xent over all pairs on a GPU: half the products and no n x n matrix.

For unit (or zero) rows :math:`z_i`, temperature :math:`\tau` and :math:`s_{ij} = z_i \cdot z_j`:

.. math::
    \ell_i = \log \sum_{j \ne i} e^{s_{ij} / \tau}, \qquad
    \mathrm{pull}_i = \sum_{j \ne i} (P_{ij} + P_{ji}) \, z_j, \qquad
    P_{ij} = e^{s_{ij} / \tau - \ell_i}.

A cosine is bounded, so :math:`E_{ij} = e^{(s_{ij} - 1) / \tau}` needs no running maximum. With
:math:`r_i = e^{1 / \tau - \ell_i}` a pair's weight :math:`P_{ij} + P_{ji} = E_{ij} (r_i + r_j)`
needs one exponential. Both are symmetric, so a pair is computed once for its two rows. Below the
temperature `_COLD`, :math:`r_i` can overflow float32; there the kernels use maxima and two
exponentials.

z is copied in the operands' type, padded with zeros to whole tiles, and its rows are split into
blocks. Each partial sum has one writer and a fixed position, so every run gives the same bits.
Nothing waits for the host, so both functions can be captured in a CUDA graph.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from graphcl.kernels.buffers import block_height

Precision = Literal["bf16", "tf32", "float32"]


class _Tile(NamedTuple):
    """How the kernels compute a tile of `side` x `side` scores."""

    dtype: torch.dtype
    dot: str  # Triton's input_precision
    side: int
    programs: int  # on one multiprocessor
    num_warps: int
    sums: tuple[int, int]  # of `_sums_kernel`: coordinates at a time, and pipeline stages
    weights: tuple[int, int]  # of `_weights_kernel`


# TFLOP/s of the two kernels on an H200 at d = 512: bf16 624 and 476 (cuBLAS: 655 for the same
# scores), tf32 318 and 184, float32 77 and 76. A 128 x 256 tile leaves room for only one program
# per multiprocessor, so nothing is multiplied while it takes exponentials: 470 and 456. So does a
# (64, 3) pipeline of the second kernel, which stages its result in shared memory: 362. float32 as
# three tf32 products is as exact as float32 arithmetic (errors of 4e-8 and 6e-7 against float64 for
# both) and takes 1.5 ms instead of 3.5 ms at n = 5,416.
_TILES = {
    "bf16": _Tile(torch.bfloat16, "tf32", 128, 2, num_warps=4, sums=(64, 3), weights=(32, 5)),
    "tf32": _Tile(torch.float32, "tf32", 128, 2, num_warps=4, sums=(32, 3), weights=(32, 3)),
    "float32": _Tile(torch.float32, "tf32x3", 128, 1, num_warps=8, sums=(32, 3), weights=(32, 3)),
}
# Rows of a bf16 block, which takes 143 MB: at d = 512, cuBLAS then has one 128 x 256 tile for each
# of an H200's 132 multiprocessors. Above 131,072 rows, blocks of twice as many rows (571 MB) raise
# the speed from 677 to 795 TFLOP/s. Up to 65,536 rows, where such a block would be larger than the
# embeddings, blocks are smaller (89 MB).
_BLOCK = 8448
_SMALL_BLOCK = 6656
_COLD = 0.025  # temperature: the largest r_i is e^(2 / 0.025) = 5e34
_SIZES = ["top", "left", "n", "height", "width", "tiles", "depth"]  # any value, one compilation
_LOG2E = tl.constexpr(math.log2(math.e))


@triton.jit  # type: ignore[untyped-decorator]
def _place(tile, height, TRIANGLE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Returns row and column of a tile, counted column by column; TRIANGLE: down to the diagonal.

    Tiles of the triangle come first: column c has c + 1 of them and begins at tile c (c + 1) / 2.
    """
    if TRIANGLE:
        corner = height * (height + 1) // 2
        column = ((tl.sqrt(8.0 * tile + 1.0) - 1.0) / 2.0).to(tl.int32)
        column -= (column * (column + 1) // 2 > tile).to(tl.int32)  # the root is approximate
        column += ((column + 1) * (column + 2) // 2 <= tile).to(tl.int32)
        row = tl.where(tile < corner, tile - column * (column + 1) // 2, (tile - corner) % height)
        column = tl.where(tile < corner, column, height + (tile - corner) // height)
    else:
        row = tile % height
        column = tile // height
    return row, column


@triton.jit  # type: ignore[untyped-decorator]
def _log_sum_exp2(scores, axis: tl.constexpr):  # type: ignore[no-untyped-def]
    highest = tl.maximum(tl.max(scores, axis), -1e30)  # finite if every pair is masked
    sums = tl.sum(tl.exp2(scores - tl.expand_dims(highest, axis)), axis)
    return (highest + tl.log2(sums)) / _LOG2E


@triton.jit(do_not_specialize=_SIZES)  # type: ignore[untyped-decorator]
def _sums_kernel(  # type: ignore[no-untyped-def]
    z, partials, top, n, height, width, depth, scale,
    COLD: tl.constexpr, DOT: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Sums E over each tile of a strip of rows: by row and, as E is symmetric, by column.

    `height` and `width` are in tiles. `partials` has [width, height * SIDE] sums for the rows of
    the strip, then [height, (width - height) * SIDE] for the rows below it.
    """
    tiles = height * width - height * (height - 1) // 2
    lanes = tl.arange(0, SIDE)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        row, column = _place(tile, height, True)
        above, left = top + row * SIDE, top + column * SIDE
        scores = tl.zeros((SIDE, SIDE), tl.float32)
        for k in range(0, depth, DEPTH):
            scores = tl.dot(z.load([above, k]), z.load([left, k]).T, scores, input_precision=DOT)
        scores *= scale
        if (row == column) | (left + SIDE > n):
            i, j = above + lanes[:, None], left + lanes[None, :]
            scores = tl.where((i != j) & (i < n) & (j < n), scores, float("-inf"))
        if COLD:
            row_sums, column_sums = _log_sum_exp2(scores, 1), _log_sum_exp2(scores, 0)
        else:
            terms = tl.exp2(scores - scale)
            row_sums, column_sums = tl.sum(terms, 1), tl.sum(terms, 0)
        tl.store(partials + (column * height + row) * SIDE + lanes, row_sums)
        below = width * height + row * (width - height) + column - height
        place = tl.where(column < height, row * height + column, below)
        # A tile on the diagonal stores no column sums. The mask, empty there, replaces an `if`:
        # Triton 3.6 cannot flatten a loop that ends in one.
        tl.store(partials + place * SIDE + lanes, column_sums, mask=lanes < (column - row) * SIDE)


@triton.jit(do_not_specialize=_SIZES)  # type: ignore[untyped-decorator]
def _weights_kernel(  # type: ignore[no-untyped-def]
    z, weights, log_denominators, top, left, n, height, tiles, depth, scale,
    DIAGONAL: tl.constexpr, COLD: tl.constexpr,
    DOT: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Stores P_ij + P_ji for each tile of a block; in a diagonal block also its mirror image."""
    lanes = tl.arange(0, SIDE)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        row, column = _place(tile, height, DIAGONAL)
        row, column = row * SIDE, column * SIDE
        scores = tl.zeros((SIDE, SIDE), tl.float32)
        for k in range(0, depth, DEPTH):
            here, there = z.load([top + row, k]), z.load([left + column, k])
            scores = tl.dot(here, there.T, scores, input_precision=DOT)
        scores *= scale
        i, j = top + row + lanes, left + column + lanes
        of_row = _LOG2E * tl.load(log_denominators + i, mask=i < n, other=float("inf"))
        of_column = _LOG2E * tl.load(log_denominators + j, mask=j < n, other=float("inf"))
        if COLD:  # P <= 1; the minimum keeps padding, where z is 0, from overflowing
            sums = tl.exp2(tl.minimum(scores - of_row[:, None], 0.0))
            sums += tl.exp2(tl.minimum(scores - of_column[None, :], 0.0))
        else:
            r_row, r_column = tl.exp2(scale - of_row), tl.exp2(scale - of_column)
            sums = tl.exp2(scores - scale) * (r_row[:, None] + r_column[None, :])
        if DIAGONAL:
            sums = tl.where(i[:, None] != j[None, :], sums, 0.0)
        sums = sums.to(weights.dtype)
        weights.store([row, column], sums)
        if DIAGONAL:  # a tile on the diagonal has no mirror image: a row outside stores nothing
            weights.store([tl.where(row < column, column, 2**30), row], sums.T)


def log_denominators(z: Tensor, temperature: float, *, precision: Precision) -> Tensor:
    """Returns the logarithm of NT-Xent's denominator for every row.

    Args:
        z: unit or zero rows, [n, d], n >= 2.
        temperature: tau > 0.
        precision: type of the operands of the products; sums are float32.

    Returns:
        float32 [n].
    """
    tile, padded, blocks = _prepare(z, precision)
    rows, cold, (depth, stages) = len(padded), temperature < _COLD, tile.sums
    fold, join = (torch.logsumexp, torch.logaddexp) if cold else (torch.sum, torch.add)
    total = padded.new_empty(rows, dtype=torch.float32)
    for start, stop in blocks:
        height, width = (stop - start) // tile.side, (rows - start) // tile.side
        inside, below = (width, stop - start), (height, rows - stop)
        partials = total.new_empty(math.prod(inside) + math.prod(below))
        tiles = height * width - height * (height - 1) // 2
        _sums_kernel[_grid(tiles, tile, z.device)](
            TensorDescriptor.from_tensor(padded, [tile.side, depth]), partials,
            start, len(z), height, width, padded.shape[1], _LOG2E.value / temperature,
            cold, tile.dot, tile.side, depth, num_warps=tile.num_warps, num_stages=stages,
        )  # fmt: skip
        for part, sums in (
            (total[start:stop], partials[: math.prod(inside)].view(inside)),
            (total[stop:], partials[math.prod(inside) :].view(below)),
        ):
            if start == 0:
                fold(sums, 0, out=part)
            else:
                join(part, fold(sums, 0), out=part)
    return total[: len(z)] if cold else total[: len(z)].log_().add_(1 / temperature)


def pull(
    z: Tensor, log_denominators: Tensor, temperature: float, *, precision: Precision
) -> Tensor:
    """Returns the sum of the other rows, each weighted by the two probabilities of its pair.

    Args:
        z: unit or zero rows, [n, d], n >= 2.
        log_denominators: for the same `z`, temperature and precision, [n].
        temperature: tau > 0.
        precision: type of the operands of the products; sums are float32.

    Returns:
        float32 [n, d].
    """
    tile, padded, blocks = _prepare(z, precision)
    depth, stages = tile.weights
    total = torch.empty_like(padded, dtype=torch.float32)
    buffer = padded.new_empty(max(stop - start for start, stop in blocks) ** 2)
    with _float32_products(precision):
        for first, (start, stop) in enumerate(blocks):
            for left, right in blocks[first:]:
                height, width = (stop - start) // tile.side, (right - left) // tile.side
                diagonal = left == start
                tiles = height * (height + 1) // 2 if diagonal else height * width
                weights = buffer[: (stop - start) * (right - left)].view(stop - start, -1)
                _weights_kernel[_grid(tiles, tile, z.device)](
                    TensorDescriptor.from_tensor(padded, [tile.side, depth]),
                    TensorDescriptor.from_tensor(weights, [tile.side, tile.side]),
                    log_denominators.contiguous(), start, left, len(z), height, tiles,
                    padded.shape[1], _LOG2E.value / temperature, diagonal,
                    temperature < _COLD, tile.dot, tile.side, depth,
                    num_warps=tile.num_warps, num_stages=stages,
                )  # fmt: skip
                here, there = slice(start, stop), slice(left, right)
                _add_product(total[here], weights, padded[there], fresh=left == 0)
                if not diagonal:
                    _add_product(total[there], weights.t(), padded[here], fresh=start == 0)
    return total[: len(z), : z.shape[1]]


def _prepare(z: Tensor, precision: Precision) -> tuple[_Tile, Tensor, list[tuple[int, int]]]:
    """Returns the tile, z in its type and padded with zeros, and the limits of equal blocks."""
    (n, d), tile = z.shape, _TILES[precision]
    count, depth = math.ceil(n / tile.side), max(tile.sums[0], tile.weights[0])
    padded = z.new_zeros(count * tile.side, math.ceil(d / depth) * depth, dtype=tile.dtype)
    padded[:n, :d] = z
    if precision == "tf32":
        # Tensor cores cut off the last 13 bits. Rounding them first makes log_denominators 18 times
        # as exact.
        padded.view(torch.int32).add_(0x1000).bitwise_and_(-0x2000)
    if not z.is_cuda:
        padded = padded.float()  # Triton's interpreter cannot multiply bf16
    rows = _SMALL_BLOCK if n <= 2**16 else _BLOCK * (2 if n > 2**17 else 1)
    rows = block_height(rows * 2 // tile.dtype.itemsize)
    blocks = math.ceil(count / max(rows // tile.side, 1))
    edges = [count * block // blocks * tile.side for block in range(blocks + 1)]
    return tile, padded, list(pairwise(edges))


def _grid(tiles: int, tile: _Tile, device: torch.device) -> tuple[int]:
    """Returns the number of programs; each loads its next tile while it sums the last."""
    return (min(tiles, tile.programs * _multiprocessors(device)),)


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def _add_product(total: Tensor, left: Tensor, right: Tensor, *, fresh: bool) -> None:
    """Adds left @ right to total in float32; a `fresh` total is uninitialised."""
    if left.dtype == torch.bfloat16:
        torch.addmm(total, left, right, out_dtype=torch.float32, beta=1 - fresh, out=total)
    else:
        torch.addmm(total, left, right, beta=1 - fresh, out=total)


@contextmanager
def _float32_products(precision: Precision) -> Iterator[None]:
    """Sets torch's precision of float32 products for a while, whatever the process has set."""
    if precision == "bf16":
        yield
        return
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = before
