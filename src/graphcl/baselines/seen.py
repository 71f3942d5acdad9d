"""What an inductive system learns from, and what it is applied to, each as one graph."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse

from graphcl.baselines.protocol import Data
from graphcl.errors import GraphError
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph, split_gap
from graphcl.graphs.subgraph import training_subgraph
from graphcl.graphs.validation import IntArray


def disjoint_union(graphs: Sequence[Graph], name: str) -> Graph:
    """Returns all graphs as one with no edge between them, its rows in their order."""
    entries = np.cumsum([0, *(len(graph.indices) for graph in graphs)])
    nodes = np.cumsum([0, *(graph.num_nodes for graph in graphs)])
    indptr = [graph.indptr[1:] + before for graph, before in zip(graphs, entries, strict=False)]
    indices = [graph.indices + before for graph, before in zip(graphs, nodes, strict=False)]
    dense = all(isinstance(graph.x, np.ndarray) for graph in graphs)
    tables = [graph.x for graph in graphs]
    labels = [graph.y for graph in graphs if graph.y is not None]
    return Graph(
        indptr=np.concatenate([[0], *indptr]),
        indices=np.concatenate(indices),
        x=np.concatenate(tables) if dense else scipy.sparse.vstack(tables, format="csr"),
        y=np.concatenate(labels) if len(labels) == len(graphs) else None,
        name=name,
    )


def training_graph(data: Data, *, inductive: bool) -> Graph:
    """Returns what may be learned from without labels; it carries none.

    Args:
        data: of a collection, the training graphs.
        inductive: of one graph, its training nodes and the edges among them, not all of it.
    """
    if isinstance(data, GraphCollection):
        return replace(disjoint_union(data.train, data.name), y=None)
    return training_subgraph(data) if inductive else replace(data, y=None)


def whole_graph(data: Data) -> Graph:
    """Returns everything as one graph; of a collection, in the order of `graphs`."""
    if isinstance(data, GraphCollection):
        return disjoint_union(data.graphs, data.name)
    return data


@dataclass(frozen=True)
class Labelled:
    """The labelled nodes that a supervised system learns from and stops by.

    Attributes:
        graph: what training may see: `training_graph`, with no labels.
        nodes: the labelled training nodes, as numbers of `graph`.
        y: their labels, ``[len(nodes)]`` or ``[len(nodes), labels]``.
        val: the labelled validation nodes, as numbers of `whole_graph`.
        val_y: their labels.
        num_outputs: classes, or labels per node.
    """

    graph: Graph
    nodes: IntArray
    y: IntArray
    val: IntArray
    val_y: IntArray
    num_outputs: int

    @classmethod
    def of(cls, data: Data, *, inductive: bool, owner: str) -> "Labelled":
        """Finds them in `data`; test labels are not touched.

        Raises:
            GraphError: no labels, or no labelled training or validation nodes.
        """
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
        # A node with several labels may have none of them: that is an answer, not a gap.
        known = y >= 0 if y.ndim == 1 else np.ones(len(y), dtype=np.bool_)
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
