"""Scores of the predictions of a supervised system on the test nodes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError
from graphcl.evaluation.probe import scored_split
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph


@dataclass(frozen=True)
class PredictionResult:
    """Scores of predicted classes, with the names of `ProbeResult`.

    Attributes:
        accuracy: fraction of test nodes classified correctly.
        micro_f1: equals the accuracy, as each node has one class.
        macro_f1: mean of the F1 scores of the classes.
        val_accuracy: accuracy on the validation nodes.
        split: ``given``, or ``random`` if the graph has none.
        nodes: numbers of train, validation and test nodes.
    """

    accuracy: float
    micro_f1: float
    macro_f1: float
    val_accuracy: float
    split: str
    nodes: tuple[int, int, int]


@dataclass(frozen=True)
class MultilabelPredictionResult:
    """Scores of predictions of several labels per node, with the names of `MultilabelResult`.

    Attributes:
        micro_f1: F1 over all pairs of test node and label together.
        macro_f1: mean of the F1 scores of the labels.
        accuracy: fraction of pairs of node and label that are right.
        val_micro_f1: micro-F1 on the validation nodes.
        split: ``given``, or ``random`` if the graph has none.
        nodes: numbers of train, validation and test nodes.
    """

    micro_f1: float
    macro_f1: float
    accuracy: float
    val_micro_f1: float
    split: str
    nodes: tuple[int, int, int]


def score_predictions(
    predicted: Any, graph: Graph | GraphCollection, seed: int = 0
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
    split = "random" if isinstance(graph, Graph) and not graph.has_split else "given"
    nodes = (len(train), len(val), len(test))
    macro = _f1(y[test], given[test], "macro")
    accuracy = float((given[test] == y[test]).mean())
    if y.ndim == 1:
        on_val = float((given[val] == y[val]).mean())
        return PredictionResult(accuracy, accuracy, macro, on_val, split, nodes)
    micro, on_val = _f1(y[test], given[test], "micro"), _f1(y[val], given[val], "micro")
    return MultilabelPredictionResult(micro, macro, accuracy, on_val, split, nodes)


def _f1(y: npt.NDArray[Any], predicted: npt.NDArray[Any], average: str) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(y, predicted, average=average, zero_division=0))
