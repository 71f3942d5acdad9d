r"""Whether one of several models is better than another, on the same held-out nodes.

The best of several models looks better than it is, and some rival is better by chance in most
samples. So the labelled nodes have two halves. The first compares: a rival is called better if a
paired test says so at the level `LEVEL`, divided by the number of rivals. The second measures the
model that was chosen. Its nodes took no part in the choice, so the choice cannot inflate the score.

A score is written as a mean over nodes, and the test is one of the *difference* of two models'
terms: if neither is better, each difference may as well have the other sign. For a ROC-AUC the
terms are those of DeLong (1988); for micro-F1, those of its first-order expansion. Held-out nodes
are not independent, since the models that score them share most of their labels: the variance of a
mean difference is more than twice as large as for independent nodes (Nadeau and Bengio, 2003).
"""

import numpy as np

from graphcl.arrays import Array, blocks
from graphcl.evaluation.folds import deal

LEVEL = 0.05  # how often some rival may be called better although none is
_VARIANCE = 2.2  # of a mean difference in cross-validation, beside that of independent nodes
_FLIPS = 10_000  # signs that are drawn; the smallest p-value is 1 / (_FLIPS + 1)
_DRAWN = 200  # at a time


def first_half(targets: Array, kind: str, random: np.random.Generator) -> Array:
    """Returns which labelled nodes compare models, about half of every class; the others measure.

    Args:
        targets: 0/1 ``[labelled, outputs]``, or numbers ``[labelled]``.
        kind: ``classes`` that exclude each other, ``several`` labels per node, or a ``number``.
        random: deals the nodes.
    """
    groups = np.zeros(len(targets), np.int64)
    if kind == "classes":
        groups = targets.argmax(axis=1)
    return np.asarray(deal(groups, 2, random) == 0)


def score_terms(score: str, answers: Array, targets: Array, weight: Array | None = None) -> Array:
    """Returns a term of each node; their weighted mean is the score.

    Args:
        score: ``ROC-AUC``, ``accuracy``, ``micro-F1`` or ``R²``.
        answers: probabilities ``[nodes, outputs]``, or numbers ``[nodes]``.
        targets: the truth, of the same shape.
        weight: how much each node counts. (default: all the same)
    """
    count = np.ones(len(targets)) if weight is None else weight
    if score == "ROC-AUC":
        return _area_terms(answers[:, 1], targets[:, 1] > 0, count)
    if score == "micro-F1":
        return _f1_terms(answers > 0.5, targets > 0, count)
    if score == "accuracy":
        right: Array = answers.argmax(axis=1) == targets.argmax(axis=1)
        return right.astype(np.float64)
    unit = float(np.abs(targets).max()) or 1.0  # squares of large numbers are not finite
    variance = float((targets / unit).var())
    if variance == 0:
        return np.zeros(len(targets))
    return np.asarray(1 - np.square((answers - targets) / unit) / variance)


def _area_terms(risk: Array, wanted: Array, count: Array) -> Array:
    """Returns for each node how often it is on the right side of those of the other class."""
    found = np.empty(len(risk))
    weights = count / count.sum()
    for own, side in ((wanted, 1), (~wanted, -1)):
        order = np.argsort(side * risk[~own], kind="stable")
        below = np.append(0.0, np.cumsum(weights[~own][order]))
        sorted_others = (side * risk[~own])[order]
        first = np.searchsorted(sorted_others, side * risk[own], side="left")
        last = np.searchsorted(sorted_others, side * risk[own], side="right")
        found[own] = (below[first] + below[last]) / 2 / below[-1]  # ties are half right
    area = float(np.average(found[wanted], weights=weights[wanted]))
    share = np.where(wanted, weights[wanted].sum(), weights[~wanted].sum())
    return np.asarray(area + (found - area) / share)


def _f1_terms(chosen: Array, true: Array, count: Array) -> Array:
    hits = 2 * (chosen & true).sum(axis=1)
    both = chosen.sum(axis=1) + true.sum(axis=1)
    mean = float(np.average(both, weights=count))
    if mean == 0:
        return np.zeros(len(chosen))
    score = float(np.average(hits, weights=count)) / mean
    return np.asarray(score + (hits - score * both) / mean)


def chance_of_gain(gain: Array, weight: Array | None = None, *, seed: int = 0) -> float:
    """Returns how often differences of random signs have a mean as large: a one-sided p-value.

    Args:
        gain: the difference of two models' terms, of each node.
        weight: how much each node counts. (default: all the same)
        seed: draws the signs.
    """
    weighted = gain if weight is None else gain * weight
    weighted = weighted[weighted != 0]  # nodes on which both agree say nothing
    total = float(weighted.sum())
    if total <= 0:
        return 1.0
    random = np.random.default_rng(seed)
    least = total / _VARIANCE**0.5 * (1 - 1e-9)  # equal sums may differ by rounding
    reached = 0
    for block in blocks(_FLIPS, _DRAWN):
        signs = random.integers(0, 2, (len(range(_FLIPS)[block]), len(weighted)), dtype=np.int8)
        reached += int(((2 * signs - 1) @ weighted >= least).sum())
    return (reached + 1) / (_FLIPS + 1)
