"""What a baseline may see of its data: one graph or several, with labels or without."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from graphcl.errors import GraphError
from graphcl.graphs.collection import GraphCollection, disjoint_union, training_subgraph
from graphcl.graphs.graph import Graph, split_gap
from graphcl.graphs.scaling import Scaling, fit_scaling
from graphcl.graphs.validation import IntArray, is_labelled
from graphcl.research.systems.protocol import Data, Labels


def require_one_graph(data: Data, owner: str) -> Graph:
    """Returns `data`, which must be one graph; `owner` names the system that needs one."""
    if isinstance(data, GraphCollection):
        raise GraphError(f"{owner}: takes one graph; {data.name} has {len(data.graphs)}")
    return data


def only_training_graph(data: Data, owner: str) -> Graph:
    """Returns the graph to learn from: the one there is, or a collection's only training graph."""
    if isinstance(data, GraphCollection) and len(data.train) == 1:
        return data.train[0]
    return require_one_graph(data, owner)


def graphs_of(data: Data) -> tuple[Graph, ...]:
    """Returns the one graph, or all graphs of a collection."""
    return data.graphs if isinstance(data, GraphCollection) else (data,)


def scaling_for(data: Data, feature_scaling: str) -> Scaling:
    """Returns how features are scaled; ``auto`` looks at the training graphs of a collection."""
    graphs = data.train if isinstance(data, GraphCollection) else (data,)
    return fit_scaling(feature_scaling, graphs)


def training_graph(data: Data, *, inductive: bool) -> Graph:
    """Returns the graph that training may see, without labels; a collection's are joined.

    With `inductive`, one graph keeps only its training nodes and the edges among them.
    """
    if isinstance(data, GraphCollection):
        return replace(disjoint_union(data.train, data.name), y=None)
    return training_subgraph(data) if inductive else replace(data, y=None)


def whole_graph(data: Data) -> Graph:
    """Returns all data as one graph; a collection is joined in the order of `graphs`."""
    if isinstance(data, GraphCollection):
        return disjoint_union(data.graphs, data.name)
    return data


class VisibleLabels(NamedTuple):
    """Classes of the training and validation nodes; those of all other nodes are hidden.

    Attributes:
        y: ``[num_nodes]``; −1 for hidden classes.
        train: numbers of the training nodes.
        val: numbers of the validation nodes.
        num_classes: how many classes there are.
    """

    y: Labels
    train: Labels
    val: Labels
    num_classes: int


def visible_labels(graph: Graph, owner: str) -> VisibleLabels:
    """Returns the labels that a supervised system may read: no test label leaves this function."""
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


@dataclass(frozen=True)
class Labelled:
    """The labelled nodes with which a supervised system trains and validates.

    Attributes:
        graph: what training may see: `training_graph`, without labels.
        nodes: the labelled training nodes, as numbers of `graph`.
        y: their labels, ``[len(nodes)]`` or ``[len(nodes), labels]``.
        val: the labelled validation nodes, as numbers of `whole_graph`.
        val_y: their labels.
        num_outputs: number of classes, or of labels per node.
    """

    graph: Graph
    nodes: IntArray
    y: IntArray
    val: IntArray
    val_y: IntArray
    num_outputs: int

    @classmethod
    def of(cls, data: Data, *, inductive: bool, owner: str) -> "Labelled":
        """Finds the labelled nodes in `data`; test labels are not used."""
        if isinstance(data, GraphCollection):
            count, val_count, _ = data.split_nodes
            train, val = np.arange(count), np.arange(count, count + val_count)
            graphs = (*data.train, *data.val)
            labels = [graph.y for graph in graphs if graph.y is not None]
            if len(labels) < len(graphs):
                raise GraphError(f"{owner}: {data.name} has no labels")
            y, positions = np.concatenate(labels), train
        else:
            if data.y is None:
                raise GraphError(f"{owner}: {data.name} has no labels")
            if data.train_mask is None or data.val_mask is None:
                lack = split_gap(data) or "it has none"
                raise GraphError(f"{owner}: {data.name} needs train and validation masks; {lack}")
            train, val = np.flatnonzero(data.train_mask), np.flatnonzero(data.val_mask)
            y, positions = data.y, np.arange(len(train)) if inductive else train
        known = is_labelled(y)
        kept, val = known[train], val[known[val]]
        if not (kept.any() and len(val)):
            raise GraphError(f"{owner}: {data.name} has no labelled training or validation nodes")
        return cls(
            graph=training_graph(data, inductive=inductive),
            nodes=positions[kept],
            y=y[train[kept]],
            val=val,
            val_y=y[val],
            num_outputs=data.num_classes,
        )
