"""Graphs as they are: several types of nodes, and relations between them.

A node type has its own features, of any width or none, and its own ids. A relation has the types
of its two ends, a name and a direction, and may have a weight and a vector of features per edge. A
plain `Graph` is the case of one type and one undirected relation (`TypedGraph.from_graph`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError, counted, suggestion
from graphcl.graphs.graph import Graph
from graphcl.graphs.typed_validation import checked_relation, node_fields
from graphcl.graphs.validation import BoolArray, FloatArray, IntArray, NoArray

Key = tuple[str, str, str]


@dataclass(frozen=True, eq=False)
class NodeType:
    """The nodes of one type, read-only.

    Attributes:
        name: the type's name.
        num_nodes: how many there are.
        x: features ``[num_nodes, features]``, a float32 array or a `scipy.sparse.csr_array`; None
            if the type has none.
        y: labels, ``[num_nodes]`` or ``[num_nodes, labels]``, as those of a `Graph`, or None.
        train_mask: the nodes that the probe learns from, or None.
        val_mask: the nodes on which the probe's regularisation strength is chosen, or None.
        test_mask: the nodes that are scored, or None.
        splits: bool ``[splits, 3, num_nodes]`` if there are several splits, as in `Graph`.
        node_ids: the caller's ids; None if they are ``0 … num_nodes − 1``. Ids are a type's own:
            another type may have the same.
        class_names: the names of the classes, by number; empty if they have none.
        preparation: what turned the columns of a table into `x`, or None.
    """

    name: str
    num_nodes: int
    x: FloatArray | scipy.sparse.csr_array | None = None
    y: IntArray | None = None
    train_mask: BoolArray | None = None
    val_mask: BoolArray | None = None
    test_mask: BoolArray | None = None
    splits: BoolArray | None = None
    node_ids: npt.NDArray[Any] | None = None
    class_names: tuple[str, ...] = ()
    preparation: Any = None

    def __post_init__(self) -> None:
        _freeze(self)

    @property
    def num_features(self) -> int:
        """The width of `x`; 0 without features."""
        return 0 if self.x is None else int(self.x.shape[1])


@dataclass(frozen=True, eq=False)
class Relation:
    """The edges of one kind, from nodes of a source type to nodes of a target type, read-only.

    They are CSR by target: the sources of target u are
    ``indices[indptr[u] : indptr[u + 1]]``, in ascending order. The encoder also uses the reverse
    direction, so it need not be given. An undirected relation, within one type, has each edge
    twice, and both directions are the same.

    Attributes:
        source: the type of the edges' sources.
        name: the relation's name.
        target: the type of their targets.
        indptr: row pointers, ``[targets + 1]``.
        indices: source of each entry.
        edge_weight: float32, positive, one per entry; None if edges are unweighted.
        edge_features: float32 ``[entries, features]``, or None. Only with them can two entries have
            the same ends.
        edge_ids: of an undirected relation, the number of the edge behind each entry; else None.
        self_loops_removed: number of self-loops in the input; the mean over a relation within one
            type has the node itself in it.
        preparation: what turned the columns of a table into `edge_features`, or None.
    """

    source: str
    name: str
    target: str
    indptr: IntArray
    indices: IntArray
    edge_weight: FloatArray | None = None
    edge_features: FloatArray | None = None
    edge_ids: IntArray | None = None
    self_loops_removed: int = 0
    preparation: Any = None

    def __post_init__(self) -> None:
        _freeze(self)

    @property
    def key(self) -> Key:
        """``(source type, name, target type)``."""
        return (self.source, self.name, self.target)

    @property
    def undirected(self) -> bool:
        """Whether both directions are one."""
        return self.edge_ids is not None

    @property
    def num_edges(self) -> int:
        """Number of edges; each undirected edge counts once."""
        return len(self.indices) // 2 if self.undirected else len(self.indices)

    @property
    def num_edge_features(self) -> int:
        """The width of `edge_features`; 0 without them."""
        return 0 if self.edge_features is None else int(self.edge_features.shape[1])

    def edge_index(self) -> IntArray:
        """Returns sources and targets of the entries, ``[2, entries]``, in their order."""
        return np.stack([np.asarray(self.indices, np.int64), self.targets()])

    def targets(self) -> IntArray:
        """Returns the target of each entry."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))


@dataclass(frozen=True, eq=False, repr=False)
class TypedGraph(NoArray):
    """A graph with types of nodes and relations, read-only.

    Build one with `from_edges`, `from_pyg`, `from_networkx`, `from_npz`, `from_directed` or
    `from_graph`.

    Attributes:
        nodes: the node types by name, in the caller's order.
        relations: the relations by ``(source type, name, target type)``.
        name: the graph's name in messages and reports.
    """

    nodes: Mapping[str, NodeType]
    relations: Mapping[Key, Relation]
    name: str = "graph"

    @classmethod
    def from_edges(
        cls, nodes: Mapping[str, Any], relations: Mapping[Key, Any], *, name: str = "graph"
    ) -> Self:
        """Builds a typed graph from tables of features and lists of edges.

        The arguments are not changed.

        Args:
            nodes: for each type its features, ``[num_nodes, features]``, dense or sparse; the
                number of its nodes, if it has no features; or a mapping with some of ``x``,
                ``num_nodes``, ``y``, ``train_mask``, ``val_mask``, ``test_mask``, ``node_ids`` and
                ``class_names``, as in `Graph.from_edge_index`.
            relations: for each ``(source type, name, target type)`` its edges, ``[2, num_edges]``:
                numbers of source nodes above numbers of target nodes; or a mapping with
                ``edge_index`` and some of ``edge_weight`` ``[num_edges]``, ``edge_features``
                ``[num_edges, features]`` and ``undirected``. Columns that name the same edge are
                merged and their weights added, unless edges have features: then each column stays
                an edge of its own. Within one type, a relation is undirected if `undirected` is
                true, or if it is not given and each edge is listed in both directions.
            name: the graph's name in messages.

        Raises:
            GraphError: an array is wrong; the message names the type or the relation, the place
                and the value.
        """
        if not nodes:
            raise GraphError(f"{name}: no types of nodes; a typed graph needs at least one")
        types = {
            str(kind): NodeType(**node_fields(str(kind), given)) for kind, given in nodes.items()
        }
        sizes = {kind: one.num_nodes for kind, one in types.items()}
        found = [Relation(*checked_relation(key, given, sizes)) for key, given in relations.items()]
        return cls(types, {one.key: one for one in found}, name)

    @classmethod
    def from_graph(cls, graph: Graph, *, node_type: str = "node", relation: str = "edge") -> Self:
        """Returns a plain graph as one type and one undirected relation."""
        from graphcl.graphs.typed_interchange import from_plain

        return cls(*from_plain(graph, node_type, relation), graph.name)

    @classmethod
    def from_directed(
        cls,
        edge_index: Any,
        x: Any,
        y: Any = None,
        *,
        edge_weight: Any = None,
        edge_features: Any = None,
        node_type: str = "node",
        relation: str = "to",
        name: str = "graph",
        **about: Any,
    ) -> Self:
        """Builds a directed graph of one type: whom a node follows, and who follows it, differ.

        Args:
            edge_index: sources above targets, ``[2, num_edges]``.
            x: features, one row per node.
            y: labels, as in `Graph.from_edge_index`.
            edge_weight: a positive number per edge.
            edge_features: a vector per edge, ``[num_edges, features]``.
            node_type: the name of the type.
            relation: the name of the relation.
            name: the graph's name in messages.
            about: masks, ``node_ids`` and ``class_names``.
        """
        edges = {"edge_index": edge_index, "edge_weight": edge_weight}
        edges |= {"edge_features": edge_features, "undirected": False}
        nodes = {node_type: {"x": x, "y": y, **about}}
        return cls.from_edges(nodes, {(node_type, relation, node_type): edges}, name=name)

    @classmethod
    def from_pyg(cls, data: Any, *, name: str = "graph") -> Self:
        """Builds a typed graph from a `torch_geometric.data.HeteroData`.

        ``edge_weight`` and ``edge_attr`` of a relation are its weights and features. A relation
        that is another one read backwards, as `ToUndirected` adds it, is that one's reverse and is
        not kept twice. A warning names what is left out.
        """
        from graphcl.graphs.typed_interchange import arrays_from_hetero

        return cls._once(*arrays_from_hetero(data), name=name)

    @classmethod
    def _once(cls, *arrays: Any, name: str) -> Self:
        """Builds a typed graph in which no relation is another one read backwards."""
        from graphcl.graphs.typed_interchange import without_reverses

        kept: Self = without_reverses(cls.from_edges(*arrays, name=name))[0]
        return kept

    @classmethod
    def from_networkx(cls, graph: Any, *, name: str = "graph", **attributes: Any) -> Self:
        """Builds a typed graph from a NetworkX graph, directed or not, with parallel edges or not.

        A relation that is another one read backwards is not kept twice.

        Args:
            graph: its node names become ids.
            name: the graph's name in messages.
            attributes: names of attributes, if they are others than these: of nodes,
                ``node_type="type"``, ``features="x"`` or several, ``labels="y"``; of edges,
                ``relation="relation"``, ``weight="weight"``, ``edge_features="features"``. Nodes
                without a type are of the type ``node``, and edges without a relation of ``edge``.
                The key of a parallel edge is its relation if that is a text and it has no other.
        """
        from graphcl.graphs.typed_interchange import arrays_from_networkx

        return cls._once(*arrays_from_networkx(graph, **attributes), name=name)

    @classmethod
    def from_npz(cls, path: str | Path) -> Self:
        """Reads an `.npz` file with types of nodes or edges; see `graphcl.graphs.typed_npz`.

        A relation that is another one read backwards is not kept twice.
        """
        from graphcl.graphs.typed_npz import arrays_from_npz

        return cls._once(*arrays_from_npz(Path(path)), name=Path(path).stem)

    @classmethod
    def open(cls, path: str | Path) -> "TypedGraph":
        """Maps a typed graph that `save` wrote; see `graphcl.graphs.typed_store`."""
        from graphcl.graphs.typed_store import open_typed

        return open_typed(Path(path))

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Writes the graph as a folder, which appears complete or not at all.

        Args:
            path: the folder.
            overwrite: replace a typed store that is there. Anything else is never touched.
        """
        from graphcl.graphs.typed_store import save_typed

        save_typed(self, Path(path), overwrite=overwrite)

    def to_pyg(self, *, sparse: bool = False) -> Any:
        """Returns a `torch_geometric.data.HeteroData`, one direction of each relation.

        An undirected relation has both directions. PyG's `ToUndirected` adds the other reverses.

        Args:
            sparse: keep sparse features as `torch.sparse_csr` tensors.
        """
        from graphcl.graphs.typed_interchange import to_hetero

        return to_hetero(self, sparse=sparse)

    def flatten(self) -> Graph:
        """Returns a plain graph that forgets types, directions, edge features and weights.

        Nodes are in the order of `nodes`, and the features of each type have columns of their own.
        """
        from graphcl.graphs.typed_interchange import flatten

        return flatten(self)

    def nodes_of(self, node_type: str) -> Graph:
        """Returns the nodes of a type, with labels, split and ids, as a plain graph without edges.

        It goes wherever embeddings of this type are judged: `graphcl.linear_probe`, `predict`. A
        type without features has one column of zeros.
        """
        nodes = self.type(node_type)
        x = np.zeros((nodes.num_nodes, 1), np.float32) if nodes.x is None else nodes.x
        return Graph(
            np.zeros(nodes.num_nodes + 1, np.int64),
            np.zeros(0, np.int64),
            x,
            nodes.y,
            nodes.train_mask,
            nodes.val_mask,
            nodes.test_mask,
            nodes.node_ids,
            name=f"{self.name} ({node_type})",
            splits=nodes.splits,
            class_names=nodes.class_names,
            preparation=nodes.preparation,
        )

    def type(self, name: str) -> NodeType:
        """Returns a node type by name.

        Raises:
            GraphError: there is no such type.
        """
        if name not in self.nodes:
            known = ", ".join(self.nodes)
            near = suggestion(name, self.nodes)
            raise GraphError(f"{self.name}: no type {name!r}; its types: {known}{near}")
        return self.nodes[name]

    def relation(self, name: str) -> Relation:
        """Returns a relation by its name, or by ``source:name:target`` where names are shared.

        Raises:
            GraphError: there is no such relation, or there are several.
        """
        found = [one for one in self.relations.values() if name in (one.name, ":".join(one.key))]
        if len(found) == 1:
            return found[0]
        known = ", ".join(":".join(key) for key in self.relations) or "none"
        what = "several relations are named" if found else "no relation"
        near = "" if found else suggestion(name, [one.name for one in self.relations.values()])
        raise GraphError(f"{self.name}: {what} {name!r}; its relations: {known}{near}")

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types."""
        return sum(one.num_nodes for one in self.nodes.values())

    @property
    def num_edges(self) -> int:
        """Number of edges of all relations."""
        return sum(one.num_edges for one in self.relations.values())

    @cached_property
    def labelled_type(self) -> str:
        """The type whose nodes have labels; empty if none has, or several."""
        found = [name for name, one in self.nodes.items() if one.y is not None]
        return found[0] if len(found) == 1 else ""

    def describe(self) -> str:
        """Returns the counts of all types and relations in one line."""
        parts = []
        for name, one in self.nodes.items():
            own = [counted(one.num_nodes, "node"), counted(one.num_features, "feature")]
            classes = 0 if one.y is None else self.nodes_of(name).num_classes
            own += [counted(classes, "class", "classes")] if classes else []
            parts.append(f"{name}: {', '.join(own)}")
        parts += [
            f"{one.source} {one.name} {one.target}: {counted(one.num_edges, 'edge')}"
            for one in self.relations.values()
        ]
        return "; ".join(parts)

    def __repr__(self) -> str:
        return f"TypedGraph({self.name!r}: {self.describe()})"


def _freeze(holder: Any) -> None:
    for value in vars(holder).values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
        elif scipy.sparse.issparse(value):
            for part in (value.data, value.indices, value.indptr):
                part.flags.writeable = False
