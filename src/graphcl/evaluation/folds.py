"""Divisions of labelled nodes into folds, and into pairs of folds that are left out together.

Each fold takes as many nodes of a class as the others do. Otherwise a held-out node's class has
fewer train nodes than the rest, and with five labels a class its scores are worse than chance.

What scores the nodes of a fold must not have seen their labels, and neither must what chooses how
they are scored. So there are pairs: regressions without two folds score each of them for the other.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from graphcl.arrays import Array

Part = tuple[Array, Array]  # train nodes, and the test nodes that they score
FOLDS = 5
MORE_FOLDS, FEW_NODES = 10, 300  # of so few nodes, each fold's regression needs all it can get
FITS = 20  # regressions in several divisions: with few nodes, one division is chance
NEAR = 2  # folds on either side whose nodes tell the terms of a fold: of five, all others
MOST_TESTED = 20_000  # labelled nodes in folds; more do not change the error's first digits


@dataclass(frozen=True, eq=False)
class Division:
    """Train and test nodes, by their rows among the labelled ones.

    Attributes:
        folds: how many there are in one division; there may be several divisions.
        parts: one for each fold of each division.
        pairs: two parts of a division, and what is left out of both with the nodes of both.
    """

    folds: int
    parts: list[Part]
    pairs: list[tuple[int, int, Part]]


def divide(targets: Array, several: bool, random: np.random.Generator) -> Division | None:
    """Divides labelled nodes; returns None if no class has two nodes.

    Args:
        targets: 0/1 ``[labelled, outputs]``.
        several: whether a node may have several labels.
        random: deals the nodes of a class to the folds.
    """
    kinds = targets.argmax(axis=1) if not several else _rarest(targets)
    counts = np.bincount(kinds)
    # The only node of a class would be scored by a regression that has never seen the class.
    testable = np.flatnonzero((counts[kinds] > 1) | several)
    if len(testable) < 2 or (not several and len(np.unique(kinds[testable])) < 2):
        return None
    if len(testable) > MOST_TESTED:
        testable = np.sort(random.choice(testable, MOST_TESTED, replace=False))
    always = np.setdiff1d(np.arange(len(targets)), testable)[:MOST_TESTED]
    few = len(testable) <= FEW_NODES
    most = min(MORE_FOLDS if few else FOLDS, len(testable))
    folds = int(np.clip(np.median(counts[kinds[testable]]), 2, most))
    parts: list[Part] = []
    pairs: list[tuple[int, int, Part]] = []
    for _ in range(FITS // folds if few else 1):
        place, first = deal(kinds[testable], folds, random), len(parts)
        for number in range(folds):
            test = testable[place == number]
            train = np.concatenate([testable[place != number], always])
            if len(test) and _tells(targets[train]):
                parts.append((train, test))
        numbers = range(first, len(parts))
        for one, other in combinations(numbers, 2):
            if min(other - one, len(numbers) - (other - one)) <= NEAR:
                train = np.setdiff1d(parts[one][0], parts[other][1])
                if _tells(targets[train]):
                    both = np.concatenate([parts[one][1], parts[other][1]])
                    pairs.append((one, other, (train, both)))
    return Division(folds, parts, pairs) if parts else None


def ascending(names: Any) -> Array:
    """Returns the order of ids: as numbers if they are numbers, or else as texts."""
    given = np.asarray(names)
    if given.dtype.kind not in "iu":
        given = np.array([str(one) for one in given.tolist()], dtype=object)
    return np.asarray(np.argsort(given, kind="stable"))


def _tells(targets: Array) -> bool:
    """Returns whether there is something to learn from these labels."""
    return len(targets) > 0 and bool((targets.sum(axis=0) < len(targets)).any())


def _rarest(targets: Array) -> Array:
    """Returns the rarest label of each node, by which several labels are spread over folds."""
    counts = np.where(targets > 0, targets.sum(axis=0), np.inf)
    return np.asarray(np.where(targets.any(axis=1), counts.argmin(axis=1), targets.shape[1]))


def deal(kinds: Array, folds: int, random: np.random.Generator) -> Array:
    """Deals the nodes of every class to the folds in turn; returns the fold of each node.

    A class that is in every fold begins with the first: classes of equal size are equal in every
    fold. Smaller ones go on where the last one ended, or all would be in the first fold.
    """
    place, first = np.empty(len(kinds), np.int64), 0
    for kind in np.unique(kinds):
        members = random.permutation(np.flatnonzero(kinds == kind))
        small = len(members) < folds
        place[members] = (first * small + np.arange(len(members))) % folds
        first += len(members) * small
    return place
