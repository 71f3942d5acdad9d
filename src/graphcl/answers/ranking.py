"""Two classes are a ranking: who comes first, how often that is right, and where to stop."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from graphcl.answers.labels import KnownLabels
from graphcl.arrays import Array
from graphcl.errors import GraphError, option, require
from graphcl.files.records import Answer

TOP_SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
LEAST_TOP = 5  # nodes; of fewer, a share says little


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
