r"""A probe that gives probabilities, from few labels, and says honestly how often it is wrong.

Labelled nodes are divided into folds, each class evenly. Every fold is scored by regressions that
were fitted without it, for every strength of the penalty: the *held-out* scores. For a strength,
the temperature T of

.. math:: p = \mathrm{softmax}(s / T) \quad\text{or}\quad p = \mathrm{sigmoid}(s / T)

is the one with the least log-loss of the held-out scores (Guo et al., 2017), and the strength with
the least log-loss is chosen. Log-loss sees rare classes, which accuracy does not. The probe is then
fitted on all labelled nodes.

The error that is reported is that of the folds. Strength and temperature of a fold are chosen on
the other folds, so no node takes part in a choice by which it is scored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphcl.errors import GraphError
from graphcl.evaluation.failure import majority_share
from graphcl.evaluation.logistic import Fitted, fit_logistic_batch
from graphcl.evaluation.probe import STRENGTHS, check_embeddings, standardiser

Array = npt.NDArray[Any]
BINS = 10
FOLDS = 5
MORE_FOLDS, FEW_NODES = 10, 300  # of so few nodes, each fold's regression needs all it can get
REPEATS, REPEATED_NODES = 3, 2000  # other divisions into folds: with few nodes one is chance
MOST_TESTED = 20_000  # labelled nodes in folds; more do not change the error's first digits
_BLOCK = 1 << 16  # rows that are scored at a time
_VALUES = 1 << 24  # inputs and outputs of regressions that are fitted at once, 64 MB
_COLDEST, _HOTTEST = 1 / 32, 128.0


@dataclass(frozen=True)
class PredictionError:
    """How often predictions are wrong, measured on labelled nodes that were held out.

    Attributes:
        accuracy: fraction of nodes whose most probable class is right; with several labels per
            node, the fraction of pairs of node and label that are right.
        macro_f1: mean of the F1 scores of the classes or labels.
        micro_f1: equals the accuracy for one class per node; with several labels, F1 over all
            pairs of node and label.
        log_loss: mean of −log p of what is true, per node or per pair of node and label.
        calibration_error: ECE with `BINS` bins: how far confidence is from the fraction that is
            right, on average. It is 0 if of all answers with probability 0.8, 80 % are right.
        majority: the score of one answer for all nodes: accuracy, or micro-F1 for several labels.
        standard_error: of the accuracy, for so many nodes: from ten labels, nobody can know it
            better than this.
        nodes: how many nodes were held out, each in turn.
        folds: into how many parts.
        how: ``cross-validation``, or ``held-out nodes``.
    """

    accuracy: float
    macro_f1: float
    micro_f1: float
    log_loss: float
    calibration_error: float
    majority: float
    standard_error: float
    nodes: int
    folds: int
    how: str = "cross-validation"


@dataclass(frozen=True, eq=False)
class CalibratedProbe:
    """Logistic regression with a temperature.

    Attributes:
        several: whether a node may have several labels; otherwise classes exclude each other.
        strength: C of the penalty.
        temperature: what scores are divided by; above 1 makes probabilities more cautious.
        error: measured on folds; None if there were too few labels for that.
        held_out: the probabilities of every labelled node by regressions that were fitted without
            it, ``[labelled, outputs]``; NaN for those that were never held out.
    """

    several: bool
    strength: float
    temperature: float
    error: PredictionError | None
    held_out: Array
    _fitted: Fitted
    _standard: Callable[[Array], Array]

    def probabilities(self, z: Array) -> Array:
        """Returns the probability of every class or label, float32 ``[rows, outputs]``."""
        blocks = [z[start : start + _BLOCK] for start in range(0, len(z), _BLOCK)]
        found = [_scores(self._fitted, self._standard, block)[0] for block in blocks]
        scores = np.concatenate(found) if found else np.zeros((0, self.held_out.shape[1]))
        return to_probabilities(scores, self.temperature, self.several).astype(np.float32)


def fit_calibrated(z: Array, targets: Array, *, several: bool, seed: int = 0) -> CalibratedProbe:
    """Fits a probe on labelled nodes and measures its error on folds of them.

    Args:
        z: embeddings of the labelled nodes, ``[labelled, dim]``.
        targets: 0/1 ``[labelled, outputs]``; without `several`, one 1 in each row.
        several: whether a node may have several labels.
        seed: decides the folds.

    Raises:
        GraphError: there is nothing to tell apart, or an embedding is not finite.
    """
    check_embeddings(z)
    counts = targets.sum(axis=0)
    varied = ((counts > 0) & (counts < len(z))).sum()
    if varied < (1 if several else 2):
        what = "label that some nodes have and others lack" if several else "second class"
        raise GraphError(f"predict: the labelled nodes hold no {what}")
    random = np.random.default_rng(seed)
    held = _hold_out(z, targets, several, random)
    if held is None:
        strength, temperature, error = 0.01, 1.0, None
        held_out = np.full(targets.shape, np.nan)
    else:
        strength, temperature = held.choose(np.ones(len(held.rows), np.bool_))
        error, held_out = held.judge(len(z))
    standard = standardiser(z)
    problem = (_tensor(standard(z)), _tensor(targets))
    fitted = fit_logistic_batch([problem], (strength,), softmax=not several)[0]
    return CalibratedProbe(several, strength, temperature, error, held_out, fitted, standard)


@dataclass(frozen=True, eq=False)
class _HeldOut:
    """Scores of held-out nodes for every strength; a node has a row per division into folds."""

    rows: Array  # the labelled node of each row
    fold: Array  # numbered within a division
    scores: Array  # [strengths, rows, outputs]
    targets: Array  # [rows, outputs]
    several: bool

    def choose(self, allowed: Array) -> tuple[float, float]:
        """Returns the strength and the temperature with the least log-loss of some rows."""
        least, best = np.inf, (STRENGTHS[0], 1.0)
        targets, count = self.targets[allowed], len(np.unique(self.rows[allowed]))
        for strength, scores in zip(STRENGTHS, self.scores[:, allowed], strict=True):
            temperature, loss = fit_temperature(scores, targets, self.several, nodes=count)
            if loss < least - 1e-9:  # the strongest penalty on a tie
                least, best = loss, (strength, temperature)
        return best

    def judge(self, labelled: int) -> tuple[PredictionError, Array]:
        """Returns the error, and the mean held-out probabilities of each labelled node."""
        found: Array = np.zeros(self.targets.shape)
        for fold in np.unique(self.fold):
            mine = self.fold == fold
            strength, temperature = self.choose(~mine)
            scores = self.scores[STRENGTHS.index(strength), mine]
            found[mine] = to_probabilities(scores, temperature, self.several)
        means, times = np.zeros((labelled, self.targets.shape[1])), np.zeros(labelled)
        np.add.at(means, self.rows, found)
        np.add.at(times, self.rows, 1)
        with np.errstate(invalid="ignore"):
            means /= times[:, None]
        folds, nodes = len(np.unique(self.fold)), int((times > 0).sum())
        return measure(found, self.targets, self.several, nodes=nodes, folds=folds), means


def _hold_out(z: Array, targets: Array, several: bool, random: np.random.Generator) -> Any:
    """Returns held-out scores; None if no class has two nodes."""
    kinds = targets.argmax(axis=1) if not several else _rarest(targets)
    counts = np.bincount(kinds)
    # The only node of a class would be scored by a regression that has never seen the class.
    testable = np.flatnonzero((counts[kinds] > 1) | several)
    if len(testable) < 2 or (not several and len(np.unique(kinds[testable])) < 2):
        return None
    if len(testable) > MOST_TESTED:
        testable = np.sort(random.choice(testable, MOST_TESTED, replace=False))
    always = np.setdiff1d(np.arange(len(z)), testable)[:MOST_TESTED]
    folds = min(MORE_FOLDS if len(testable) <= FEW_NODES else FOLDS, len(testable))
    repeats = REPEATS if len(testable) <= REPEATED_NODES else 1
    parts = []  # train and test nodes, and the number of the fold
    for _ in range(repeats):
        place = deal(kinds[testable], folds, random)
        for number in range(folds):
            test = testable[place == number]
            train = np.concatenate([testable[place != number], always])
            if len(test) and (targets[train].sum(axis=0) < len(train)).any():
                parts.append((train, test, number))
    outputs = targets.shape[1] * len(STRENGTHS)
    together = max(1, _VALUES // (len(z) * (z.shape[1] + outputs)))
    scores: list[Array] = []
    for start in range(0, len(parts), together):
        scores += _score_parts(z, targets, parts[start : start + together], several)
    every = np.concatenate([test for _, test, _ in parts])
    fold = np.concatenate([np.full(len(test), number) for _, test, number in parts])
    return _HeldOut(every, fold, np.concatenate(scores, axis=1), targets[every], several)


def _score_parts(z: Array, targets: Array, parts: list[Any], several: bool) -> list[Array]:
    """Fits several folds at once; returns the scores of their test nodes."""
    standards = [standardiser(z[train]) for train, _, _ in parts]  # each by its train rows alone
    problems = [
        (_tensor(standard(z[train])), _tensor(targets[train]))
        for (train, _, _), standard in zip(parts, standards, strict=True)
    ]
    fitted = fit_logistic_batch(problems, STRENGTHS, softmax=not several)
    return [
        _scores(one, standard, z[test])
        for one, standard, (_, test, _) in zip(fitted, standards, parts, strict=True)
    ]


def _rarest(targets: Array) -> Array:
    """Returns the rarest label of each node, by which several labels are spread over folds."""
    counts = np.where(targets > 0, targets.sum(axis=0), np.inf)
    rarest: Array = np.where(targets.any(axis=1), counts.argmin(axis=1), targets.shape[1])
    return rarest


def deal(kinds: Array, folds: int, random: np.random.Generator) -> Array:
    """Deals nodes to folds like cards, class by class; returns the fold of each node."""
    place, first = np.empty(len(kinds), np.int64), 0
    for kind in np.unique(kinds):
        members = random.permutation(np.flatnonzero(kinds == kind))
        place[members] = (first + np.arange(len(members))) % folds
        first += len(members)
    return place


def _scores(fitted: Fitted, standard: Callable[[Array], Array], z: Array) -> Array:
    found: Array = fitted.scores(_tensor(standard(z))).numpy().astype(np.float64)
    return found


def _tensor(values: Array) -> Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.float32)


def to_probabilities(scores: Array, temperature: float, several: bool) -> Array:
    """Returns softmax or, with `several`, sigmoid of scores divided by a temperature."""
    from scipy.special import expit, softmax

    found: Array = expit(scores / temperature) if several else softmax(scores / temperature, axis=1)
    return found


def fit_temperature(
    scores: Array, targets: Array, several: bool, *, nodes: int
) -> tuple[float, float]:
    """Returns the temperature with the least log-loss, and that loss.

    Targets are smoothed as if one more node of every class had been seen: with ten nodes that are
    all right, certainty would otherwise look best.
    """
    from scipy.optimize import minimize_scalar

    smoothing = 1 / (nodes + 2)

    def loss(cold: float) -> float:  # convex in 1/T, so there is one minimum
        return _log_loss(scores * np.exp(cold), targets, several, smoothing)

    bounds = (-np.log(_HOTTEST), -np.log(_COLDEST))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 0.01})
    return float(np.exp(-found.x)), float(found.fun)


def _log_loss(scores: Array, targets: Array, several: bool, smoothing: float = 0.0) -> float:
    from scipy.special import log_expit, log_softmax

    if several:
        wanted = targets * (1 - 2 * smoothing) + smoothing
        right = wanted * log_expit(scores) + (1 - wanted) * log_expit(-scores)
        return float(-right.mean())
    spread = smoothing / max(1, targets.shape[1] - 1)
    wanted = targets * (1 - smoothing - spread) + spread
    return float(-(wanted * log_softmax(scores, axis=1)).sum(axis=1).mean())


def measure(
    probability: Array,
    targets: Array,
    several: bool,
    *,
    nodes: int,
    folds: int = 1,
    how: str = "cross-validation",
) -> PredictionError:
    """Compares probabilities ``[rows, outputs]`` with the truth, 0/1 of the same shape."""
    from sklearn.metrics import f1_score

    tiny = np.finfo(np.float64).tiny
    if several:
        given = probability > 0.5
        right = (given == targets).mean()
        loss = -np.log(np.maximum(np.where(targets > 0, probability, 1 - probability), tiny)).mean()
        micro = f1_score(targets, given, average="micro", zero_division=0)
        macro = f1_score(targets, given, average="macro", zero_division=0)
        majority = majority_share(targets)
    else:
        truth, guess = targets.argmax(axis=1), probability.argmax(axis=1)
        right = micro = (truth == guess).mean()
        loss = -np.log(np.maximum(probability[np.arange(len(truth)), truth], tiny)).mean()
        macro = f1_score(truth, guess, average="macro", zero_division=0)
        majority = majority_share(truth)
    return PredictionError(
        accuracy=float(right),
        macro_f1=float(macro),
        micro_f1=float(micro),
        log_loss=float(loss),
        calibration_error=calibration_error(probability, targets, several),
        majority=majority,
        standard_error=float(np.sqrt(right * (1 - right) / nodes)),
        nodes=nodes,
        folds=folds,
        how=how,
    )


def calibration_error(probability: Array, targets: Array, several: bool) -> float:
    """Returns the expected calibration error (ECE), with `BINS` bins of equal width.

    Answers are grouped by their probability. In each group, the mean probability is compared with
    the fraction that is right, and the differences are averaged, weighted by the groups' sizes. An
    answer is the most probable class of a node; with `several`, every pair of node and label.
    """
    if several:
        confidence, right = probability.ravel(), targets.ravel() > 0
    else:
        confidence = probability.max(axis=1)
        right = probability.argmax(axis=1) == targets.argmax(axis=1)
    group = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(group, weights=confidence - right, minlength=BINS)
    return float(np.abs(gaps).sum() / max(1, len(confidence)))
