"""What `predict` returns: classes or labels with probabilities, or numbers with intervals, and why.

Two classes are a ranking: who comes first, how often that is right, and where to stop. Reasons are
found by `graphcl.answers.reasons`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphcl.answers.inputs import KnownLabels
from graphcl.answers.reasons import Reason
from graphcl.arrays import Array
from graphcl.errors import GraphError, counted, option, require
from graphcl.evaluation.paired import LEVEL as LEVEL_OF_TEST
from graphcl.evaluation.prediction_error import PredictionError, measure
from graphcl.evaluation.promises import SURE, Promise, promised_thresholds
from graphcl.evaluation.regression import LEVEL, NumberError, measure_number
from graphcl.files.records import Answer
from graphcl.graphs.validation import is_labelled
from graphcl.settings import is_number

TOP_SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
LEAST_TOP = 5  # nodes; of fewer, a share says little
OURS = "graphcl"


@dataclass(frozen=True, repr=False)
class Top:
    """The nodes at the top of a ranking.

    Attributes:
        share: how much of all nodes they are.
        nodes: how many held-out nodes that is.
        precision: the fraction of them that is of the wanted class.
        lift: how many times as many as among nodes drawn at random.
        found: the fraction of all wanted nodes that are among them.
    """

    share: float
    nodes: int
    precision: float
    lift: float
    found: float


@dataclass(frozen=True, repr=False)
class Ranking(Answer):
    """What a ranking by the probability of the wanted class is worth on held-out nodes.

    Attributes:
        wanted: the class that is looked for.
        share: of that class among the nodes.
        roc_auc: the chance that a wanted node is above another; 0.5 is chance.
        average_precision: the mean precision over all wanted nodes; chance is `share`.
        top: the first few per cent, and more.
        threshold: the probability from which a node is called wanted; None where that is the more
            probable class.
        precision: of the nodes above the threshold.
        found: the fraction of the wanted nodes that is above it.
        nodes: how many held-out nodes.
        promised: the precision above the threshold is at least this, with probability `sure`; None
            if no precision was asked for.
        sure: see `promised`.
    """

    wanted: Any
    share: float
    roc_auc: float
    average_precision: float
    top: tuple[Top, ...]
    threshold: float | None
    precision: float
    found: float
    nodes: int
    promised: float | None = None
    sure: float | None = None


def rank(
    risk: Array,
    truth: Array,
    wanted: Any,
    *,
    weight: Array | None = None,
    precision: float | None = None,
    cost: tuple[float, float] | None = None,
) -> Ranking | None:
    """Measures a ranking; returns None if all nodes are of one class.

    Args:
        risk: the probability of the wanted class of held-out nodes.
        truth: whether they are of that class.
        wanted: its name.
        weight: how much each node counts.
        precision: the threshold is the lowest above which so many nodes can be promised to be
            right; see `graphcl.evaluation.promises`.
        cost: of a false alarm, and of a wanted node that is missed: the threshold is where a
            probability makes both cost the same.

    Raises:
        GraphError: no threshold can promise the precision.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    count, truth = np.ones(len(risk)) if weight is None else weight, truth.astype(bool)
    if truth.all() or not truth.any():
        return None
    order = np.argsort(-risk, kind="stable")
    risk, truth, count = risk[order], truth[order], count[order]
    hits, seen = np.cumsum(count * truth), np.cumsum(count)
    share, tops = hits[-1] / seen[-1], []
    for part in TOP_SHARES:
        last = int(np.searchsorted(seen, part * seen[-1] * (1 - 1e-9)))
        if last + 1 >= LEAST_TOP:
            right = hits[last] / seen[last]
            tops.append(Top(part, last + 1, right, right / share, hits[last] / hits[-1]))
    threshold = None if cost is None else cost[0] / (cost[0] + cost[1])
    promise = None
    if precision is not None:
        promise = _promise(risk, truth, count, precision)
        threshold = promise.threshold
    above = risk >= (0.5 if threshold is None else threshold)
    flagged = float(count[above].sum())
    return Ranking(
        wanted=wanted,
        share=float(share),
        roc_auc=float(roc_auc_score(truth, risk, sample_weight=count)),
        average_precision=float(average_precision_score(truth, risk, sample_weight=count)),
        top=tuple(tops),
        threshold=threshold,
        precision=float((count * truth)[above].sum() / flagged) if flagged else 0.0,
        found=float((count * truth)[above].sum() / hits[-1]),
        nodes=len(risk),
        promised=None if promise is None else promise.precision,
        sure=None if promise is None else promise.sure,
    )


def _promise(risk: Array, truth: Array, count: Array, precision: float) -> Promise:
    """Returns the promise of the lowest threshold that promises a precision.

    Raises:
        GraphError: none does.
    """
    promises = promised_thresholds(risk, truth, count, likely=precision)
    kept = [promise for promise in promises if promise.precision >= precision]
    if kept:
        return kept[-1]
    most = max((promise.precision for promise in promises), default=0.0)
    lowered = float(np.floor(100 * most)) / 100
    advice = "label more nodes"
    if lowered > 0:
        advice = f"ask for {option('precision', lowered)}, or label more nodes"
    raise GraphError(
        f"predict: {option('precision', precision)} cannot be promised with {100 * SURE:.0f} % "
        f"certainty from {counted(len(risk), 'held-out node')}; the most is {most:.2f}: {advice}"
    )


def check_ranking(
    known: KnownLabels,
    wanted: Any,
    precision: float | None,
    cost: tuple[float, float] | None,
) -> None:
    """Refuses what cannot be asked of a ranking.

    Raises:
        ParameterError: an option is out of its range, or two of them exclude each other.
    """
    for name, given in (("wanted", wanted), ("precision", precision), ("cost", cost)):
        alone = known.is_binary or given is None
        require(alone, "predict", option(name), "left out: there are not two classes", given)
    named = wanted is None or str(wanted) in [str(one) for one in known.classes]
    shown = ", ".join(str(one) for one in known.classes[:10])
    require(named, "predict", option("wanted"), f"one of {shown}", wanted)
    right = precision is None or (is_number(precision) and 0 < precision < 1)
    require(right, "predict", option("precision"), "between 0 and 1", precision)
    pair = isinstance(cost, Sequence) and not isinstance(cost, str) and len(cost) == 2
    costly = cost is None or (pair and all(is_number(one) and one > 0 for one in cost))
    require(costly, "predict", option("cost"), "two positive numbers", cost)
    both = precision is not None and cost is not None
    require(not both, "predict", option("cost"), f"left out with {option('precision')}", cost)


@dataclass(frozen=True, repr=False)
class RivalScore(Answer):
    """What a plain model is worth on the half of the held-out nodes that compares.

    Attributes:
        name: what it is; `OURS` is ours.
        score: the headline: ROC-AUC of two classes, accuracy, micro-F1 of several labels, or R².
        error: all measures.
        chance: how likely a score so far above ours is by chance, for one of all rivals; 1 for
            ours.
    """

    name: str
    score: float
    error: PredictionError | NumberError
    chance: float = 1.0


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Predicted(Answer):
    """What is predicted of nodes, and how far to trust it; see `Predictions` and `Estimates`."""

    rows: Array
    ids: Array
    error: Any
    rivals: tuple[RivalScore, ...] = ()
    evidence: dict[str, float] = field(default_factory=dict)
    reasons: tuple[Reason, ...] = ()
    towards: str = ""
    model: str = OURS
    test: Any = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def better(self) -> RivalScore | None:
        """The best of the plain rivals that a test finds better than these, if there is one."""
        better = [rival for rival in self.rivals if rival.chance <= LEVEL_OF_TEST]
        return max(better, key=lambda rival: rival.score, default=None)

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
        reasons: of each node, if they were asked for; none if the model that answered has none.
        towards: what effects above 0 in reasons speak for, in words; empty if none were asked for.
        model: what answered: `OURS`, or the name of a rival.
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
        return measure_number(
            self.values[tested],
            values,
            coverage=float(inside.mean()),
            level=level,
            how="held-out nodes",
        )


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
        rivals: plain models beside it, on half of the held-out nodes; ours is the first. The
            other half measures a rival that predicts instead.
        reasons: of each node, if they were asked for; of the first 10,000; none if the model that
            answered has none.
        towards: what effects above 0 in reasons speak for, in words; empty if none were asked for.
        model: what answered: `OURS`, or the name of a rival.
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
