"""What is known of labels, in one form."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError
from graphcl.graphs.validation import numbered_labels

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class KnownLabels:
    """What is known of the labels of all nodes.

    Attributes:
        targets: 0/1 ``[nodes, classes]``; a row of zeros where nothing is known.
        known: which nodes are labelled, ``[nodes]`` booleans.
        classes: the name or number of each column.
        several: whether a node may have several labels.
    """

    targets: Array
    known: Array
    classes: tuple[Any, ...]
    several: bool

    def only(self, nodes: Array) -> "KnownLabels":
        """Returns the labels of some nodes, ``[nodes]`` booleans; the others become unknown."""
        known = self.known & nodes
        return KnownLabels(self.targets * known[:, None], known, self.classes, self.several)


def known_labels(labels: Any, ids: Any, names: tuple[Any, ...] = ()) -> KnownLabels:
    """Returns labels in one form, from any that `predict` takes.

    Raises:
        GraphError: they do not fit the nodes.
    """
    given, own = numbered_labels(labels, ids, "predict")
    names = own or names
    if given.ndim not in (1, 2) or len(given) != len(ids):
        raise GraphError(f"predict: labels {given.shape} for {len(ids)} nodes")
    if given.ndim == 2:
        return _from_matrix(given, names)
    known = ~np.isnan(given) if given.dtype.kind == "f" else np.ones(len(given), np.bool_)
    known &= given != -1
    numbers = np.where(known, given, -1).astype(np.int64)
    if not np.array_equal(numbers[known], given[known]) or (numbers[known] < 0).any():
        raise GraphError("predict: class numbers must be whole, 0 or more; −1 is unlabelled")
    found = np.unique(numbers[known])
    classes = [names[one] if one < len(names) else one for one in found.tolist()]
    return _one_hot(np.searchsorted(found, numbers), known, classes)


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


def _one_hot(codes: Array, known: Array, classes: list[Any]) -> KnownLabels:
    targets = (codes[:, None] == np.arange(len(classes))) & known[:, None]
    return KnownLabels(targets.astype(np.int64), known, tuple(classes), several=False)
