"""Inputs and strengths of a penalty, weighed by the labels of nodes that were held out.

A term is one regression of the average: an input, a strength, and a temperature. The equations are
those of `graphcl.evaluation.calibration`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphcl.arrays import Array
from graphcl.evaluation.probe import STRENGTHS as WIDE_STRENGTHS

STRENGTHS = tuple(one for one in WIDE_STRENGTHS if one < 0.2)  # T makes up for weaker penalties
_TEMPERATURES = np.geomspace(1 / 64, 256, 60)
_LEVELS = np.concatenate([[0.001, 0.01], np.arange(0.04, 0.97, 0.04), [0.98, 0.99, 0.999]])
_FINE = np.linspace(0.001, 0.999, 500)  # levels between which the loss is interpolated
LEAST_WEIGHT = 0.01  # of a term that is worth its time


@dataclass(frozen=True)
class Term:
    """A part of the average: an input and a strength. The place counts strengths, per input."""

    place: int
    temperature: float
    weight: float

    @property
    def input(self) -> int:
        """The number of the input."""
        return self.place // len(STRENGTHS)

    @property
    def strength(self) -> float:
        """C of the penalty."""
        return float(STRENGTHS[self.place % len(STRENGTHS)])


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Scores of held-out nodes for every input and strength; a node has a row per division."""

    rows: Array  # the labelled node of each row
    part: Array  # the number of the regression that was fitted without it
    folds: int
    scores: Array  # [inputs · strengths, rows, outputs]
    targets: Array  # [rows, outputs]
    shares: Array  # [rows, outputs]: log, of the nodes that the row's regression was fitted to
    several: bool

    @cached_property
    def temperatures(self) -> Array:
        """Those that lead to the levels of confidence, ``[inputs · strengths, levels]``.

        It is the mean confidence if all classes were equally frequent, so it falls with the
        temperature: level 0 is chance, level 1 certainty.
        """
        some = np.linspace(0, len(self.rows) - 1, min(len(self.rows), 2000)).astype(np.int64)
        chance = 0.5 if self.several else 1 / self.targets.shape[1]
        scores = self.scores[:, some] - self.shares[some]
        reached = np.stack([_confidence(scores / one, self.several) for one in _TEMPERATURES])
        levels = (reached.T - chance) / (1 - chance)
        logs = [np.interp(-_LEVELS, -one, np.log(_TEMPERATURES)) for one in levels]
        return np.asarray(np.exp(np.array(logs)))

    @cached_property
    def losses(self) -> Array:
        """−log p of what is true, in each row, ``[inputs · strengths, levels, rows]``."""
        found: Array = np.empty((*self.temperatures.shape, len(self.rows)), np.float32)
        for level in range(self.temperatures.shape[1]):
            one = self.temperatures[:, level, None, None]
            scores = _tempered(self.scores, one, self.shares)
            found[:, level] = _loss(scores, self.targets, self.several)
        return found

    def choose(self) -> list[Term]:
        """Returns inputs and strengths with weights and temperatures, by the labels of the rows."""
        from scipy.interpolate import PchipInterpolator

        _, node, times = np.unique(self.rows, return_inverse=True, return_counts=True)
        once = 1 / times[node]  # a node counts once, however often it was held out
        loss = self.losses @ once
        fine = PchipInterpolator(_LEVELS, loss, axis=1)(_FINE)
        likelihood = np.exp(fine.min(axis=1, keepdims=True) - fine)
        level = (likelihood @ _FINE) / likelihood.sum(axis=1)
        evidence = np.log(likelihood.sum(axis=1)) - fine.min(axis=1)
        weight = np.exp(evidence - evidence.max())
        weight /= weight.sum()
        return [
            Term(
                place,
                float(np.exp(np.interp(level[place], _LEVELS, np.log(self.temperatures[place])))),
                float(weight[place]),
            )
            for place in np.flatnonzero(weight >= min(LEAST_WEIGHT, weight.max())).tolist()
        ]


def log_shares(targets: Array, several: bool) -> Array:
    """Returns the log of the classes' shares or, with `several`, of the labels' odds.

    Half a node is added to each, so that a class without nodes has a finite share.
    """
    there = targets.sum(axis=0) + 0.5
    return np.asarray(np.log(there / ((len(targets) + 1 - there) if several else there.sum())))


def _tempered(scores: Array, temperature: Any, shares: Array) -> Array:
    return np.asarray((scores - shares) / temperature + shares)


def average(terms: list[Term], scores: Any, shares: Array, several: bool) -> Array:
    """Returns the mean of probabilities by weight; scores are those of each place."""
    total = sum(term.weight for term in terms)
    tempered = (_tempered(scores[term.place], term.temperature, shares) for term in terms)
    each = (_to_probabilities(one, several) for one in tempered)
    return np.asarray(sum(term.weight / total * one for term, one in zip(terms, each, strict=True)))


def _to_probabilities(scores: Array, several: bool) -> Array:
    from scipy.special import expit

    return np.asarray(expit(scores) if several else _over_outputs(torch.softmax, scores))


def _over_outputs(function: Callable[[Tensor, int], Tensor], scores: Array) -> Array:
    """Returns a function of torch over the last axis.

    With that axis first, a processor takes many rows at once, which is five times as fast.
    """
    return np.asarray(function(torch.from_numpy(scores).movedim(-1, 0), 0).movedim(0, -1))


def _confidence(scores: Array, several: bool) -> Array:
    """Returns the mean confidence of each table of ``[tables, rows, outputs]``."""
    probability = _to_probabilities(scores, several)
    best = np.maximum(probability, 1 - probability) if several else probability.max(axis=-1)
    return np.asarray(best.reshape(len(scores), -1).mean(axis=1))


def _loss(scores: Array, targets: Array, several: bool) -> Array:
    from scipy.special import log_expit

    if several:
        right = targets * log_expit(scores) + (1 - targets) * log_expit(-scores)
    else:
        right = targets * _over_outputs(torch.log_softmax, scores)
    return np.asarray(-right.sum(axis=-1))
