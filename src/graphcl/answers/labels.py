"""What is known of labels, in one form."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphcl.arrays import Array
from graphcl.errors import GraphError
from graphcl.graphs.validation import numbered_labels

MOST_CLASSES = 50  # if nearly every node has a class of its own


@dataclass(frozen=True, eq=False)
class KnownLabels:
    """What is known of the labels of all nodes.

    Attributes:
        targets: 0/1 ``[nodes, classes]``; a row of zeros where nothing is known.
        known: which nodes are labelled, ``[nodes]`` booleans.
        classes: the name or number of each column; none of a number.
        several: whether a node may have several labels.
        number: whether the label is a number to predict; then `targets` are ``[nodes]``.
    """

    targets: Array
    known: Array
    classes: tuple[Any, ...]
    several: bool
    number: bool = False

    @property
    def kind(self) -> str:
        """``classes``, ``several`` labels or a ``number``."""
        return "number" if self.number else "several" if self.several else "classes"

    @property
    def is_binary(self) -> bool:
        """Whether there are two classes that exclude each other."""
        return len(self.classes) == 2 and not self.several

    def only(self, nodes: Array) -> "KnownLabels":
        """Returns the labels of some nodes, ``[nodes]`` booleans; the others become unknown."""
        known = self.known & nodes
        kept = known if self.number else known[:, None]
        return replace(self, targets=np.where(kept, self.targets, 0), known=known)


def known_labels(
    labels: Any, ids: Any, names: tuple[Any, ...] = (), *, kind: str = "auto"
) -> KnownLabels:
    """Returns labels in one form, from any that `predict` takes.

    Args:
        labels: the labels.
        ids: of all nodes.
        names: of the classes, if they are numbered.
        kind: ``classes``, a ``number`` to predict, or ``auto``; see `validation.is_number`.

    Raises:
        GraphError: they do not fit the nodes.
    """
    given, own = numbered_labels(labels, ids, "predict", kind)
    names = own or names
    if given.ndim not in (1, 2) or len(given) != len(ids):
        raise GraphError(f"predict: labels {given.shape} for {len(ids)} nodes")
    if given.ndim == 2:
        return _from_matrix(given, names)
    if given.dtype.kind == "f":
        known = ~np.isnan(given)
        return KnownLabels(np.where(known, given, 0.0), known, (), several=False, number=True)
    known, numbers = given != -1, given.astype(np.int64)
    if not np.array_equal(numbers[known], given[known]) or (numbers[known] < 0).any():
        raise GraphError("predict: class numbers must be whole, 0 or more; −1 is unlabelled")
    found = np.unique(numbers[known])
    if len(found) > MOST_CLASSES and 2 * len(found) > known.sum():
        raise GraphError(
            f"predict: {len(found):,} different labels of {int(known.sum()):,} nodes are no classes"
        )
    classes = [names[one] if one < len(names) else one for one in found.tolist()]
    targets = (numbers[:, None] == found) & known[:, None]
    return KnownLabels(targets.astype(np.int64), known, tuple(classes), several=False)


def _from_matrix(given: Array, names: tuple[Any, ...]) -> KnownLabels:
    whole = given.astype(np.float64)
    unknown = np.isnan(whole) | (whole == -1)
    if (unknown.any(axis=1) != unknown.all(axis=1)).any():
        raise GraphError("predict: a node's labels must be known all or none; −1 is unknown")
    known = ~unknown.any(axis=1)
    if not np.isin(whole[known], (0, 1)).all():
        raise GraphError("predict: several labels per node must be 0 or 1")
    targets = np.where(known[:, None], whole, 0).astype(np.int64)
    classes = tuple(names[one] if one < len(names) else one for one in range(given.shape[1]))
    return KnownLabels(targets, known, classes, several=True)
