r"""The two sums of NT-Xent over pairs of unit rows, in strips, on any device.

For unit rows :math:`z_i` and :math:`s_{ij} = z_i^\top z_j`,

.. math::
    \ell_i = \log \sum_{j \ne i} e^{s_{ij}/\tau}, \qquad
    g_i = \sum_{j \ne i} (P_{ij} + P_{ji})\, z_j, \quad P_{ij} = e^{s_{ij}/\tau - \ell_i} .

:math:`s` is symmetric. So a strip has some rows, and only the columns from its first row on: it
contributes to its own rows and, transposed, to the rows after them. Cosines are bounded, so
:math:`E_{ij} = e^{s_{ij}/\tau}` stays within the range of floats for all but tiny temperatures.
With :math:`r_i = 1/\sum_j E_{ij}` the backward pass then needs one exponential per pair:
:math:`P_{ij} + P_{ji} = E_{ij}(r_i + r_j)`.

If several processes share the rows, i runs over the rows of one process and j over the rows of all
(`row_log_denominators`, `row_pull`). :math:`P_{ij} + P_{ji}` gives the whole gradient of the loss
with respect to :math:`z_i`: through its own denominator and through those of all other rows. So a
process only needs the sums of all rows, and not the strips of other processes.
"""

import math

import torch
from torch import Tensor

from graphcl.kernels.buffers import block_height

STRIP_ROWS = 512  # large enough for fast products, small enough to stay in cache between passes
CUDA_STRIP_ROWS = 4096  # on a GPU without Triton: enough work to hide the launches
KEPT_BYTES = 256 * 2**20  # strips up to this total are kept for the backward pass, else recomputed
STRIP_ELEMENTS = 1 << 26  # a strip of 10^6 columns is 64 rows high: 256 MB in float32


def exponent_fits(dtype: torch.dtype, temperature: float) -> bool:
    """Returns whether ``exp(±1 / temperature)`` and sums of many are normal numbers of `dtype`."""
    return 1 / temperature < math.log(torch.finfo(dtype).max) - 40


def log_denominators(
    z: Tensor, temperature: float, *, keep: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """Returns the ℓ of the module's equation and, if they fit into `KEPT_BYTES`, the strips of E.

    Args:
        z: unit (or zero) rows, ``[n, d]``.
        temperature: τ.
        keep: whether a backward pass will follow.

    Returns:
        ``[n]`` log-denominators, and strips for `pull`; if none, it computes them again.
    """
    slices = _slices(z)
    if not exponent_fits(z.dtype, temperature):
        return torch.cat([_logits(z, rows, temperature).logsumexp(1) for rows in slices]), []
    keep = keep and sum(_area(z, rows) for rows in slices) * z.element_size() <= KEPT_BYTES
    buffer = z.new_empty(0 if keep else _area(z, slices[0]))
    sums = z.new_zeros(len(z))
    strips = []
    for rows in slices:
        strip = _exponentials(z, rows, temperature, buffer)
        sums[rows] += strip.sum(1)
        sums[rows.stop :] += strip[:, rows.stop - rows.start :].sum(0)
        if keep:
            strips.append(strip)
    return sums.log_(), strips


def pull(z: Tensor, log_denominators: Tensor, temperature: float, strips: list[Tensor]) -> Tensor:
    """Returns the g of the module's equation, ``[n, d]``; it empties `strips`."""
    pulled = torch.zeros_like(z)
    slices = _slices(z)
    if not exponent_fits(z.dtype, temperature):
        for rows in slices:
            both = _both(_logits(z, rows, temperature), log_denominators, rows)
            torch.mm(both, z, out=pulled[rows])
        return pulled
    r = log_denominators.neg().exp_()
    buffer = z.new_empty(0 if strips else _area(z, slices[0]))
    for rows in slices:
        strip = strips.pop(0) if strips else _exponentials(z, rows, temperature, buffer)
        strip *= r[rows, None] + r[rows.start :]  # P + Pᵀ
        pulled[rows].addmm_(strip, z[rows.start :])
        beyond = strip[:, rows.stop - rows.start :]
        pulled[rows.stop :].addmm_(beyond.t(), z[rows])
    return pulled


def _slices(z: Tensor) -> list[slice]:
    return _split(slice(0, len(z)), block_height(CUDA_STRIP_ROWS) if z.is_cuda else STRIP_ROWS)


def _area(z: Tensor, rows: slice) -> int:
    area: int = (rows.stop - rows.start) * (len(z) - rows.start)
    return area


def _exponentials(z: Tensor, rows: slice, temperature: float, buffer: Tensor) -> Tensor:
    """Returns a strip of E with its diagonal set to 0; in `buffer` if it fits there."""
    shape = (rows.stop - rows.start, len(z) - rows.start)
    size = _area(z, rows)
    out = buffer[:size].view(shape) if buffer.numel() >= size else z.new_empty(shape)
    strip = torch.mm(z[rows] / temperature, z[rows.start :].t(), out=out).exp_()
    strip.fill_diagonal_(0)
    return strip


def _logits(z: Tensor, rows: slice, temperature: float) -> Tensor:
    """Returns rows of s/τ with the diagonal at −∞, for temperatures at which E would overflow."""
    return _without_diagonal((z[rows] @ z.t()).div_(temperature), rows)


def row_log_denominators(
    z: Tensor, own: slice, temperature: float, *, keep: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """`log_denominators` of the rows `own` of this process, where `z` has those of all."""
    fits = exponent_fits(z.dtype, temperature)
    keep = keep and fits and (own.stop - own.start) * len(z) * z.element_size() <= KEPT_BYTES
    logs, strips = z.new_empty(own.stop - own.start), []
    for rows in _row_slices(z, own):
        strip = _scaled_logits(z, rows, temperature)
        place = slice(rows.start - own.start, rows.stop - own.start)
        logs[place] = strip.exp_().sum(1).log_() if fits else strip.logsumexp(1)
        if keep:
            strips.append(strip)
    return logs, strips


def row_pull(
    z: Tensor, own: slice, log_denominators: Tensor, temperature: float, strips: list[Tensor]
) -> Tensor:
    """`pull` of the rows `own`, ``[own, d]``; `log_denominators` are those of all rows."""
    pulled = z.new_empty(own.stop - own.start, z.shape[1])
    fits = exponent_fits(z.dtype, temperature)
    r = log_denominators.neg().exp_() if fits else log_denominators
    for rows in _row_slices(z, own):
        if fits:
            strip = strips.pop(0) if strips else _scaled_logits(z, rows, temperature).exp_()
            strip *= r[rows, None] + r
        else:
            strip = _both(_scaled_logits(z, rows, temperature), log_denominators, rows)
        place = slice(rows.start - own.start, rows.stop - own.start)
        torch.mm(strip, z, out=pulled[place])
    return pulled


def _row_slices(z: Tensor, own: slice) -> list[slice]:
    height = min(CUDA_STRIP_ROWS if z.is_cuda else STRIP_ROWS, max(1, STRIP_ELEMENTS // len(z)))
    return _split(own, height)


def _scaled_logits(z: Tensor, rows: slice, temperature: float) -> Tensor:
    """Returns what `_logits` does; the scale comes before the product, so the bits differ."""
    return _without_diagonal((z[rows] / temperature) @ z.t(), rows)


def _split(rows: slice, height: int) -> list[slice]:
    starts = range(rows.start, rows.stop, height)
    return [slice(start, min(start + height, rows.stop)) for start in starts]


def _without_diagonal(logits: Tensor, rows: slice) -> Tensor:
    index = torch.arange(rows.start, rows.stop, device=logits.device)
    logits[index - rows.start, index] = -torch.inf
    return logits


def _both(logits: Tensor, log_denominators: Tensor, rows: slice) -> Tensor:
    """Returns rows of P + Pᵀ, also where E would overflow; it overwrites `logits`."""
    both = (logits - log_denominators[rows, None]).exp_()
    both += logits.sub_(log_denominators).exp_()
    return both
