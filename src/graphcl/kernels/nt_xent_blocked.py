r"""The two sums of NT-Xent over all pairs of unit rows, in square tiles, on any device.

For unit rows :math:`z_i` and :math:`s_{ij} = z_i^\top z_j`,

.. math::
    \ell_i = \log \sum_{j \ne i} e^{s_{ij}/\tau}, \qquad
    g_i = \sum_{j \ne i} (P_{ij} + P_{ji})\, z_j, \quad P_{ij} = e^{s_{ij}/\tau - \ell_i} .

:math:`s` is symmetric, so only tiles on and above the diagonal are computed: each serves its rows
and, transposed, its columns. Cosines are bounded, so :math:`E_{ij} = e^{(s_{ij} - 1)/\tau}` cannot
overflow, and its row sums cannot vanish while :math:`2/\tau` stays within the exponent's range;
with :math:`r_i = 1/\sum_j E_{ij}` the backward pass needs one exponential per pair:
:math:`P_{ij} + P_{ji} = E_{ij}(r_i + r_j)`.
"""

import math
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

TILE = 768  # 2.3 MB of float32: still in cache when it is exponentiated and summed
CUDA_TILE = 4096  # on a GPU without triton: large enough to hide the launches
KEPT_BYTES = 256 * 2**20  # tiles up to this size are kept for the backward pass, else recomputed

Tiles = dict[tuple[int, int], Tensor]


def exponent_fits(dtype: torch.dtype, temperature: float) -> bool:
    """Says whether ``exp(-2 / temperature)`` is a normal number of `dtype`, with room for sums."""
    return -2 / temperature > math.log(torch.finfo(dtype).tiny) + 1


def log_denominators(z: Tensor, temperature: float, *, keep: bool = False) -> tuple[Tensor, Tiles]:
    """Returns the ℓ of the module's equation and, where they are few, the tiles of E.

    Args:
        z: unit (or zero) rows, ``[n, d]``.
        temperature: τ.
        keep: whether a backward pass will follow.

    Returns:
        ``[n]`` log-denominators, and tiles for `pull` (empty: it recomputes them).
    """
    if not exponent_fits(z.dtype, temperature):
        return torch.cat([_logits(z, rows, temperature).logsumexp(1) for rows in _strips(z)]), {}
    blocks = _blocks(z)
    tiles: Tiles = {}
    keep = keep and len(z) ** 2 * z.element_size() * (len(blocks) + 1) // (2 * len(blocks)) <= (
        KEPT_BYTES
    )
    sums = z.new_zeros(len(z))
    scaled = z / temperature
    buffer = z.new_empty(0)
    for i, j in _upper(len(blocks)):
        rows, columns = blocks[i], blocks[j]
        if keep:
            buffer = z.new_empty(0)
        tile = _exponentials(z, scaled, rows, columns, temperature, buffer)
        sums[rows] += tile.sum(1)
        if i != j:
            sums[columns] += tile.sum(0)
        if keep:
            tiles[i, j] = tile
        else:
            buffer = tile.reshape(-1) if buffer.numel() < tile.numel() else buffer
    return sums.log_().add_(1 / temperature), tiles


def pull(z: Tensor, log_denominators: Tensor, temperature: float, tiles: Tiles) -> Tensor:
    """Returns the g of the module's equation, ``[n, d]``; uses up `tiles`."""
    pulled = torch.zeros_like(z)
    if not exponent_fits(z.dtype, temperature):
        for rows in _strips(z):
            logits = _logits(z, rows, temperature)
            both = (logits - log_denominators[rows, None]).exp_()
            both += logits.sub_(log_denominators).exp_()
            torch.mm(both, z, out=pulled[rows])
        return pulled
    r = (1 / temperature - log_denominators).exp_()
    blocks = _blocks(z)
    scaled = z / temperature if not tiles else z
    buffer = z.new_empty(0)
    for i, j in _upper(len(blocks)):
        rows, columns = blocks[i], blocks[j]
        tile = tiles.pop((i, j), None)
        if tile is None:
            tile = _exponentials(z, scaled, rows, columns, temperature, buffer)
            buffer = tile.reshape(-1) if buffer.numel() < tile.numel() else buffer
        tile *= r[rows, None] + r[columns]
        pulled[rows].addmm_(tile, z[columns])
        if i != j:
            pulled[columns].addmm_(tile.t(), z[rows])
    return pulled


def _blocks(z: Tensor) -> list[slice]:
    n = len(z)
    count = -(-n // (CUDA_TILE if z.is_cuda else TILE))
    edges = [n * k // count for k in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def _upper(count: int) -> Iterator[tuple[int, int]]:
    return ((i, j) for i in range(count) for j in range(i, count))


def _exponentials(
    z: Tensor, scaled: Tensor, rows: slice, columns: slice, temperature: float, buffer: Tensor
) -> Tensor:
    shape = (rows.stop - rows.start, columns.stop - columns.start)
    size = shape[0] * shape[1]
    out = buffer[:size].view(shape) if buffer.numel() >= size else z.new_empty(shape)
    tile = torch.mm(scaled[rows], z[columns].t(), out=out).sub_(1 / temperature).exp_()
    if rows == columns:
        tile.fill_diagonal_(0)
    return tile


def _strips(z: Tensor) -> list[slice]:
    height = max(1, TILE**2 // len(z))
    return [slice(start, min(start + height, len(z))) for start in range(0, len(z), height)]


def _logits(z: Tensor, rows: slice, temperature: float) -> Tensor:
    """Rows of s/τ with the diagonal at −∞; for temperatures too small for bounded exponents."""
    logits = (z[rows] @ z.t()).div_(temperature)
    index = torch.arange(rows.start, rows.stop, device=z.device)
    logits[index - rows.start, index] = -torch.inf
    return logits
