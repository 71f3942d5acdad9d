"""Scores of a supervised system's predictions on the test nodes, and the probe's confusions."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError
from graphcl.evaluation.failure import majority_share
from graphcl.evaluation.probe import (
    check_embeddings,
    cross_validate,
    f1,
    fit_logistic,
    is_cross_validated,
    scored_split,
    standardiser,
)
from graphcl.files.records import Answer
from graphcl.graphs.collection import GraphCollection, Labelled


@dataclass(frozen=True)
class PredictionResult(Answer):
    """Scores of predicted classes, with the names of `ProbeResult`.

    Attributes:
        accuracy: fraction of test nodes classified correctly.
        micro_f1: equals the accuracy, as each node has one class.
        macro_f1: mean of the F1 scores of the classes.
        val_accuracy: accuracy on the validation nodes.
        split: ``given``, or ``random`` if the graph has none.
        nodes: numbers of train, validation and test nodes.
        majority: share of the largest class among the test nodes.
    """

    accuracy: float
    micro_f1: float
    macro_f1: float
    val_accuracy: float
    split: str
    nodes: tuple[int, int, int]
    majority: float


@dataclass(frozen=True)
class MultilabelPredictionResult(Answer):
    """Scores of predictions of several labels per node, with the names of `MultilabelResult`.

    Attributes:
        micro_f1: F1 over all pairs of test node and label together.
        macro_f1: mean of the F1 scores of the labels.
        accuracy: fraction of pairs of node and label that are right.
        val_micro_f1: micro-F1 on the validation nodes.
        split: ``given``, or ``random`` if the graph has none.
        nodes: numbers of train, validation and test nodes.
        majority: the highest micro-F1 of giving all test nodes the same labels.
    """

    micro_f1: float
    macro_f1: float
    accuracy: float
    val_micro_f1: float
    split: str
    nodes: tuple[int, int, int]
    majority: float


def score_predictions(
    predicted: Any, graph: Labelled, seed: int = 0
) -> PredictionResult | MultilabelPredictionResult:
    """Compares predictions with the labels of the test nodes, and of the validation nodes.

    Args:
        predicted: classes ``[num_nodes]``, or 0/1 ``[num_nodes, labels]``; for a collection, in the
            order of its graphs.
        graph: their graph, or collection of graphs; gives labels and split, as in `linear_probe`.
        seed: decides the random split of a graph without masks.

    Raises:
        GraphError: there are no labels, a part of the split has none, or the shape is wrong.
    """
    y, given = graph.y, np.asarray(predicted)
    if y is None:
        raise GraphError("scores: the graph has no labels")
    if given.shape != y.shape:
        raise GraphError(f"scores: predictions {given.shape} for labels {y.shape}")
    train, val, test = scored_split(graph, y, seed, owner="scores")
    split = "random" if not isinstance(graph, GraphCollection) and not graph.has_split else "given"
    nodes, majority = (len(train), len(val), len(test)), majority_share(y[test])
    macro = f1(y[test], given[test], "macro")
    accuracy = float((given[test] == y[test]).mean())
    if y.ndim == 1:
        on_val = float((given[val] == y[val]).mean())
        return PredictionResult(accuracy, accuracy, macro, on_val, split, nodes, majority)
    micro, on_val = f1(y[test], given[test], "micro"), f1(y[val], given[val], "micro")
    return MultilabelPredictionResult(micro, macro, accuracy, on_val, split, nodes, majority)


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


def probe_confusion(z: Any, graph: Labelled, *, strength: float, seed: int = 0) -> Confusion:
    """Trains the probe of `linear_probe` again and counts its predictions on test nodes.

    The strength C is that of `ProbeResult.strength`. There must be one class per node.
    """
    y, z = graph.y, np.asarray(z)
    if y is None or y.ndim != 1:
        raise GraphError("confusion: needs one class per node")
    if len(z) != len(y):
        raise GraphError(f"confusion: embeddings {z.shape} for a graph of {len(y)} nodes")
    if is_cross_validated(graph, y):
        held = cross_validate(z, y, seed)[1]
        test = np.flatnonzero(held >= 0)
        predicted = held[test]
    else:
        train, _, test = scored_split(graph, y, seed, owner="confusion")
        check_embeddings(z)
        standard = standardiser(z[train])
        predicted = fit_logistic(standard(z[train]), y[train], strength).predict(standard(z[test]))
    classes = np.unique(np.concatenate([y[test], predicted]))
    counts = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(counts, (np.searchsorted(classes, y[test]), np.searchsorted(classes, predicted)), 1)
    return Confusion(classes, counts)
