r"""The two sums of NT-Xent for some of the rows against all of them, in strips, on any device.

The equations are those of `nt_xent_blocked`, where i runs over the rows of one process and j over
the rows of all. :math:`P_{ij} + P_{ji} = E_{ij}(r_i + r_j)` gives the whole gradient of the loss
with respect to :math:`z_i`: through its own denominator and through those of all other rows. So a
process only needs the sums of all rows, and not the strips of other processes.
"""

import torch
from torch import Tensor

from graphcl.kernels.nt_xent_blocked import CUDA_STRIP_ROWS, KEPT_BYTES, STRIP_ROWS, exponent_fits

STRIP_ELEMENTS = 1 << 26  # a strip of 10^6 columns is 64 rows high: 256 MB in float32


def row_log_denominators(
    z: Tensor, own: slice, temperature: float, *, keep: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """Returns ℓ of the rows `own` of `z` and, if they fit into `KEPT_BYTES`, the strips of E.

    Args:
        z: unit (or zero) rows of all processes, ``[n, d]``.
        own: the rows of this process.
        temperature: τ.
        keep: whether a backward pass will follow.
    """
    fits = exponent_fits(z.dtype, temperature)
    keep = keep and fits and (own.stop - own.start) * len(z) * z.element_size() <= KEPT_BYTES
    logs, strips = z.new_empty(own.stop - own.start), []
    for rows in _slices(z, own):
        strip = _logits(z, rows, temperature)
        place = slice(rows.start - own.start, rows.stop - own.start)
        logs[place] = strip.exp_().sum(1).log_() if fits else strip.logsumexp(1)
        if keep:
            strips.append(strip)
    return logs, strips


def row_pull(
    z: Tensor, own: slice, log_denominators: Tensor, temperature: float, strips: list[Tensor]
) -> Tensor:
    """Returns g of the rows `own`, ``[own, d]``; it empties `strips`.

    Args:
        z: unit (or zero) rows of all processes, ``[n, d]``.
        own: the rows of this process.
        log_denominators: ℓ of all rows, ``[n]``.
        temperature: τ.
        strips: from `row_log_denominators`; if empty, they are computed again.
    """
    pulled = z.new_empty(own.stop - own.start, z.shape[1])
    fits = exponent_fits(z.dtype, temperature)
    r = log_denominators.neg().exp_() if fits else log_denominators
    for rows in _slices(z, own):
        if fits:
            strip = strips.pop(0) if strips else _logits(z, rows, temperature).exp_()
            strip *= r[rows, None] + r
        else:
            logits = _logits(z, rows, temperature)
            strip = (logits - log_denominators[rows, None]).exp_()
            strip += logits.sub_(log_denominators).exp_()
        place = slice(rows.start - own.start, rows.stop - own.start)
        torch.mm(strip, z, out=pulled[place])
    return pulled


def _slices(z: Tensor, own: slice) -> list[slice]:
    height = min(CUDA_STRIP_ROWS if z.is_cuda else STRIP_ROWS, max(1, STRIP_ELEMENTS // len(z)))
    starts = range(own.start, own.stop, height)
    return [slice(start, min(start + height, own.stop)) for start in starts]


def _logits(z: Tensor, rows: slice, temperature: float) -> Tensor:
    """Returns rows of s/τ with the diagonal at −∞."""
    logits = (z[rows] / temperature) @ z.t()
    index = torch.arange(rows.start, rows.stop, device=z.device)
    logits[index - rows.start, index] = -torch.inf
    return logits
