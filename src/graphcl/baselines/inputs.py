"""What a baseline may see of its data."""

from typing import NamedTuple

import numpy as np

from graphcl.baselines.protocol import Data, Labels
from graphcl.errors import GraphError
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph, split_gap


class VisibleLabels(NamedTuple):
    """Classes of the training and validation nodes; those of all other nodes are hidden.

    Attributes:
        y: ``[num_nodes]``; −1 wherever a supervised system may not look.
        train: numbers of the training nodes.
        val: numbers of the validation nodes.
        num_classes: how many classes there are.
    """

    y: Labels
    train: Labels
    val: Labels
    num_classes: int


def one_graph(data: Data, owner: str) -> Graph:
    """Returns `data`, which must be one graph.

    Raises:
        GraphError: it is a collection; `owner` names the system that cannot use one.
    """
    if isinstance(data, GraphCollection):
        raise GraphError(f"{owner}: takes one graph; {data.name} has {len(data.graphs)}")
    return data


def training_graph(data: Data, owner: str) -> Graph:
    """Returns the graph to learn from: the one there is, or a collection's only training graph.

    Raises:
        GraphError: several training graphs; `owner` names the system that cannot use them.
    """
    if isinstance(data, GraphCollection) and len(data.train) == 1:
        return data.train[0]
    return one_graph(data, owner)


def graphs_of(data: Data) -> tuple[Graph, ...]:
    """Returns the one graph, or all graphs of a collection."""
    return data.graphs if isinstance(data, GraphCollection) else (data,)


def visible_labels(graph: Graph, owner: str) -> VisibleLabels:
    """Returns the labels that a supervised system may read: no test label leaves this function.

    Raises:
        GraphError: no labels, several per node, or no split; `owner` names the system.
    """
    if graph.y is None:
        raise GraphError(f"{owner}: learns from labels; {graph.name} has none")
    if graph.y.ndim == 2:
        raise GraphError(f"{owner}: takes one class per node; {graph.name} has several labels")
    if not graph.has_split:
        lack = split_gap(graph) or "it has none"
        raise GraphError(f"{owner}: {graph.name} needs train, validation and test masks; {lack}")
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    labelled = graph.y >= 0
    train, val = graph.train_mask & labelled, graph.val_mask & labelled
    if not train.any():
        raise GraphError(f"{owner}: no training node of {graph.name} has a label")
    hidden = np.where(train | val, graph.y, -1)
    return VisibleLabels(hidden, np.flatnonzero(train), np.flatnonzero(val), graph.num_classes)
