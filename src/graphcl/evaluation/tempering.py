"""Averages of regressions over strengths of the penalty, with temperatures, by held-out labels.

Why strengths are averaged, and what a temperature leaves as it is: see `calibration`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.evaluation.probe import STRENGTHS as WIDE_STRENGTHS

Array = npt.NDArray[Any]
STRENGTHS = tuple(one for one in WIDE_STRENGTHS if one < 0.2)  # T makes up for weaker penalties
_TEMPERATURES = np.geomspace(1 / 64, 256, 60)
_LEVELS = np.concatenate([[0.001, 0.01], np.arange(0.04, 0.97, 0.04), [0.98, 0.99, 0.999]])
_FINE = np.linspace(0.001, 0.999, 500)  # levels between which the loss is interpolated
_LEAST_WEIGHT = 0.01  # of a strength that is worth its time


@dataclass(frozen=True)
class Term:
    """A part of the average: a strength, by its place in `STRENGTHS`."""

    place: int
    temperature: float
    weight: float


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Scores of held-out nodes for every strength; a node has a row per division into folds."""

    rows: Array  # the labelled node of each row
    part: Array  # the number of the regression that was fitted without it
    folds: int
    scores: Array  # [strengths, rows, outputs]
    targets: Array  # [rows, outputs]
    shares: Array  # [rows, outputs]: log, of the nodes that the row's regression was fitted to
    several: bool

    @cached_property
    def temperatures(self) -> Array:
        """Those that lead to the levels of confidence, ``[strengths, levels]``.

        It is the mean confidence if all classes were equally frequent, so it falls with the
        temperature: level 0 is chance, level 1 certainty.
        """
        some = np.linspace(0, len(self.rows) - 1, min(len(self.rows), 2000)).astype(np.int64)
        chance = 0.5 if self.several else 1 / self.targets.shape[1]
        scores = self.scores[:, some] - self.shares[some]
        reached = np.stack([_confidence(scores / one, self.several) for one in _TEMPERATURES])
        levels = (reached.T - chance) / (1 - chance)
        logs = [np.interp(-_LEVELS, -one, np.log(_TEMPERATURES)) for one in levels]
        temperatures: Array = np.exp(np.array(logs))
        return temperatures

    @cached_property
    def losses(self) -> Array:
        """−log p of what is true, in each row, ``[strengths, levels, rows]``."""
        found: Array = np.empty((*self.temperatures.shape, len(self.rows)), np.float32)
        for level in range(self.temperatures.shape[1]):
            one = self.temperatures[:, level, None, None]
            scores = _tempered(self.scores, one, self.shares)
            found[:, level] = _loss(scores, self.targets, self.several)
        return found

    def choose(self) -> list[Term]:
        """Returns strengths with their weights and temperatures, by the labels of the rows."""
        from scipy.interpolate import PchipInterpolator

        _, node, times = np.unique(self.rows, return_inverse=True, return_counts=True)
        once = 1 / times[node]  # a node counts once, however often it was held out
        loss = self.losses @ once
        fine = PchipInterpolator(_LEVELS, loss, axis=1)(_FINE)
        likelihood = np.exp(fine.min() - fine)
        weight = likelihood.sum(axis=1) / likelihood.sum()
        level = (likelihood @ _FINE) / likelihood.sum(axis=1).clip(min=1e-300)
        return [
            Term(
                place,
                float(np.exp(np.interp(level[place], _LEVELS, np.log(self.temperatures[place])))),
                float(weight[place]),
            )
            for place in np.flatnonzero(weight >= min(_LEAST_WEIGHT, weight.max())).tolist()
        ]


def log_shares(targets: Array, several: bool) -> Array:
    """Returns the log of the classes' shares or, with `several`, of the labels' odds.

    Half a node is added to each, so that a class without nodes has a finite share.
    """
    there = targets.sum(axis=0) + 0.5
    found: Array = np.log(there / ((len(targets) + 1 - there) if several else there.sum()))
    return found


def _tempered(scores: Array, temperature: Any, shares: Array) -> Array:
    found: Array = (scores - shares) / temperature + shares
    return found


def average(terms: list[Term], scores: Array, shares: Array, several: bool) -> Array:
    """Returns the weighted mean of probabilities; scores are ``[strengths, rows, outputs]``."""
    total = sum(term.weight for term in terms)
    found: Array = np.zeros(scores.shape[1:])
    for term in terms:
        tempered = _tempered(scores[term.place], term.temperature, shares)
        found += term.weight / total * _to_probabilities(tempered, several)
    return found


def _to_probabilities(scores: Array, several: bool) -> Array:
    from scipy.special import expit, softmax

    found: Array = expit(scores) if several else softmax(scores, axis=-1)
    return found


def _confidence(scores: Array, several: bool) -> Array:
    """Returns the mean confidence of each table of ``[tables, rows, outputs]``."""
    probability = _to_probabilities(scores, several)
    best = np.maximum(probability, 1 - probability) if several else probability.max(axis=-1)
    found: Array = best.reshape(len(scores), -1).mean(axis=1)
    return found


def _loss(scores: Array, targets: Array, several: bool) -> Array:
    from scipy.special import log_expit, log_softmax

    if several:
        right = targets * log_expit(scores) + (1 - targets) * log_expit(-scores)
    else:
        right = targets * log_softmax(scores, axis=-1)
    found: Array = -right.sum(axis=-1)
    return found
