r"""The sums of NT-Xent over pairs of unit rows on a GPU: no n x n matrix, half the products.

`graphcl.losses.nt_xent` derives them, and `nt_xent_blocked` computes the same with plain tensors.
For unit (or zero) rows :math:`z_i`, temperature :math:`\tau` and :math:`s_{ij} = z_i \cdot z_j`,
summed over all j but i and its positive:

.. math::
    \nu_i = \log \sum_j e^{s_{ij} / \tau}, \qquad
    \mathrm{pull}_i = \sum_j (P_{ij} + P_{ji}) \, z_j, \qquad
    P_{ij} = e^{s_{ij} / \tau - \ell_i}.

A cosine is bounded, so :math:`E_{ij} = e^{(s_{ij} - 1) / \tau}` needs no running maximum. With
:math:`r_i = e^{1 / \tau - \ell_i}` a pair's weight :math:`P_{ij} + P_{ji} = E_{ij} (r_i + r_j)`
needs one exponential. Over pairs of own rows both are symmetric, so a pair is computed once for its
two rows. Below the temperature `COLD`, :math:`r_i` can overflow float32; there the kernels use
maxima and two exponentials.

A process's rows are one table in float16, or in two halves of it: its first views, padded with
zero rows to whole tiles, then its second views likewise (`nt_xent_rows_triton` writes it). So a row
meets itself and its positive on the diagonals of tiles. Rows of other processes come as such
tables, too.

Tiles are computed in blocks. Each partial sum has one writer and a fixed position, so every run
gives the same bits. Nothing waits for the host, so all this can be captured in a CUDA graph.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from graphcl.kernels import nt_xent_rows_triton as ends
from graphcl.kernels import nt_xent_tiles_triton as kernels
from graphcl.kernels.buffers import block_height
from graphcl.kernels.launching import launch

Precision = Literal["bf16", "tf32", "float32"]


class _Tile(NamedTuple):
    """How the kernels compute a tile of `SIDE` x `SIDE` scores."""

    dtype: torch.dtype  # of the operands of the second product
    split: bool  # scores of two halves of a row
    sums: tuple[int, int]  # of `sums_kernel`: coordinates at a time, and pipeline stages
    weights: tuple[int, int]  # of `weights_kernel`


# float16 keeps 11 bits of a number, as tf32 does, at the speed of bfloat16, which keeps 8; the
# numbers of a unit row fit into its range. The error of a row's 8 bits would be the same in all its
# scores and so not average out: in bf16 the gradient at a temperature of 0.07 and 20,000 nodes was
# off by 6e-3 at d = 513 and by 1.3e-2 at d = 128, where the views were identical. Weights of pairs
# can be tiny; a common factor (`enlarged`) brings them into the range of float16. A second half
# holds the error of the first; three products of halves are as exact as float32.
#
# TFLOP/s on an H200 at d = 512 in bf16: 624 and 476 (cuBLAS: 655 for the same scores). A 128 x
# 256 tile leaves room for only one program per multiprocessor, so nothing is multiplied while it
# takes exponentials: 470 and 456. So does a (64, 3) pipeline of the second kernel, which stages its
# result in shared memory: 362.
_TILES = {
    "bf16": _Tile(torch.float16, False, sums=(64, 3), weights=(32, 5)),
    "tf32": _Tile(torch.float32, True, sums=(64, 3), weights=(32, 3)),
    "float32": _Tile(torch.float32, True, sums=(64, 3), weights=(32, 3)),
}
_WARPS, _PROGRAMS = 4, 2  # of a program; programs of a multiprocessor
SIDE = 128
DEPTH = 64  # tables are padded to a multiple of this width
# Rows of a bf16 block, which takes 143 MB: at d = 512, cuBLAS then has one 128 x 256 tile for each
# of an H200's 132 multiprocessors. Above 131,072 rows, blocks of twice as many rows (571 MB) raise
# the speed from 677 to 795 TFLOP/s. Up to 65,536 rows, where such a block would be larger than the
# embeddings, blocks are smaller (89 MB).
_BLOCK = 8448
_SMALL_BLOCK = 6656
COLD = 0.025  # temperature: the largest r_i is e^(2 / 0.025) = 5e34
_NARROW = 128  # up to this width one kernel computes a tile's weights and multiplies them
_NARROW_PARTS = 8  # of the columns: enough programs for a GPU on small graphs
ON_CPU = torch.float32  # of tables: Triton's interpreter is slow with float16
_LOG2E = math.log2(math.e)
NARROW = (64, 4, 2)  # of `narrow_pull_kernel`: columns of a tile, warps, pipeline stages


class FusedPairs:
    """`BlockedPairs` on a GPU, with products of operands in the type of `precision`."""

    def __init__(self, h_1: Tensor, h_2: Tensor, temperature: float, precision: Precision) -> None:
        self.nodes, self._precision, self._temperature = len(h_1), precision, temperature
        self._tile, self._cold = _TILES[precision], temperature < COLD
        self._scale = _LOG2E / temperature
        self._factor = self._scale / ends.MAGNIFIED**2  # of a score of two magnified rows
        self._depth = math.ceil(h_1.shape[1] / DEPTH) * DEPTH
        shape = self.shape(len(h_1))
        self.rows = h_1.new_empty(shape, dtype=torch.float16 if h_1.is_cuda else ON_CPU)
        self._operands = self.rows
        if self._tile.split:
            self._operands = h_1.new_empty((shape[0], self._depth), dtype=torch.float32)
        self._inverse_norm, self._positives = ends.write_rows(
            h_1, h_2, self.rows, self._operands, rounded=precision == "tf32"
        )
        self._sums = self._pulled = self._weights = self._pulls = self._peak = h_1.new_empty(0)

    def travelling(self) -> Tensor:
        """Returns what other processes need of this one's rows."""
        return self.rows

    def shape(self, nodes: int) -> tuple[int, int]:
        """Returns the shape of `travelling` of a process with so many nodes."""
        return 2 * math.ceil(nodes / SIDE) * SIDE, self._depth * (2 if self._tile.split else 1)

    def release(self) -> tuple[Tensor, ...]:
        """Returns the tensors that the backward pass needs, and forgets all."""
        kept = (
            self.rows, self._operands, self._inverse_norm,
            self._weights, self._pulls, self._peak,
        )  # fmt: skip
        self._sums = self._pulled = self._positives = self._inverse_norm.new_empty(0)
        self.rows = self._operands = self._inverse_norm = self._sums
        self._weights = self._pulls = self._peak = self._sums
        return kept

    def restore(self, *kept: Tensor) -> None:
        """Puts back what `release` returned."""
        self.rows, self._operands, self._inverse_norm, *rest = kept
        self._weights, self._pulls, self._peak = rest

    def sum_own(self) -> None:
        """Adds the pairs of own rows to the sums."""
        rows = len(self.rows)
        self._sums = self.rows.new_empty(rows, dtype=torch.float32)
        for start, stop in _blocks(rows, rows, self._tile):
            height, width = (stop - start) // SIDE, (rows - start) // SIDE
            inside, below = (width, stop - start), (height, rows - stop)
            partials = self._sums.new_empty(math.prod(inside) + math.prod(below))
            self._add_sums(self.rows, partials, start, start, height, width, self.nodes, own=True)
            for part, sums in (
                (self._sums[start:stop], partials[: math.prod(inside)].view(inside)),
                (self._sums[stop:], partials[math.prod(inside) :].view(below)),
            ):
                self._fold(part, sums, fresh=start == 0)

    def sum_other(self, other: Tensor, nodes: int) -> None:
        """Adds the pairs of own rows and those of another process."""
        for start, stop in _blocks(len(self.rows), len(other), self._tile):
            for left, right in _blocks(len(other), len(other), self._tile):
                height, width = (stop - start) // SIDE, (right - left) // SIDE
                partials = self._sums.new_empty(width, stop - start)
                self._add_sums(other, partials, start, left, height, width, nodes, own=False)
                self._fold(self._sums[start:stop], partials, fresh=False)

    def finish_sums(self) -> Tensor:
        """Returns the loss of each own node, both directions, ``[m]`` in float64."""
        terms, self._weights, self._pulls = ends.finish_sums(
            self._sums, self._positives, self._scale, cold=self._cold
        )
        self._peak = self._pulls.max()
        return terms

    def peak(self) -> Tensor:
        """Returns the largest pull of a positive; of several processes, put the largest there."""
        return self._peak

    def weights(self) -> Tensor:
        """Returns what other processes need beside `travelling` for their gradient, ``[2m]``."""
        return self._weights

    def pull_own(self) -> None:
        """Begins the gradient with the pairs of own rows."""
        if self._narrow:
            self._pulled = self._narrow_pull(self.rows, self._weights, self.nodes, own=True)
            return
        operands = self._operands
        self._pulled = torch.empty_like(operands, dtype=torch.float32)
        blocks = _blocks(len(self.rows), len(self.rows), self._tile)
        buffer = operands.new_empty(max(stop - start for start, stop in blocks) ** 2)
        with _float32_products(self._precision):
            for first, (start, stop) in enumerate(blocks):
                for left, right in blocks[first:]:
                    block = buffer[: (stop - start) * (right - left)].view(stop - start, -1)
                    self._fill(block, self.rows, self._weights, start, left, self.nodes, own=True)
                    here, there = slice(start, stop), slice(left, right)
                    self._add_product(here, block, operands[there], fresh=left == 0)
                    if left > start:
                        self._add_product(there, block.t(), operands[here], fresh=start == 0)

    def pull_other(self, other: Tensor, weights: Tensor, nodes: int) -> None:
        """Adds the pairs of own rows and those of another process, with its `weights`."""
        if self._narrow:
            self._pulled += self._narrow_pull(other, weights, nodes, own=False)
            return
        rows = _blocks(len(self.rows), len(other), self._tile)
        columns = _blocks(len(other), len(other), self._tile)
        heights, widths = ([stop - start for start, stop in part] for part in (rows, columns))
        operands = self._operands_of(other)
        buffer = operands.new_empty(max(heights) * max(widths))
        with _float32_products(self._precision):
            for start, stop in rows:
                for left, right in columns:
                    block = buffer[: (stop - start) * (right - left)].view(stop - start, -1)
                    self._fill(block, other, weights, start, left, nodes, own=False)
                    self._add_product(slice(start, stop), block, operands[left:right], fresh=False)

    def gradient(
        self, h_1: Tensor, h_2: Tensor, grad: Tensor, num_nodes: int
    ) -> tuple[Tensor, Tensor]:
        """See `BlockedPairs.gradient`."""
        return ends.gradient(
            h_1, h_2, self._pulled, self._inverse_norm, self._pulls, self._peak, grad,
            1 / (num_nodes * self._temperature), half=not self._tile.split,
        )  # fmt: skip

    @property
    def _narrow(self) -> bool:
        return self._precision == "bf16" and self._depth <= _NARROW

    def _operands_of(self, other: Tensor) -> Tensor:
        """Returns rows of another process as the second product needs them."""
        if not self._tile.split:
            return other
        high, low = other[:, : self._depth], other[:, self._depth :]
        both = high.float() + low
        if self._precision == "tf32":  # as tensor cores read it, but rounded
            both.view(torch.int32).add_(0x1000).bitwise_and_(-0x2000)
        return both

    def _add_sums(
        self, other: Tensor, partials: Tensor,
        start: int, left: int, height: int, width: int, nodes: int, *, own: bool,
    ) -> None:  # fmt: skip
        tile, (depth, stages) = self._tile, self._tile.sums
        tiles = height * width - (height * (height - 1) // 2 if own else 0)
        rows = _tiles(self.rows, SIDE, depth)
        launch(
            kernels.sums_kernel,
            _grid(tiles, other.device),
            (rows, rows if own else _tiles(other, SIDE, depth), partials,
             start // SIDE, left // SIDE, self.nodes, nodes,
             len(self.rows) // (2 * SIDE), len(other) // (2 * SIDE),
             height, width, self._depth, self._scale, self._factor),
            (own, self._cold, tile.split, SIDE, depth),
            kind=(other.device, other.dtype),
            num_warps=_WARPS,
            num_stages=stages,
        )  # fmt: skip

    def _fold(self, total: Tensor, partials: Tensor, *, fresh: bool) -> None:
        """Adds partial sums to `total`; cold, both are logarithms to base 2."""
        if not self._cold:
            if fresh:
                torch.sum(partials, 0, out=total)
            else:
                total += partials.sum(0)
            return
        sums = torch.logsumexp(partials * math.log(2), 0) / math.log(2)
        total.copy_(sums if fresh else torch.logaddexp2(total, sums))

    def _fill(
        self, block: Tensor, other: Tensor, weights: Tensor,
        start: int, left: int, nodes: int, *, own: bool,
    ) -> None:  # fmt: skip
        """Writes the weights of a block of pairs."""
        tile, (depth, stages) = self._tile, self._tile.weights
        height, width = block.shape[0] // SIDE, block.shape[1] // SIDE
        diagonal = own and left == start
        count = height * (height + 1) // 2 if diagonal else height * width
        rows = _tiles(self.rows, SIDE, depth)
        launch(
            kernels.weights_kernel,
            _grid(count, other.device),
            (rows, rows if own else _tiles(other, SIDE, depth), _tiles(block, SIDE, SIDE),
             self._weights, weights, self._peak, start // SIDE, left // SIDE, self.nodes, nodes,
             len(self.rows) // (2 * SIDE), len(other) // (2 * SIDE),
             height, count, self._depth, self._scale, self._factor),
            (own, diagonal, self._cold, not tile.split, self._precision == "tf32", tile.split,
             SIDE, depth),
            kind=(other.device, other.dtype),
            num_warps=_WARPS,
            num_stages=stages,
        )  # fmt: skip

    def _add_product(self, rows: slice, left: Tensor, right: Tensor, *, fresh: bool) -> None:
        """Adds left @ right to rows of the pull in float32; a `fresh` one is uninitialised."""
        total = self._pulled[rows]
        if left.dtype == torch.float16:
            torch.addmm(total, left, right, out_dtype=torch.float32, beta=1 - fresh, out=total)
        else:
            torch.addmm(total, left, right, beta=1 - fresh, out=total)

    def _narrow_pull(self, other: Tensor, weights: Tensor, nodes: int, *, own: bool) -> Tensor:
        wide, warps, stages = NARROW
        width, tiles, columns = other.shape[1], len(self.rows) // SIDE, len(other) // wide
        columns -= 2 * (SIDE // wide) if own else 0
        programs = 2 * _multiprocessors(other.device)
        parts = max(1, min(_NARROW_PARTS, math.ceil(programs / tiles)))
        count = max(1, math.ceil(columns / parts))
        partials = self._weights.new_empty(parts * len(self.rows), width)
        launch(
            kernels.narrow_pull_kernel,
            (tiles, parts),
            (_tiles(self.rows, SIDE, width), _tiles(other, wide, width),
             _tiles(partials, SIDE, width), self._weights, weights, self._peak,
             self.nodes, nodes, len(self.rows) // (2 * SIDE), len(other) // (2 * SIDE),
             count, self._scale, self._factor),
            (own, self._cold, SIDE, width, wide),
            kind=(other.device, other.dtype),
            num_warps=warps,
            num_stages=stages,
        )  # fmt: skip
        return partials if parts == 1 else partials.view(parts, -1, width).sum(0)


def _tiles(table: Tensor, height: int, width: int) -> TensorDescriptor:
    """Describes the tiles of a contiguous table."""
    return TensorDescriptor(table, list(table.shape), [table.shape[1], 1], [height, width])


def _blocks(rows: int, others: int, tile: _Tile) -> list[tuple[int, int]]:
    """Returns the limits of blocks of rows of equal size, for a matrix with so many columns."""
    n, count = max(rows, others), rows // SIDE
    height = _SMALL_BLOCK if n <= 2**16 else _BLOCK * (2 if n > 2**17 else 1)
    height = block_height(height * 2 // tile.dtype.itemsize)
    blocks = math.ceil(count / max(height // SIDE, 1))
    edges = [count * block // blocks * SIDE for block in range(blocks + 1)]
    return list(pairwise(edges))


def _grid(tiles: int, device: torch.device) -> tuple[int]:
    """Returns the number of programs; each loads its next tile while it sums the last."""
    return (min(tiles, _PROGRAMS * _multiprocessors(device)),)


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


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
