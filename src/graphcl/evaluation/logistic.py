r"""Many logistic regressions at once, on a CPU or a GPU: several train sets, every strength.

Each minimises scikit-learn's objective, with a bias that is not penalised:

.. math:: \tfrac12 \lVert W \rVert^2 + C \sum_i \mathrm{CE}(W^\top z_i + b, \; y_i) .

Less the mean of its train rows, a problem is the same, up to the bias. In the basis in which
:math:`Z^\top Z` is diagonal, with entries λ, the curvature in direction k is at most
:math:`1 + \beta C \lambda_k`, where β is 1/2 for softmax and 1/4 for sigmoid (Böhning, 1992). So
each direction has the step that it allows, and Nesterov's method, restarted where it overshoots,
needs few steps even for the weakest penalties. The directions are at most as many as the rows.

The probe for nodes with several labels has one regression per label. All labels and all strengths
of the penalty are columns of one weight matrix, so the whole grid is trained at once.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphcl.devices import resolve_device
from graphcl.errors import demand, require
from graphcl.evaluation.failure import majority_share
from graphcl.files.records import Answer
from graphcl.kernels.adam import Adam
from graphcl.settings import PROBE_STEPS

BATCH_STEPS = (
    100  # enough for every strength that validation chooses; the weakest are near their end
)
_SMALLEST = 1e-6  # of the largest λ; below, float32 has only noise
VALUES = 1 << 24  # inputs and outputs of regressions that are fitted at once, 64 MB


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


def fit_logistic_batch(
    problems: Iterable[tuple[Tensor, Tensor]],
    strengths: Sequence[float],
    *,
    softmax: bool,
    steps: int = BATCH_STEPS,
) -> Iterator[Fitted]:
    """Fits every problem with every strength, as many at once as `VALUES` allows.

    Args:
        problems: per train set, standardised embeddings ``[rows, dim]`` and 0/1 targets ``[rows,
            outputs]``, on one device; rows may differ in number. They are taken as they are fitted,
            so that not all need to be in memory.
        strengths: C.
        softmax: whether outputs exclude each other; otherwise each is a regression of its own.
        steps: number of updates.
    """
    together: list[tuple[Tensor, Tensor]] = []
    held = 0
    for z, y in problems:
        more = len(z) * (z.shape[1] + y.shape[1] * len(strengths))
        if together and held + more > VALUES:
            yield from _fit_together(together, strengths, softmax, steps)
            together, held = [], 0
        together.append((z, y))
        held += more
    if together:
        yield from _fit_together(together, strengths, softmax, steps)


@torch.no_grad()
def _fit_together(
    problems: Sequence[tuple[Tensor, Tensor]],
    strengths: Sequence[float],
    softmax: bool,
    steps: int,
) -> list[Fitted]:
    rotated = [_rotate(z) for z, _ in problems]
    rows, width = max(len(z) for z, _ in problems), max(len(own) for _, own, _, _ in rotated)
    first, outputs = problems[0][0], problems[0][1].shape[1]
    count = len(problems)
    inputs, variance = first.new_zeros(count, rows, width), first.new_zeros(count, width)
    targets, present = first.new_zeros(count, rows, outputs), first.new_zeros(count, rows)
    for number, ((turned, own, _, _), (_, y)) in enumerate(zip(rotated, problems, strict=True)):
        inputs[number, : len(y), : len(own)], variance[number, : len(own)] = turned, own
        targets[number, : len(y)], present[number, : len(y)] = y, 1
    weight, bias = _descend(inputs, targets, present, variance, strengths, softmax, steps)
    fitted = []
    for number, (_, own, basis, mean) in enumerate(rotated):
        back = torch.einsum("dk,kso->sdo", basis, weight[number, : len(own)])
        fitted.append(Fitted(back, bias[number, 0] - mean @ back))
    return fitted


def _rotate(z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns rows without their mean, in the basis in which their products are diagonal.

    With them are these products λ, the basis, and the mean.
    """
    mean = z.mean(0)
    centred = z - mean
    wide = centred.shape[0] < centred.shape[1]
    variance, basis = torch.linalg.eigh(centred @ centred.T if wide else centred.T @ centred)
    largest = variance[-1:].sum()  # 0 of a table without columns
    kept = variance > _SMALLEST * largest.clamp(min=torch.finfo(z.dtype).tiny)
    variance, basis = variance[kept], basis[:, kept]
    if wide:  # from an eigenvector u of ZZᵀ to one of ZᵀZ: Zᵀu / √λ
        basis = centred.T @ basis / variance.sqrt()
    return centred @ basis, variance, basis, mean


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
    wide = (targets.shape[2], len(strengths))  # a softmax over the last of few is slow
    strength = inputs.new_tensor(strengths)
    bound = (0.5 if softmax else 0.25) * strength
    step = 1 / (1 + bound * variance[:, :, None, None])
    bias_step = 1 / (bound * present.sum(1)[:, None, None, None])
    weight = inputs.new_zeros(len(inputs), inputs.shape[2], *wide)
    bias = inputs.new_zeros(len(inputs), 1, *wide)
    ahead, bias_ahead = weight, bias
    pace = inputs.new_ones(len(inputs), 1, 1, wide[1])
    there = strength * present[:, :, None, None]
    for _ in range(steps):
        scores = (inputs @ ahead.flatten(2)).unflatten(2, wide) + bias_ahead  # type: ignore[no-untyped-call]
        error = (scores.softmax(2) if softmax else scores.sigmoid()) - targets[..., None]
        error *= there
        slope = (inputs.mT @ error.flatten(2)).unflatten(2, wide) + ahead
        bias_slope = error.sum(1, keepdim=True)
        new, new_bias = ahead - step * slope, bias_ahead - bias_step * bias_slope
        moved, bias_moved = new - weight, new_bias - bias
        # A step against the last move has overshot: this problem starts its momentum anew.
        along = (slope * moved).sum((1, 2), keepdim=True)
        along = along + (bias_slope * bias_moved).sum((1, 2), keepdim=True)
        pace = torch.where(along > 0, 1, pace)
        faster = (1 + (1 + 4 * pace.square()).sqrt()) / 2
        momentum = torch.where(along > 0, 0, (pace - 1) / faster)
        ahead, bias_ahead = new + momentum * moved, new_bias + momentum * bias_moved
        weight, bias, pace = new, new_bias, faster
    return weight.transpose(2, 3), bias.transpose(2, 3)


STRENGTHS = (1e-3, 1e-4, 1e-5, 0.0)
LEARNING_RATE = 0.05

Splits = tuple[Any, Any, Any]


@dataclass(frozen=True, repr=False, kw_only=True)
class Scores(Answer):
    """What all scores of test nodes have; `ProbeResult`, `MultilabelResult` say what they are."""

    accuracy: float
    micro_f1: float
    macro_f1: float
    split: str
    nodes: tuple[int, int, int]
    majority: float


@dataclass(frozen=True, repr=False, kw_only=True)
class MultilabelPredictionResult(Scores):
    """Scores of predictions of several labels per node; `MultilabelResult` says what they are."""

    val_micro_f1: float


@dataclass(frozen=True, repr=False, kw_only=True)
class MultilabelResult(MultilabelPredictionResult):
    """Scores of the probe on the test nodes, and its budget, which changes PPI's score by points.

    Attributes:
        micro_f1: F1 over all pairs of node and label together; a label is predicted above
            probability 0.5.
        macro_f1: mean of the F1 scores of the labels.
        accuracy: fraction of pairs of node and label that are right.
        val_micro_f1: micro-F1 on the validation nodes at the chosen strength.
        split: ``given``; or, if the graph has none, ``random`` or ``cross-validation``.
        nodes: numbers of train, validation and test nodes used; see `ProbeResult`.
        majority: the highest micro-F1 of giving all test nodes the same labels.
        strength: λ of the penalty λ/2 ‖w‖² added to the mean loss, chosen on validation nodes only;
            in scikit-learn's terms 1 / (C · training nodes).
        strengths: the values of λ that were tried; none are listed of a cross-validation.
        steps: number of updates, each over all training nodes; 0 of a cross-validation.
        optimiser: the optimiser of these updates.
        folds: of the cross-validation; 0 where there is one split.
    """

    strength: float
    strengths: tuple[float, ...]
    steps: int
    optimiser: str
    folds: int = 0


def multilabel_probe(
    z: Splits,
    y: Splits,
    *,
    strengths: Sequence[float] = STRENGTHS,
    steps: int = PROBE_STEPS,
    device: str | torch.device = "auto",
    split: str = "given",
    on_step: Callable[[int], None] = lambda _: None,
) -> MultilabelResult:
    """Trains one logistic regression per label on train nodes and scores them on test nodes.

    Embeddings are standardised with the mean and deviation of the training rows alone; a column
    that is constant there, up to rounding, becomes 0. All labels have the same strength of the L2
    penalty: the one with the highest validation micro-F1 (the strongest on a tie). Test rows and
    labels are only read after this choice. Nothing here is random.

    Args:
        z: embeddings of the train, validation and test nodes, each ``[nodes, dim]``; arrays, or
            tensors on any device.
        y: their labels, each ``[nodes, labels]``, 0 or 1.
        strengths: λ of the penalty λ/2 ‖w‖².
        steps: number of updates; too few to converge give a lower score.
        device: where to train: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        split: where the three parts come from; copied to the result.
        on_step: called after each step with its number, from 1.

    Raises:
        GraphError: the arrays do not fit each other, a part is empty, or a value is not finite.
        ParameterError: no strength, a negative one, or no step.
    """
    require(steps >= 1, "multilabel_probe", "steps", "at least 1", steps)
    allowed = len(strengths) > 0 and all(0 <= strength < math.inf for strength in strengths)
    require(allowed, "multilabel_probe", "strengths", "one or more, each 0 or more", strengths)
    where = resolve_device(device)
    rows, labels = [_tensor(part, where) for part in z], [_tensor(part, where) for part in y]
    _check(rows, labels)
    train, val, test = _standardise(rows)
    ordered = sorted(strengths, reverse=True)  # the first of equals is the strongest
    weight, bias = fit_multilabel(train, labels[0], strengths=ordered, steps=steps, on_step=on_step)
    scores = [_f1(val @ w + b > 0, labels[1])[0] for w, b in zip(weight, bias, strict=True)]
    best = scores.index(max(scores))
    predicted = test @ weight[best] + bias[best] > 0
    micro, macro = _f1(predicted, labels[2])
    return MultilabelResult(
        micro_f1=micro,
        macro_f1=macro,
        accuracy=float((predicted == (labels[2] > 0)).float().mean()),
        val_micro_f1=scores[best],
        strength=ordered[best],
        strengths=tuple(ordered),
        steps=steps,
        optimiser=f"full-batch Adam, learning rate {LEARNING_RATE} with cosine decay",
        split=split,
        nodes=(len(train), len(val), len(test)),
        majority=majority_share(labels[2].cpu().numpy()),
    )


def held_out_scores(
    z: Any, y: Any, others: Any, *, steps: int = PROBE_STEPS, device: str | torch.device = "auto"
) -> Any:
    """Returns the scores of `others` by the regressions of `multilabel_probe` on `z` and `y`.

    They are ``[strengths, others, labels]``, above 0 where a label is predicted. No label of
    `others` is passed, so none can be used.
    """
    where = resolve_device(device)
    rows, labels = [_tensor(part, where) for part in (z, others)], _tensor(y, where)
    _check(rows[:1], [labels])
    train, rest = _standardise(rows)
    weight, bias = fit_multilabel(train, labels, strengths=STRENGTHS, steps=steps)
    return (rest @ weight + bias[:, None]).cpu().numpy()


@torch.no_grad()
def fit_multilabel(
    z: Tensor,
    y: Tensor,
    *,
    strengths: Sequence[float],
    steps: int = PROBE_STEPS,
    on_step: Callable[[int], None] = lambda _: None,
) -> tuple[Tensor, Tensor]:
    r"""Minimises the mean loss of every label plus λ/2 ‖w‖², for every λ, starting from zero.

    With :math:`P = \mathrm{sigmoid}(ZW + b)` the gradient is :math:`Z^\top (P - Y) / N + \lambda
    W`. It is computed directly, by two products per step and without autograd.

    The bias is not penalised. Adam's learning rate falls to 0 along a cosine. `z` is ``[nodes,
    dim]`` and `y`, of the same type, ``[nodes, labels]``, 0 or 1. For S values of λ the result is
    weights ``[S, dim, labels]`` and biases ``[S, labels]``.
    """
    (num_nodes, dim), num_labels = z.shape, y.shape[1]
    columns = len(strengths) * num_labels
    weight, bias = z.new_zeros(dim, columns), z.new_zeros(columns)
    weight.grad, bias.grad = torch.empty_like(weight), torch.empty_like(bias)
    decay = z.new_tensor(strengths).repeat_interleave(num_labels)
    adam = Adam([weight, bias], lr=LEARNING_RATE, fused=True)
    error = z.new_empty(num_nodes, columns)  # P, then P − Y, in the same memory
    by_strength = error.view(num_nodes, len(strengths), num_labels)
    for step in range(steps):
        torch.addmm(bias, z, weight, out=error)
        error.sigmoid_()
        by_strength.sub_(y[:, None])
        torch.mm(z.T, error, out=weight.grad)
        weight.grad.div_(num_nodes).addcmul_(decay, weight)
        torch.mean(error, dim=0, out=bias.grad)
        adam.param_groups[0]["lr"] = LEARNING_RATE * (1 + math.cos(math.pi * step / steps)) / 2
        adam.step()
        on_step(step + 1)
    return (
        weight.view(dim, len(strengths), num_labels).transpose(0, 1),
        bias.view(len(strengths), num_labels),
    )


def _tensor(part: Any, device: torch.device) -> Tensor:
    array = part if isinstance(part, Tensor) else torch.tensor(np.asarray(part))
    return array.to(device, torch.float32)


def _f1(predicted: Tensor, truth: Tensor) -> tuple[float, float]:
    """Returns micro- and macro-F1; a label that no node has and none is predicted scores 0."""
    hits = (predicted & (truth > 0)).sum(0).double()
    given_and_true = (predicted.sum(0) + (truth > 0).sum(0)).double()
    micro = 2 * hits.sum() / given_and_true.sum().clamp(min=1)
    macro = (2 * hits / given_and_true.clamp(min=1)).mean()
    return float(micro), float(macro)


def _standardise(rows: list[Tensor]) -> list[Tensor]:
    mean, spread = rows[0].mean(0), rows[0].std(0, correction=0)
    # Divided by rounding errors, a constant column would drown all others in the other rows.
    flat = spread <= 4 * torch.finfo(spread.dtype).eps * mean.abs()
    scale = torch.where(flat, torch.inf, spread)
    return [(part - mean) / scale for part in rows]


def _check(rows: list[Tensor], labels: list[Tensor]) -> None:
    for name, part, label in zip(("train", "validation", "test"), rows, labels, strict=False):
        shapes = f"{tuple(part.shape)} embeddings and {tuple(label.shape)} labels"
        demand(
            part.ndim == label.ndim == 2 and len(part) == len(label),
            f"probe: {shapes} of the {name} nodes do not fit each other",
        )
        demand(len(part), f"probe: there are no {name} nodes")
        demand(
            part.shape[1] == rows[0].shape[1] and label.shape[1] == labels[0].shape[1],
            f"probe: {shapes} of the {name} nodes differ in width from train's",
        )
        demand(
            bool(part.isfinite().all()), f"probe: an embedding of the {name} nodes is not finite"
        )
        demand(
            bool(((label == 0) | (label == 1)).all()),
            f"probe: a label of the {name} nodes is neither 0 nor 1",
        )
