"""What answers are worth on labelled nodes that were held out, and whether a plain rival is better.

See `graphcl.evaluation.paired` for the two halves of the labelled nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from graphcl.answers.answering import reweighted
from graphcl.answers.inputs import KnownLabels
from graphcl.answers.predicted import OURS, RivalScore
from graphcl.answers.rivals import Rival
from graphcl.arrays import Array
from graphcl.evaluation.folds import ascending
from graphcl.evaluation.paired import chance_of_gain, first_half, score_terms
from graphcl.evaluation.prediction_error import PredictionError, measure
from graphcl.evaluation.regression import NumberError, measure_number


@dataclass(frozen=True, eq=False)
class Judge:
    """Measures answers for labelled nodes that were held out.

    Attributes:
        known: the labels.
        labelled: numbers of the labelled nodes.
        factor: how many times as frequent each class is among all nodes as among labelled ones.
        level: of a number: how often it is to be within its interval.
    """

    known: KnownLabels
    labelled: Array
    factor: Array | None
    level: float

    @cached_property
    def truth(self) -> Array:
        """The targets of the labelled nodes."""
        return np.asarray(self.known.targets[self.labelled])

    def weight(self, some: Array) -> Array | None:
        """Returns how much each of some labelled nodes counts; None if all count the same."""
        return None if self.factor is None else self.truth[some] @ self.factor

    def measure(self, held: Array, some: Array, folds: int) -> PredictionError | NumberError:
        """Measures held-out answers on some of the labelled nodes."""
        truth = self.truth[some]
        if self.known.number:
            return measure_number(held[some], truth, level=self.level, folds=folds)
        return measure(
            reweighted(held[some], self.factor),
            truth,
            self.known.several,
            nodes=int(some.sum()),
            folds=folds,
            weight=self.weight(some),
        )

    def compare(
        self, ours: Array, some: Array, folds: int, rivals: Sequence[Rival], seed: int
    ) -> tuple[RivalScore, ...]:
        """Returns the scores of ours and of rivals on some of the labelled nodes.

        A rival is better if a paired test says so, however many rivals there are.
        """
        if not some.any():
            return ()
        error = self.measure(ours, some, folds)
        score, value, _ = error.headline
        found = [RivalScore(OURS, value, error)]
        for rival in rivals:
            both = some & is_held_out(rival.held_out)
            if not both.any():
                continue
            error = self.measure(rival.held_out, both, rival.folds)
            gain = self._terms(score, rival.held_out, both) - self._terms(score, ours, both)
            chance = min(1.0, len(rivals) * chance_of_gain(gain, self.weight(both), seed=seed))
            found.append(RivalScore(rival.name, error.headline[1], error, chance))
        return tuple(found)

    def _terms(self, score: str, held: Array, some: Array) -> Array:
        answers = held[some] if self.known.number else reweighted(held[some], self.factor)
        return score_terms(score, answers, self.truth[some], self.weight(some))


def is_held_out(held: Array) -> Array:
    """Returns which of the labelled nodes were held out once."""
    return np.asarray(~np.isnan(held.reshape(len(held), -1)).any(axis=1))


def comparing_half(known: KnownLabels, labelled: Array, ids: Any, seed: int) -> Array:
    """Returns which labelled nodes compare models; the same ones whatever their order is."""
    order = ascending(ids[labelled])
    compares = np.empty(len(labelled), np.bool_)
    random = np.random.default_rng(seed)
    compares[order] = first_half(known.targets[labelled][order], known.kind, random)
    return compares
