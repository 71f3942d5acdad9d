"""Datasets of several graphs: the paper's inductive setting on multiple graphs.

Also the graphs that inductive training derives from a dataset, and the dataset's fingerprint.
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError, counted, demand
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.validation import NoArray, several_types

SAMPLED = 4096  # entries read from each array, so that a graph of any size takes milliseconds


@dataclass(frozen=True, eq=False, repr=False)
class GraphCollection(NoArray):
    """Graphs to train on, and graphs that are unseen until they are embedded.

    All graphs have the same number of features, and the same kind and number of labels.

    Attributes:
        train: the graphs that the encoder and the probe learn from; at least one.
        val: the graphs on which the probe's regularisation strength is chosen; may be empty.
        test: the graphs that are scored; may be empty.
        name: the collection's name in messages and reports.
        note: a remark that is printed with every score on this collection; may be empty.
    """

    train: tuple[Graph, ...]
    val: tuple[Graph, ...] = ()
    test: tuple[Graph, ...] = ()
    name: str = "graphs"
    note: str = ""

    def __post_init__(self) -> None:
        for split in ("train", "val", "test"):
            object.__setattr__(self, split, tuple(getattr(self, split)))
        demand(self.train, f"{self.name}: no training graph; pass at least one")
        given: tuple[Any, ...] = self.graphs
        for number, graph in enumerate(given):
            if not isinstance(graph, Graph) or not graph.is_plain:
                kind = "one with types" if isinstance(graph, Graph) else type(graph).__name__
                raise GraphError(f"{self.name}: graph {number} is not a graphcl.Graph but {kind}")
        for number, (graph, other) in enumerate(pairwise(self.graphs), 1):
            for described in (_features, _labels):
                demand(
                    described(graph) == described(other),
                    f"{self.name}: graph {number} ({other.name}) has {described(other)}, "
                    f"but the graphs before it have {described(graph)}",
                )

    is_plain = True  # as its graphs are

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """All graphs: train, then validation, then test. Rows of embeddings are in this order."""
        return (*self.train, *self.val, *self.test)

    @property
    def num_nodes(self) -> int:
        """Total number of nodes."""
        return sum(graph.num_nodes for graph in self.graphs)

    @property
    def num_edges(self) -> int:
        """Total number of undirected edges."""
        return sum(graph.num_edges for graph in self.graphs)

    @property
    def num_features(self) -> int:
        """Number of features of every graph, P."""
        return int(self.train[0].num_features)

    @cached_property
    def num_classes(self) -> int:
        """Number of classes, or of labels per node if there are several; 0 without labels."""
        return max(int(graph.num_classes) for graph in self.graphs)

    @property
    def split_nodes(self) -> tuple[int, int, int]:
        """Numbers of nodes in the training, validation and test graphs."""
        train, val, test = (
            sum(graph.num_nodes for graph in graphs) for graphs in (self.train, self.val, self.test)
        )
        return train, val, test

    @property
    def self_loops_removed(self) -> int:
        """Number of self-loops in the inputs."""
        return sum(graph.self_loops_removed for graph in self.graphs)

    @property
    def y(self) -> npt.NDArray[Any] | None:
        """Labels of all graphs, concatenated, or None."""
        labels = [graph.y for graph in self.graphs if graph.y is not None]
        return np.concatenate(labels) if labels else None

    @property
    def node_ids(self) -> npt.NDArray[Any] | None:
        """Ids of the nodes of all graphs, concatenated; None if any graph has none."""
        names = [graph.node_ids for graph in self.graphs if graph.node_ids is not None]
        return np.concatenate(names) if len(names) == len(self.graphs) else None

    def __repr__(self) -> str:
        counts = "/".join(str(len(graphs)) for graphs in (self.train, self.val, self.test))
        parts = [
            f"{counts} train/val/test graphs",
            counted(self.num_nodes, "node"),
            counted(self.num_edges, "edge"),
            counted(self.num_features, "feature"),
        ]
        if self.num_classes:
            parts.append(counted(self.num_classes, "class", "classes"))
        return f"GraphCollection({self.name!r}: {', '.join(parts)})"


Labelled = Graph | GraphCollection | Nodes  # what has labels and splits


def of_labelled_type(z: Any, graph: Any, owner: str) -> tuple[Any, Any]:
    """Returns the embeddings and the nodes of the type that has labels, where `z` has several.

    Raises:
        GraphError: no type is the only one with labels.
    """
    if not isinstance(z, Mapping):
        return z, graph
    kind = graph.labelled_type if isinstance(graph, Graph) else ""
    if kind not in z:
        raise several_types(z, owner)
    return z[kind], graph.nodes[kind]


def _features(graph: Graph) -> str:
    return counted(graph.num_features, "feature")


def _labels(graph: Graph) -> str:
    if graph.y is None:
        return "no labels"
    if graph.only_type.has_number:
        return "a number per node"
    return "one class per node" if graph.y.ndim == 1 else f"{graph.y.shape[1]} labels per node"


def labelled_nodes(data: Graph | GraphCollection) -> Labelled:
    """Returns what a score looks at: the nodes with labels; of several graphs, all of them.

    Raises:
        GraphError: several types have labels, or none of several has.
    """
    if isinstance(data, GraphCollection):
        return data
    if len(data.nodes) == 1:
        return data.only_type
    if not data.labelled_type:
        named = ", ".join(data.nodes)
        raise GraphError(f"{data.name}: needs labels of one type of nodes ({named})")
    return data.nodes[data.labelled_type]


def as_graphs(graph: Any) -> Graph | GraphCollection:
    """Returns one graph as a `Graph`, and a list as a collection of training graphs."""
    if isinstance(graph, GraphCollection):
        return graph
    if isinstance(graph, list | tuple):
        return GraphCollection(tuple(as_graph(one) for one in graph))
    return as_graph(graph)


def as_graph(graph: Any) -> Graph:
    """Returns a `Graph` from one, from PyG's `Data` or `HeteroData`, or from a NetworkX graph."""
    if isinstance(graph, Graph):
        return graph
    if _is_networkx(graph):
        return Graph.from_networkx(graph)
    if is_foreign(graph):
        return Graph.from_pyg(graph)
    raise GraphError(
        "expected a graphcl.Graph, a torch_geometric Data or HeteroData, or a networkx graph; "
        f"got {type(graph).__name__}; see graphcl.open_graph for names and files, read_tables for "
        "tables, Graph.from_edge_index and from_scipy for arrays"
    )


def is_foreign(graph: Any) -> bool:
    """Returns whether something is a graph of PyG or NetworkX."""
    return hasattr(graph, "edge_index") or hasattr(graph, "node_types") or _is_networkx(graph)


def _is_networkx(graph: Any) -> bool:
    networkx = sys.modules.get("networkx")  # whoever has such a graph has imported it
    return networkx is not None and isinstance(graph, networkx.Graph)


def disjoint_union(graphs: Sequence[Graph], name: str) -> Graph:
    """Returns one graph that consists of all graphs, in order, with no edges between them.

    It has labels if every graph has labels, and weights if any graph has weights. It has no split.
    """
    entries = np.cumsum([0, *(len(graph.indices) for graph in graphs)])
    nodes = np.cumsum([0, *(graph.num_nodes for graph in graphs)])
    indptr = [graph.indptr[1:] + before for graph, before in zip(graphs, entries, strict=False)]
    indices = [graph.indices + before for graph, before in zip(graphs, nodes, strict=False)]
    dense = all(isinstance(graph.x, np.ndarray) for graph in graphs)
    tables = [graph.x for graph in graphs]
    labels = [graph.y for graph in graphs if graph.y is not None]
    weighted = any(graph.edge_weight is not None for graph in graphs)
    weights = [
        np.ones(len(graph.indices), np.float32) if graph.edge_weight is None else graph.edge_weight
        for graph in graphs
    ]
    return Graph.from_csr(
        indptr=np.concatenate([[0], *indptr]),
        indices=np.concatenate(indices),
        x=np.concatenate(tables) if dense else scipy.sparse.vstack(tables, format="csr"),
        y=np.concatenate(labels) if len(labels) == len(graphs) else None,
        edge_weight=np.concatenate(weights) if weighted else None,
        name=name,
    )


def training_subgraph(graph: Graph) -> Graph:
    """Returns the subgraph of the training nodes and the edges among them, without labels.

    It contains no feature and no edge of a validation or test node, so these nodes are unseen for
    an encoder that is trained on it.

    Raises:
        GraphError: the graph has no training nodes.
    """
    demand(
        graph.train_mask is not None and graph.train_mask.any(),
        f"{graph.name}: has no train_mask; inductive training needs one",
    )
    graph.check()
    nodes = np.flatnonzero(graph.train_mask)
    # Booleans stand for weights where there are none.
    weight = graph.edge_weight
    values = np.ones(len(graph.indices), np.bool_) if weight is None else weight
    shape = (graph.num_nodes, graph.num_nodes)
    edges = scipy.sparse.csr_array((values, graph.indices, graph.indptr), shape=shape)
    among = edges[nodes][:, nodes]
    return Graph.from_csr(
        indptr=among.indptr.astype(np.int64),
        indices=among.indices.astype(np.int64),
        x=graph.x[nodes],
        edge_weight=None if weight is None else among.data,
        node_ids=nodes if graph.node_ids is None else graph.node_ids[nodes],
        name=f"{graph.name} (training nodes)",
    )


def fingerprint(graphs: Sequence[Graph]) -> str:
    """Returns sixteen hex digits of the sizes and of evenly spaced entries of the graphs' arrays.

    Different graphs almost certainly have different fingerprints. A graph that differs only in
    entries that are not read has the same fingerprint.
    """
    digest = hashlib.sha256()
    for graph in graphs:
        for name, nodes in graph.nodes.items():
            digest.update(repr((name, nodes.num_nodes, nodes.num_features)).encode())
            x: Any = nodes.x
            if isinstance(x, np.ndarray):
                digest.update(_sample(x, max(1, SAMPLED // max(1, nodes.num_features))))
            elif x is not None:
                digest.update(_sample(x.data) + _sample(x.indices))
        for key, relation in graph.relations.items():
            digest.update(repr((key, len(relation.indices), relation.undirected)).encode())
            for name in ("indptr", "indices", "edge_weight", "edge_features"):
                array = getattr(relation, name)
                digest.update(b"" if array is None else _sample(array))
    return digest.hexdigest()[:16]


def labelled_fingerprint(graphs: Sequence[Graph]) -> str:
    """Returns a fingerprint of graphs with their labels and splits, all of them."""
    digest = hashlib.sha256(fingerprint(graphs).encode())
    for nodes in (one for graph in graphs for one in graph.nodes.values()):
        for array in (nodes.y, nodes.split_codes):
            digest.update(b"none" if array is None else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def _sample(array: Any, count: int = SAMPLED) -> bytes:
    """Returns the bytes of at most `count` evenly spaced rows; numbers of any width are alike."""
    if len(array) == 0:
        return b""
    places = np.unique(np.linspace(0, len(array) - 1, min(count, len(array))).astype(np.int64))
    rows = np.asarray(array[places])
    wide = np.int64 if rows.dtype.kind in "iu" else rows.dtype  # a store has narrower ones
    return np.ascontiguousarray(rows, dtype=wide).tobytes()
