r"""Many logistic regressions at once, on a CPU or a GPU: several train sets, every strength.

Each minimises scikit-learn's objective, with a bias that is not penalised:

.. math:: \tfrac12 \lVert W \rVert^2 + C \sum_i \mathrm{CE}(W^\top z_i + b, \; y_i) .

Less the mean of its train rows, a problem is the same, up to the bias. In the basis in which
:math:`Z^\top Z` is diagonal, with entries λ, the curvature in direction k is at most
:math:`1 + \beta C \lambda_k`, where β is 1/2 for softmax and 1/4 for sigmoid (Böhning, 1992). So
each direction has the step that it allows, and Nesterov's method, restarted where it overshoots,
needs few steps even for the weakest penalties. The directions are at most as many as the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

STEPS = 100  # enough for every strength that validation chooses; the weakest are near their end
_SMALLEST = 1e-6  # of the largest λ; below, float32 has only noise


@dataclass(frozen=True)
class Fitted:
    """The regressions of one train set.

    Attributes:
        weight: ``[strengths, dim, outputs]``.
        bias: ``[strengths, outputs]``.
    """

    weight: Tensor
    bias: Tensor

    def scores(self, z: Tensor) -> Tensor:
        """Returns the scores before softmax or sigmoid, ``[strengths, rows, outputs]``."""
        return z @ self.weight + self.bias[:, None]


@torch.no_grad()
def fit_logistic_batch(
    problems: Sequence[tuple[Tensor, Tensor]],
    strengths: Sequence[float],
    *,
    softmax: bool,
    steps: int = STEPS,
) -> list[Fitted]:
    """Fits every problem with every strength.

    Args:
        problems: per train set, standardised embeddings ``[rows, dim]`` and 0/1 targets ``[rows,
            outputs]``, on one device; rows may differ in number.
        strengths: C.
        softmax: whether outputs exclude each other; otherwise each is a regression of its own.
        steps: number of updates.
    """
    rotated = [_rotate(z) for z, _ in problems]
    rows, width = max(len(z) for z, _ in problems), max(len(one.variance) for one in rotated)
    first, outputs = problems[0][0], problems[0][1].shape[1]
    count = len(problems)
    inputs, variance = first.new_zeros(count, rows, width), first.new_zeros(count, width)
    targets, present = first.new_zeros(count, rows, outputs), first.new_zeros(count, rows)
    for number, (one, (_, y)) in enumerate(zip(rotated, problems, strict=True)):
        inputs[number, : len(y), : len(one.variance)] = one.inputs
        variance[number, : len(one.variance)] = one.variance
        targets[number, : len(y)], present[number, : len(y)] = y, 1
    weight, bias = _descend(inputs, targets, present, variance, strengths, softmax, steps)
    fitted = []
    for number, one in enumerate(rotated):
        mine = weight[number, : len(one.variance)]  # [width, strengths, outputs]
        back = torch.einsum("dk,kso->sdo", one.basis, mine)
        fitted.append(Fitted(back, bias[number, 0] - one.mean @ back))
    return fitted


@dataclass(frozen=True)
class _Rotated:
    """Train rows without their mean, in the basis in which their products are diagonal."""

    inputs: Tensor
    variance: Tensor  # λ
    basis: Tensor
    mean: Tensor


def _rotate(z: Tensor) -> _Rotated:
    mean = z.mean(0)
    centred = z - mean
    wide = centred.shape[0] < centred.shape[1]
    variance, basis = torch.linalg.eigh(centred @ centred.T if wide else centred.T @ centred)
    kept = variance > _SMALLEST * variance[-1].clamp(min=torch.finfo(z.dtype).tiny)
    variance, basis = variance[kept], basis[:, kept]
    if wide:  # from an eigenvector u of ZZᵀ to one of ZᵀZ: Zᵀu / √λ
        basis = centred.T @ basis / variance.sqrt()
    return _Rotated(centred @ basis, variance, basis, mean)


def _descend(
    inputs: Tensor,
    targets: Tensor,
    present: Tensor,
    variance: Tensor,
    strengths: Sequence[float],
    softmax: bool,
    steps: int,
) -> tuple[Tensor, Tensor]:
    """Returns weights ``[problems, width, strengths, outputs]`` and biases ``[problems, 1, …]``."""
    wide = (len(strengths), targets.shape[2])
    strength = inputs.new_tensor(strengths)[None, None, :, None]
    bound = (0.5 if softmax else 0.25) * strength
    step = 1 / (1 + bound * variance[:, :, None, None])
    bias_step = 1 / (bound * present.sum(1)[:, None, None, None])
    weight = inputs.new_zeros(len(inputs), inputs.shape[2], *wide)
    bias = inputs.new_zeros(len(inputs), 1, *wide)
    ahead, bias_ahead = weight, bias
    pace = inputs.new_ones(len(inputs), 1, wide[0], 1)
    there = strength * present[:, :, None, None]
    for _ in range(steps):
        scores = (inputs @ ahead.flatten(2)).unflatten(2, wide) + bias_ahead  # type: ignore[no-untyped-call]
        error = (scores.softmax(-1) if softmax else scores.sigmoid()) - targets[:, :, None]
        error *= there
        slope = (inputs.mT @ error.flatten(2)).unflatten(2, wide) + ahead
        bias_slope = error.sum(1, keepdim=True)
        new, new_bias = ahead - step * slope, bias_ahead - bias_step * bias_slope
        moved, bias_moved = new - weight, new_bias - bias
        # A step against the last move has overshot: this problem starts its momentum anew.
        along = (slope * moved).sum((1, 3), keepdim=True)
        along = along + (bias_slope * bias_moved).sum((1, 3), keepdim=True)
        pace = torch.where(along > 0, 1, pace)
        faster = (1 + (1 + 4 * pace.square()).sqrt()) / 2
        momentum = torch.where(along > 0, 0, (pace - 1) / faster)
        ahead, bias_ahead = new + momentum * moved, new_bias + momentum * bias_moved
        weight, bias, pace = new, new_bias, faster
    return weight, bias
