"""What `predict` returns: classes or labels with probabilities, or numbers with intervals, and why.

Two classes are a ranking: who comes first, how often that is right, and where to stop.

What a prediction rests on is found by leaving a part out: own columns, neighbours, or their
neighbours are replaced by those of the average node, and the answer changes by so much. Columns are
named by a ridge regression of the label on the node's own columns, because embeddings do not name
theirs. A column's effect is its weight times how far the node is from the average.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.answers.evidence import (
    EMBEDDING,
    FAR,
    ITSELF,
    NEAR,
    NEIGHBOURS,
    OWN_SCALED,
    SURROUNDINGS,
)
from graphcl.answers.inputs import KnownLabels
from graphcl.answers.learning import Learned
from graphcl.arrays import Array
from graphcl.errors import GraphError, counted, option, require
from graphcl.evaluation.prediction_error import PredictionError, measure
from graphcl.evaluation.regression import LEVEL, NumberError, measure_number
from graphcl.evaluation.unsupervised import unit_rows
from graphcl.files.records import Answer
from graphcl.graphs.validation import is_labelled

MOST_EXPLAINED = 10_000  # nodes; the first ones of a ranking
NAMED = 3  # columns, and labelled nodes
_BLOCK = 1024
TOP_SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
LEAST_TOP = 5  # nodes; of fewer, a share says little
OURS = "graphcl"
BETTER = 0.01  # a rival's headline above ours by so much is worth a word


@dataclass(frozen=True)
class Reason:
    """Why a node is predicted as it is.

    Attributes:
        parts: by how much the answer would change without own columns, neighbours, and their
            neighbours: above 0, they speak for it.
        columns: own columns that say most, with their effect.
        like: the labelled nodes whose embeddings are most similar, with their labels.
    """

    parts: dict[str, float]
    columns: tuple[tuple[str, float], ...]
    like: tuple[tuple[Any, Any], ...]

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {change:+.2g}" for name, change in self.parts.items())
        columns = ", ".join(f"{name} {'+' if effect > 0 else '−'}" for name, effect in self.columns)
        like = ", ".join(f"{name} ({label})" for name, label in self.like)
        said = [parts, columns and f"columns: {columns}", like and f"like {like}"]
        return "; ".join(one for one in said if one)


def explain(
    learned: Learned, rows: Array, places: Array, *, graph: Any, ids: Any, rests: bool = True
) -> list[Reason]:
    """Returns the reasons of some nodes.

    Args:
        learned: what predicts them.
        rows: their numbers; those beyond `MOST_EXPLAINED` are left out.
        places: the class or label of each that is explained; 0 of a number.
        graph: has their columns, and the names of these; None if it cannot be had.
        ids: of all nodes.
        rests: say what the answers rest on; not if a plain rival gave them.
    """
    rows, places = rows[:MOST_EXPLAINED], places[:MOST_EXPLAINED]
    each, tables = np.arange(len(rows)), learned.evidence.tables
    answer = learned.of_rows(rows)[each, places]
    there = _parts(learned) if rests else []
    without = {part: learned.of_rows(rows, without=part)[each, places] for part in there}
    columns, labels = _columns(learned, rows, places, graph), _in_words(learned)
    unit = unit_rows(np.asarray(tables[EMBEDDING][learned.labelled]))
    found = []
    for start in range(0, len(rows), _BLOCK):
        some = rows[start : start + _BLOCK]
        cosine = unit_rows(np.asarray(tables[EMBEDDING][some])) @ unit.T
        cosine[some[:, None] == learned.labelled] = -np.inf  # a node is not like itself
        nearest = np.argsort(-cosine, axis=1, kind="stable")[:, : min(NAMED, len(unit) - 1)]
        for number, like in enumerate(nearest, start=start):
            alike = tuple((ids[learned.labelled[one]], labels[one]) for one in like)
            parts = {name: float(answer[number] - one[number]) for name, one in without.items()}
            found.append(Reason(parts, columns[number], alike))
    return found


def _in_words(learned: Learned) -> list[str]:
    """Returns what each labelled node is."""
    targets, classes = learned.known.targets[learned.labelled], learned.known.classes
    if learned.known.number:
        return [f"{one:.4g}" for one in targets.tolist()]
    return [", ".join(str(classes[one]) for one in np.flatnonzero(row)) for row in targets]


def _parts(learned: Learned) -> list[str]:
    """Returns the parts that predictions look at."""
    evidence, looked_at = learned.evidence, set(learned.evidence.parts)
    looked_at |= {ITSELF} if evidence.columns else set()
    if SURROUNDINGS not in looked_at:
        looked_at |= {NEAR} if learned.smoothing is not None else set()
        looked_at |= {FAR} if NEIGHBOURS in evidence.columns else set()
    return [part for part in (ITSELF, NEAR, FAR, SURROUNDINGS) if part in looked_at]


def _columns(
    learned: Learned, rows: Array, places: Array, graph: Any
) -> list[tuple[tuple[str, float], ...]]:
    """Returns the own columns of each row that say most, with their effects."""
    made = learned.evidence.columns.get(OWN_SCALED)
    if made is None or graph is None:
        return [()] * len(rows)
    table, targets = made.table[learned.labelled].astype(np.float64), learned.known.targets
    own = targets[learned.labelled].astype(np.float64).reshape(len(table), -1)
    centred, aim = table - table.mean(axis=0), own - own.mean(axis=0)
    inner = centred.T @ centred
    inner[np.diag_indices_from(inner)] += max(float(np.trace(inner)) / len(table), 1e-12)
    weight = made.basis @ np.linalg.solve(inner, centred.T @ aim)
    prepared = graph.preparation
    names = list(prepared.features) if prepared is not None else []
    names += [f"feature {place}" for place in range(len(names), weight.shape[0])]
    found: list[tuple[tuple[str, float], ...]] = []
    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
        cells = made.prepare(graph.x[[row]])
        sparse = scipy.sparse.issparse(cells)
        effect = np.asarray(cells.todense() if sparse else cells).ravel() * weight[:, place]
        most = np.argsort(-np.abs(effect), kind="stable")[:NAMED]
        found.append(tuple((names[one], float(effect[one])) for one in most if effect[one]))
    return found


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
        precision: the threshold is the lowest above which so many nodes are right.
        cost: of a false alarm, and of a wanted node that is missed: the threshold is where a
            probability makes both cost the same.

    Raises:
        GraphError: no threshold has the precision.
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
    if precision is not None:
        # Nodes of the same probability are above a threshold together.
        ends = np.append(np.flatnonzero(np.diff(risk)), len(risk) - 1)
        good = ends[hits[ends] / seen[ends] >= precision]
        if not len(good):
            best = float((hits[ends] / seen[ends]).max())
            raise GraphError(
                f"predict: {option('precision', precision)}: no threshold is right so often on "
                f"held-out nodes; the best has {best:.2f}"
            )
        threshold = float(risk[good[-1]])
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
    right = precision is None or 0 < precision < 1
    require(right, "predict", option("precision"), "between 0 and 1", precision)
    costly = cost is None or (len(cost) == 2 and min(cost) > 0)
    require(costly, "predict", option("cost"), "two positive numbers", cost)
    both = precision is not None and cost is not None
    require(not both, "predict", option("cost"), f"left out with {option('precision')}", cost)


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
