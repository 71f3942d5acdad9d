r"""Predictions that are smoothed over edges, where that makes held-out labels more likely.

Let :math:`P` be the probabilities of all nodes, with the truth where a label is known, and
:math:`S` the mean over neighbours. A node without neighbours is its own. With strength α,

.. math:: P_α = (1 - α) \sum_{k < K} α^k S^k P \; + \; α^K S^K P .

That is label spreading (Zhou et al., 2004) in `HOPS` steps. It carries both what *correct and
smooth* (Huang et al., 2021) does: the errors that known labels show, and the predictions. Strengths
are averaged by the likelihood of held-out labels, so the result is a weighted sum of hops. Strength
0 is among them: then nothing is smoothed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphcl.arrays import Array

HOPS = 3
STRENGTHS = (0.0, 0.2, 0.4, 0.6, 0.8)
PRIOR = np.array([0.8, 0.05, 0.05, 0.05, 0.05])  # labels that say little leave it at 0
MOST_VALUES = 1 << 28  # probabilities that are made to tell the strength; with more, none is
NOTHING = (1.0, *(0.0,) * HOPS)
_SHARES = np.array([[(1 - a) * a**k for k in range(HOPS)] + [a**HOPS] for a in STRENGTHS])


@dataclass(frozen=True, eq=False)
class Around:
    """The graph around the labelled nodes.

    Attributes:
        tables: the inputs of all nodes, by name.
        rows: the labelled nodes.
        means: a sparse matrix that takes the mean over neighbours; of a node without any, itself.
    """

    tables: Mapping[str, Array]
    rows: Array
    means: Any


def hops(means: Any, probability: Array, rows: Array) -> Array:
    """Returns P, S P, … S^K P of some nodes, ``[HOPS + 1, rows, outputs]``."""
    found = [probability[rows]]
    for _ in range(HOPS - 1):
        probability = means @ probability
        found.append(probability[rows])
    return np.stack([*found, means[rows] @ probability])


def weigh_hops(each: list[tuple[Array, Array, Array]], several: bool) -> Array:
    """Returns how much each hop counts, ``[HOPS + 1]``, by the likelihood of held-out labels.

    Args:
        each: held-out nodes with their hops and their targets; a node may be in several.
        several: whether a node may have several labels.
    """
    if not each:
        return np.array(NOTHING)
    nodes, found, targets = (
        np.concatenate(part, axis=-2 if part[0].ndim == 3 else 0)
        for part in zip(*each, strict=True)
    )
    _, node, times = np.unique(nodes, return_inverse=True, return_counts=True)
    smoothed = np.einsum("sk,kno->sno", _SHARES, found, dtype=np.float64)
    right = np.where(targets > 0, smoothed, 1 - smoothed) if several else smoothed[:, targets > 0]
    loss = -np.log(np.maximum(right, 1e-12))
    loss = loss.sum(axis=-1) if several else loss
    total = loss @ (1 / times[node])  # a node counts once, however often it was held out
    weight = PRIOR * np.exp(total.min() - total)
    return np.asarray((weight / weight.sum()) @ _SHARES)


@dataclass(frozen=True, eq=False)
class Smoothing:
    """Smooths probabilities.

    Attributes:
        shares: how much each hop counts; see `weigh_hops`.
        near: what neighbours add to a node: take the mean of their rows, ``[nodes, outputs]``.
    """

    shares: Array
    near: Array

    @classmethod
    def of(cls, shares: Array, means: Any, probability: Array) -> "Smoothing":
        """Prepares it from the probabilities of all nodes, with the truth where it is known."""
        near = np.zeros_like(probability)
        for share in shares[1:]:
            near += np.float32(share) * probability
            probability = means @ probability
        return cls(shares, near)

    def smooth(self, probability: Array, around: Array) -> Array:
        """Returns probabilities of nodes, smoothed; `around` are the means of their neighbours."""
        return np.asarray((self.shares[0] * probability + around).astype(np.float32))
