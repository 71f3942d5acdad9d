"""The confusion matrix of the probe."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError
from graphcl.evaluation.probe import fit_logistic, scored_split, standardiser
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph


@dataclass(frozen=True, eq=False)
class Confusion:
    """Counts of test nodes by their true class and the class that the probe predicts.

    Attributes:
        classes: the class numbers, ascending.
        counts: ``[classes, classes]``; rows are true classes, columns predicted ones.
    """

    classes: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    @property
    def accuracy(self) -> float:
        """Fraction of test nodes on the diagonal."""
        return float(np.trace(self.counts) / self.counts.sum())


def probe_confusion(
    z: Any, graph: Graph | GraphCollection, *, strength: float, seed: int = 0
) -> Confusion:
    """Trains the probe again at a given strength and counts its predictions on test nodes.

    Args:
        z: embeddings ``[num_nodes, dim]``.
        graph: their graph, or collection of graphs; gives labels and split, as in `linear_probe`.
        strength: C, from `ProbeResult.strength`.
        seed: decides the split of a graph without masks.

    Raises:
        GraphError: no labels, several labels per node, or embeddings of another graph.
    """
    y, z = graph.y, np.asarray(z)
    if y is None or y.ndim != 1:
        raise GraphError("confusion: needs one class per node")
    if len(z) != len(y):
        raise GraphError(f"confusion: embeddings {z.shape} for a graph of {len(y)} nodes")
    train, _, test = scored_split(graph, y, seed, owner="confusion")
    standard = standardiser(z)
    predicted = fit_logistic(standard(z[train]), y[train], strength).predict(standard(z[test]))
    classes = np.unique(np.concatenate([y[test], predicted]))
    counts = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(counts, (np.searchsorted(classes, y[test]), np.searchsorted(classes, predicted)), 1)
    return Confusion(classes, counts)
