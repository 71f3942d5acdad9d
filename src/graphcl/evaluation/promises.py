"""Thresholds of a ranking, and the precision that can be promised above each.

The precision above a threshold is measured on few held-out nodes, and a threshold that is chosen
for its precision on them looks better than it is. So each threshold has a lower limit of its
precision (Clopper and Pearson, 1934), and the limits hold together: with probability `SURE`, none
of them is above the true precision. Whichever threshold is then chosen, its limit can be promised.

That there are many thresholds makes each limit lower. By how much is simulated: a ranking in which
every node is wanted with the same chance is the one that misleads most, since its first nodes are
good by chance alone. Thresholds are compared at a few numbers of nodes, each a tenth larger than
the one before: between these, the precision hardly changes.
"""

from dataclasses import dataclass

import numpy as np

from graphcl.arrays import Array

SURE = 0.8  # how often a promised precision is kept
FEWEST = 4  # nodes above a threshold
GROWTH = 1.1  # of the numbers of nodes that are compared
RANKINGS = 2000  # that are simulated


@dataclass(frozen=True)
class Promise:
    """A threshold and the precision that can be promised above it.

    Attributes:
        threshold: the probability from which a node is called wanted.
        precision: at least this share of them is of the wanted class.
        sure: how often such a promise is kept.
    """

    threshold: float
    precision: float
    sure: float


def promised_thresholds(
    risk: Array, truth: Array, weight: Array | None = None, *, likely: float = 0.8
) -> list[Promise]:
    """Returns thresholds, highest first, with precisions that can all be promised together.

    Args:
        risk: the probability of the wanted class of held-out nodes.
        truth: whether they are of that class.
        weight: how much each node counts. (default: all the same)
        likely: the precision for which the search is simulated; others change it little.
    """
    from scipy.stats import beta

    count = np.ones(len(risk)) if weight is None else weight
    order = np.argsort(-risk, kind="stable")
    ends = _compared(risk[order])
    if not len(ends):
        return []
    weights = count[order]
    seen = np.cumsum(weights)[ends]
    # Weighted nodes are as many as would leave as much to chance without weights.
    nodes = seen**2 / np.cumsum(weights**2)[ends]
    right = np.cumsum(weights * truth[order])[ends] / seen * nodes
    level = _level_of_each(ends + 1, likely)
    limits = np.where(right > 0, beta.ppf(level, np.maximum(right, 1e-9), nodes - right + 1), 0.0)
    return [
        Promise(float(risk[order[end]]), float(limit), SURE)
        for end, limit in zip(ends, limits, strict=True)
    ]


def _compared(risk: Array) -> Array:
    """Returns the places of the last node above each threshold; `risk` descends.

    Nodes of the same probability are above a threshold together.
    """
    ties = np.append(np.flatnonzero(np.diff(risk)), len(risk) - 1)
    steps = np.log(max(len(risk), FEWEST) / FEWEST) / np.log(GROWTH)
    wanted = np.round(FEWEST * GROWTH ** np.arange(int(steps) + 1)).astype(np.int64) - 1
    places = np.searchsorted(ties, np.append(wanted, len(risk) - 1))
    return np.unique(ties[places[places < len(ties)]]) if len(risk) >= FEWEST else ties[:0]


def _level_of_each(nodes: Array, likely: float) -> float:
    """Returns the level of each limit at which all hold together with probability `SURE`.

    It is the quantile of the smallest p-value over all thresholds, in rankings by chance.
    """
    from scipy.stats import binom

    random = np.random.default_rng(0)  # the same level for the same numbers of nodes
    steps = np.diff(nodes, prepend=0)
    hits = np.cumsum(random.binomial(steps, likely, (RANKINGS, len(steps))), axis=1)
    smallest = binom.sf(hits - 1, nodes, likely).min(axis=1)
    return float(np.quantile(smallest, 1 - SURE, method="lower"))
