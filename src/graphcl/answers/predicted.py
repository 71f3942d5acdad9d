"""What `predict` returns: classes or labels with probabilities, or numbers with intervals."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphcl.answers.labels import KnownLabels
from graphcl.answers.ranking import Ranking
from graphcl.answers.reasons import Reason
from graphcl.arrays import Array
from graphcl.errors import counted
from graphcl.evaluation.prediction_error import PredictionError, measure
from graphcl.evaluation.regression import LEVEL, NumberError, measure_number
from graphcl.files.records import Answer
from graphcl.graphs.validation import is_labelled

OURS = "graphcl"
BETTER = 0.01  # a rival's headline above ours by so much is worth a word


@dataclass(frozen=True, repr=False)
class RivalScore(Answer):
    """What a plain model is worth on the same held-out nodes.

    Attributes:
        name: what it is; `OURS` is ours.
        score: the headline: ROC-AUC of two classes, accuracy, micro-F1 of several labels, or R².
        error: all measures.
    """

    name: str
    score: float
    error: PredictionError | NumberError


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Predicted(Answer):
    """What is predicted of nodes, and how far to trust it; see `Predictions` and `Estimates`."""

    rows: Array
    ids: Array
    error: Any
    rivals: tuple[RivalScore, ...] = ()
    evidence: dict[str, float] = field(default_factory=dict)
    reasons: tuple[Reason, ...] = ()
    test: Any = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def better(self) -> RivalScore | None:
        """The plain rival that is better than these, if there is one."""
        best = max(self.rivals, key=lambda one: one.score, default=None)
        return best if best is not None and best.score > self.rivals[0].score + BETTER else None

    def why(self) -> dict[str, Any]:
        """Returns the column of reasons; nothing if none were asked for."""
        said = [str(one) for one in self.reasons]
        return {"why": said + [None] * (len(self) - len(said))} if said else {}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Estimates(Predicted):
    """Predicted numbers, with intervals and their error.

    Attributes:
        rows: numbers of the nodes, ``[n]``.
        ids: their ids.
        values: the predicted numbers.
        low: the lower end of each interval.
        high: the upper end.
        given: what is known, NaN elsewhere. The value of a labelled node is by a probe that has not
            seen it.
        error: what to expect, measured on labelled nodes that were held out.
        rivals: plain models beside it.
        evidence: what the predictions rest on.
        reasons: of each node, if they were asked for.
        test: the error on test nodes, whose values were hidden; None if none were.
    """

    values: Array
    low: Array
    high: Array
    given: Array

    def title(self) -> str:
        """Returns what is said above the table."""
        found = f"Estimates: {counted(len(self), 'node')}"
        if self.error is None:
            return found
        mean = f"mean error {self.error.mae:.4g} (median for all {self.error.baseline_mae:.4g})"
        return f"{found}; R² {self.error.r2:.3f}, {mean}"

    def columns(self) -> dict[str, Any]:
        """Returns the table that `graphcl predict` writes: ids, values, intervals."""
        table: dict[str, Any] = {"id": self.ids, "value": self.values}
        for name in ("low", "high", "given"):
            values = getattr(self, name).tolist()
            if name != "given" or not np.isnan(values).all():
                table[name] = [one if np.isfinite(one) else None for one in values]
        return table | self.why()

    def score(self, truth: KnownLabels) -> NumberError | None:
        """Returns the error on nodes whose number `truth` knows and this does not; None of none."""
        tested = truth.known[self.rows] & np.isnan(self.given)
        if not tested.any():
            return None
        values = truth.targets[self.rows][tested]
        inside = (self.low[tested] <= values) & (values <= self.high[tested])
        level = LEVEL if self.error is None else self.error.level
        how: Any = {"coverage": float(inside.mean()), "level": level, "how": "held-out nodes"}
        return measure_number(self.values[tested], values, **how)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Predictions(Predicted):
    """Predicted labels, with their probabilities and their error.

    Attributes:
        rows: numbers of the nodes, ``[n]``. Of two classes, those come first that are most probably
            of the wanted class; otherwise they ascend. Ids that were asked for keep their order.
        ids: their ids.
        classes: the name or number of each class or label, in the order of the columns.
        probabilities: calibrated, float32 ``[n, classes]``; rows sum to 1 unless a node may have
            several labels. Those of labelled nodes are by a probe that has not seen their label.
        several: whether a node may have several labels.
        known: 0/1 ``[n, classes]``: what was given; a row of −1 for an unlabelled node.
        error: what to expect, measured on labelled nodes that were held out; None if no class has
            two labelled nodes.
        labelled: number of labelled nodes per class.
        strength: C of the penalty with the largest weight in the probe's average.
        temperature: what its scores are divided by.
        test: the error on test nodes, whose labels were hidden; None if none were.
        evidence: what the predictions rest on, and how much on each; see
            `graphcl.answers.evidence`.
        ranking: of two classes, what the order of the nodes is worth; None of others.
        rivals: plain models beside it, on the same held-out nodes; ours is the first.
        reasons: of each node, if they were asked for; of the first 10,000.
    """

    classes: tuple[Any, ...]
    probabilities: Array
    several: bool
    known: Array
    labelled: tuple[int, ...]
    strength: float
    temperature: float
    ranking: Ranking | None = None

    @property
    def labels(self) -> list[Any]:
        """The most probable class of each node, or the list of labels above probability 0.5."""
        if self.several:
            return [self._names(row > 0.5) for row in self.probabilities]
        return [self.classes[best] for best in self._best().tolist()]

    def _best(self) -> Array:
        """Returns the class of each node; of two, the wanted one from its threshold on."""
        best: Array = self.probabilities.argmax(axis=1)
        if self.ranking is None or self.ranking.threshold is None:
            return best
        wanted = self.classes.index(self.ranking.wanted)
        above: Array = self.probabilities[:, wanted] >= self.ranking.threshold
        return np.where(above, wanted, 1 - wanted)

    def title(self) -> str:
        """Returns what is said above the table."""
        found = f"Predictions: {counted(len(self), 'node')}, {len(self.classes)} classes"
        if self.error is None:
            return found
        word, score, chance = self.error.headline
        return f"{found}; expected {word} {score:.3f} (one answer for all {chance:.3f})"

    def columns(self) -> dict[str, Any]:
        """Returns the table that `graphcl predict` writes: ids, labels, one probability a class."""
        table: dict[str, Any] = {"id": self.ids, "label": self.labels}
        if not self.several:
            table["probability"] = self.probabilities[np.arange(len(self)), self._best()]
        if is_labelled(self.known).any():
            known = [self._names(row > 0) if row.min() >= 0 else None for row in self.known]
            table["given"] = known if self.several else [names and names[0] for names in known]
        for place, name in enumerate(self.classes):
            table[f"p:{name}"] = self.probabilities[:, place]
        return table | self.why()

    def counts(self) -> dict[Any, int]:
        """Returns how many of these nodes get each class or label."""
        given = self.probabilities > 0.5
        if not self.several:
            given = self._best()[:, None] == np.arange(len(self.classes))
        return dict(zip(self.classes, given.sum(axis=0).tolist(), strict=True))

    def score(self, truth: KnownLabels) -> PredictionError | None:
        """Returns the error on those nodes whose label `truth` knows; None if there are none."""
        tested = truth.known[self.rows] & ~is_labelled(self.known)
        if not tested.any():
            return None
        targets = truth.targets[self.rows][tested]
        return measure(
            self.probabilities[tested].astype(np.float64),
            targets,
            self.several,
            nodes=int(tested.sum()),
            how="held-out nodes",
        )

    def _names(self, chosen: Array) -> list[Any]:
        return [self.classes[place] for place in np.flatnonzero(chosen)]
