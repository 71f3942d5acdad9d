"""The graph. It is validated once, when it is built, and immutable afterwards.

All other modules rely on what is checked here, and do not check it again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import scipy.sparse

from graphcl.arrays import Integers
from graphcl.errors import GraphError, StoreError, check_known, counted, demand, suggestion
from graphcl.graphs import interchange, validation
from graphcl.graphs.edges import Edges, checked_edges, checked_relation
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import EDGE, NODE, Key, Relation
from graphcl.graphs.validation import NoArray
from graphcl.store.header import is_plain, read_store
from graphcl.store.reader import check_edges, check_features, verify_store, whole
from graphcl.store.writer import StoreWriter, write_edges, write_nodes

_OF_EDGES = ("indptr", "indices", "edge_weight", "self_loops_removed")
_OF_GRAPH = ("name", "store")


def _of(owner: str, name: str, doc: str) -> Any:
    """Returns a property that is that of the only type, or of the only relation."""
    return property(lambda self: getattr(getattr(self, owner), name), doc=doc)


@dataclass(frozen=True, eq=False, repr=False)
class Graph(NoArray):
    r"""Types of nodes, and relations between them; read-only, in memory or mapped from a store.

    The paper's graph :math:`(X, A)` is the *plain* case: one type of nodes with features, and one
    undirected relation. `x`, `y`, `indptr` and the like speak of it.

    Build a plain graph with `from_edge_index` or `from_scipy`, one with directions with
    `from_directed`, one with types with `from_edges`, and any with `from_pyg` and `from_networkx`.
    `save` writes a store, `open` maps one.

    Edges of an undirected relation may be given in one direction or in both. Duplicates are merged.
    Self-loops are counted and removed, because the encoders add their own (:math:`A + I`).

    Attributes:
        nodes: the types of nodes by name, in the caller's order.
        relations: the relations by ``(source type, name, target type)``.
        name: the graph's name in messages and reports.
        store: the folder that the arrays are mapped from; None if they are in memory.
    """

    nodes: Mapping[str, Nodes]
    relations: Mapping[Key, Relation]
    name: str = "graph"
    store: Path | None = None

    @classmethod
    def from_csr(
        cls,
        indptr: Any,
        indices: Any,
        x: Any,
        y: Any = None,
        *,
        edge_weight: Any = None,
        self_loops_removed: int = 0,
        name: str = "graph",
        store: Path | None = None,
        **about: Any,
    ) -> Self:
        """Returns a plain graph of arrays that are right already; nothing is checked.

        Args:
            indptr: row pointers.
            indices: neighbours, each edge twice, sorted in each row.
            x: features, one row per node.
            y: labels, or None.
            edge_weight: a weight per entry, or None.
            self_loops_removed: number of self-loops that there were.
            name: the graph's name in messages.
            store: the folder that the arrays are mapped from.
            about: the other fields of `Nodes`.
        """
        nodes = Nodes(NODE, int(x.shape[0]), x, y, **about)
        edges = Relation(
            *EDGE,
            indptr,
            indices,
            edge_weight,
            undirected=True,
            self_loops_removed=self_loops_removed,
        )
        return cls({NODE: nodes}, {EDGE: edges}, name, store)

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Any,
        x: Any,
        y: Any = None,
        *,
        edge_weight: Any = None,
        train_mask: Any = None,
        val_mask: Any = None,
        test_mask: Any = None,
        node_ids: Any = None,
        class_names: Sequence[str] = (),
        name: str = "graph",
    ) -> Self:
        """Builds a plain graph from an edge list ``[2, num_edges]`` and a feature table.

        Accepts arrays, tensors on any device and nested lists. The arguments are not changed.

        Args:
            edge_index: node numbers in two rows; each edge in one direction or in both.
            x: features, one row per node, dense or sparse; its length is the number of nodes.
            y: class numbers (−1: unlabelled), or a 0/1 matrix for several labels per node (a row
                of −1 or NaN: unlabelled; of zeros: none of them); or names of classes: an array of
                texts (None: unlabelled), a mapping from ids, or a pandas Series, by its index of
                ids. `class_names` are then these. Numbers with fractions are a number to predict
                (NaN: unknown), as are whole ones that are not an array of integers, if many differ.
            edge_weight: a positive number per column of `edge_index`. Weights of columns that name
                the same edge are added. If every edge is listed in both directions with equal
                weights, each edge counts once.
            train_mask: the nodes that the probe learns from: booleans, or node numbers. With
                several splits, booleans ``[num_nodes, splits]``; so too for the other masks.
            val_mask: the nodes on which the probe's regularisation strength is chosen.
            test_mask: the nodes that are scored.
            node_ids: ids of the nodes, in the order of `x`.
            class_names: the name of each class or label, by its number.
            name: the graph's name in messages.

        Raises:
            GraphError: an array is wrong; the message names the array, the place and the value.
        """
        about = {"x": x, "y": y, "node_ids": node_ids, "class_names": class_names}
        masks = {"train_mask": train_mask, "val_mask": val_mask, "test_mask": test_mask}
        nodes = Nodes(NODE, **validation.checked_nodes({**about, **masks}))
        edges = _plain_edges(edge_index, nodes.num_nodes, edge_weight)
        return cls({NODE: nodes}, {EDGE: Relation(*EDGE, **edges._asdict())}, name)

    @classmethod
    def from_edges(
        cls, nodes: Mapping[str, Any], relations: Mapping[Key, Any], *, name: str = "graph"
    ) -> Self:
        """Builds a graph from tables of features and lists of edges.

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
        demand(nodes, f"{name}: no types of nodes; a graph needs at least one")
        checked = validation.node_fields
        types = {str(kind): Nodes(**checked(str(kind), given)) for kind, given in nodes.items()}
        sizes = {kind: one.num_nodes for kind, one in types.items()}
        found = [Relation(*checked_relation(key, given, sizes)) for key, given in relations.items()]
        return cls(types, {one.key: one for one in found}, name)

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
        edges = {
            "edge_index": edge_index,
            "edge_weight": edge_weight,
            "edge_features": edge_features,
            "undirected": False,
        }
        nodes = {node_type: {"x": x, "y": y, **about}}
        return cls.from_edges(nodes, {(node_type, relation, node_type): edges}, name=name)

    @classmethod
    def from_pyg(cls, data: Any, x: Any = None, *, name: str = "graph") -> "Graph":
        """Builds a graph from a `torch_geometric.data.Data` or a `HeteroData`, on any device.

        Of a `HeteroData`, ``edge_weight`` and ``edge_attr`` of a relation are its weights and
        features. A relation that is another one read backwards, as `ToUndirected` adds it, is that
        one's reverse and is not kept twice. A warning names what is left out.

        Args:
            data: the graph.
            x: of a `Data`, features instead of its own; ``structural`` computes them from edges.
            name: in messages.
        """
        if hasattr(data, "node_types"):
            return cls._once(*interchange.arrays_from_hetero(data), name=name)
        found = _with_features(interchange.arrays_from_pyg(data, x))
        return cls.from_edge_index(name=name, **found)

    @classmethod
    def _once(cls, *arrays: Any, name: str) -> "Graph":
        """Builds a graph in which no relation is another one read backwards."""
        from graphcl.graphs.conversion import without_reverses

        return without_reverses(cls.from_edges(*arrays, name=name))[0]

    @classmethod
    def from_networkx(
        cls,
        graph: Any,
        x: Any = None,
        y: Any = None,
        *,
        features: str | Sequence[str] = "x",
        labels: str = "y",
        weight: str | None = None,
        node_type: str | None = None,
        relation: str | None = None,
        edge_features: str | None = None,
        name: str = "graph",
    ) -> "Graph":
        """Builds a graph from a NetworkX graph; node names become ids.

        It is a plain graph, in which directions are ignored and parallel edges merged, unless one
        of `node_type`, `relation` and `edge_features` is given. Then nodes without a type are of
        the type ``node``, edges without a relation of ``edge``, directions count, and a relation
        that is another one read backwards is not kept twice. The key of a parallel edge is its
        relation if that is a text and it has no other.

        Args:
            graph: any NetworkX graph.
            x: features in the order of ``graph.nodes``; None reads the attribute `features`.
            y: labels in the same order; None reads the attribute `labels`, if nodes have it.
            features: the node attribute with a number or a vector per node, or several of them:
                ``["age", "income"]``; ``structural`` computes features from the edges.
            labels: the node attribute with the class number or name.
            weight: the edge attribute with a positive weight; None leaves edges unweighted.
            node_type: the node attribute with the type of a node.
            relation: the edge attribute with the name of its relation.
            edge_features: the edge attribute with a number or a vector.
            name: the graph's name in messages.
        """
        kinds = {"node_type": node_type, "relation": relation, "edge_features": edge_features}
        typed, computed = any(kinds.values()), x is None and features == "structural"
        nodes, relations = interchange.arrays_from_networkx(
            graph,
            features=() if computed or not (x is None or typed) else features,
            labels=labels,
            weight=weight,
            **kinds,
        )
        if typed:
            return cls._once(nodes, relations, name=name)
        arrays = {**nodes.get(NODE, {}), "edge_index": np.zeros((2, 0), np.int64)}
        arrays |= relations.get(EDGE, {})
        arrays.pop("undirected", None)
        given = {"x": "structural" if computed else x, "y": y}
        arrays |= {key: one for key, one in given.items() if one is not None}
        return cls.from_edge_index(name=name, **_with_features(arrays))

    @classmethod
    def from_scipy(
        cls, adjacency: Any, x: Any, y: Any = None, *, name: str = "graph", **masks: Any
    ) -> Self:
        """Builds a graph from a square sparse matrix: every stored non-zero value is an edge.

        Values are edge weights and must be positive; if all are 1, edges are unweighted. If `x` is
        ``structural``, features are computed from the edges.
        """
        arrays = interchange.arrays_from_scipy(adjacency) | {"x": x, "y": y}
        return cls.from_edge_index(name=name, **_with_features(arrays), **masks)

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = False, restored: bool = True) -> Self:
        """Maps a store into memory. It takes milliseconds for any size, and loads nothing.

        A store in several parts is loaded, and joined to the graph that was divided.

        Args:
            path: a folder that `save` or `graphcl build` wrote.
            verify: read the whole store and compare it with its checksums.
            restored: of several parts, the nodes are in the order of the graph that was divided;
                else in that of the parts, as embeddings in shards are.

        Raises:
            StoreError: a file is missing, or does not match the store's description.
        """
        header = (verify_store if verify else read_store)(Path(path))
        types, relations = whole(header, restored=restored)
        nodes = {name: Nodes(name, **fields) for name, fields in types.items()}
        edges = {key: Relation(*key, **fields) for key, fields in relations.items()}
        graph = cls(nodes, edges, header.name, header.path if len(header) == 1 else None)
        if not graph.is_plain and len(header) == 1:  # several were checked
            graph._scan()
        return graph

    def save(self, path: str | Path, *, features: str = "float32", overwrite: bool = False) -> None:
        """Writes the graph as a store, which appears complete or not at all.

        Args:
            path: the folder.
            features: ``float32`` or ``float16``; sparse features stay sparse float32.
            overwrite: replace an existing store. Anything else at `path` is never touched.

        Raises:
            StoreError: there are several splits; a store holds one.
        """
        for nodes in self.nodes.values():
            demand(
                nodes.splits is None,
                f"{self.name}: has {nodes.num_splits} splits and a store holds one; "
                "save graph.split(0), or another",
                StoreError,
            )
        with StoreWriter(path, name=self.name, overwrite=overwrite) as store:
            write_graph(self, store, features)

    def check(self) -> None:
        """Checks a store's structure once, before a compiled loop relies on it.

        All functions of this package that compute on a graph call it; your own compiled loops
        should too. Graphs in memory were checked when they were built, and those that are not
        plain are when they are opened.

        Raises:
            StoreError: the structure is damaged; the message says where.
        """
        if self.store is not None and self.is_plain and "_checked" not in vars(self):
            self._scan()
            object.__setattr__(self, "_checked", True)

    def _scan(self) -> None:
        for name, one in self.nodes.items():
            check_features(f"{self.store}: {name}", one.x)
        for key, relation in self.relations.items():
            where, senders = f"{self.store}: {':'.join(key)}", self.nodes[key[0]].num_nodes
            check_edges(where, vars(relation), senders, relation.num_edges)

    def replace(self, **fields: Any) -> Self:
        """Returns a copy of a plain graph in which some fields differ: of nodes, edges or its own.

        ``graph.replace(x=x, edge_weight=None, name="other")``
        """
        own = {key: fields.pop(key) for key in _OF_GRAPH if key in fields}
        edges = {key: fields.pop(key) for key in _OF_EDGES if key in fields}
        if edges:
            own["relations"] = {self.only_relation.key: replace(self.only_relation, **edges)}
        if fields:
            own["nodes"] = {self.only_type.name: replace(self.only_type, **fields)}
        return replace(self, **own)

    def to_pyg(self, *, sparse: bool = False) -> Any:
        """Returns a `torch_geometric.data.Data`: both directions of each edge, dense features.

        Of a graph that is not plain it is a `HeteroData` with one direction of each relation, and
        both of an undirected one; PyG's `ToUndirected` adds the other reverses.

        Args:
            sparse: keep sparse features as a `torch.sparse_csr` tensor; few PyG layers accept it.
        """
        from graphcl.graphs.conversion import to_pyg

        return to_pyg(self, sparse=sparse)

    def flatten(self) -> "Graph":
        """Returns a plain graph that forgets types, directions, edge features and weights.

        Nodes are in the order of `nodes`, and the features of each type have columns of their own.
        """
        from graphcl.graphs.conversion import flatten

        return self if self.is_plain else flatten(self)

    def type(self, name: str) -> Nodes:
        """Returns the nodes of a type.

        Raises:
            GraphError: there is no such type.
        """
        what = f"{self.name}: no type"
        check_known(name, self.nodes, what=what, listed="its types:", error=GraphError)
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

    @cached_property
    def is_plain(self) -> bool:
        """Whether it is the paper's graph: one type with features, one undirected relation."""
        return is_plain(self.nodes.values(), self.relations.values())

    @property
    def only_type(self) -> Nodes:
        """The only type of nodes."""
        if len(self.nodes) != 1:
            named = ", ".join(self.nodes)
            raise GraphError(f"{self.name}: has several types of nodes: name one ({named})")
        return next(iter(self.nodes.values()))

    @property
    def only_relation(self) -> Relation:
        """The only relation."""
        if len(self.relations) != 1:
            named = ", ".join(":".join(key) for key in self.relations) or "none"
            raise GraphError(f"{self.name}: has not one relation: name one ({named})")
        return next(iter(self.relations.values()))

    # Of the plain case; `Nodes` and `Relation` say what they are.
    x = _of("only_type", "x", "Features, ``[num_nodes, num_features]``.")
    y = _of("only_type", "y", "Labels, or None.")
    train_mask = _of("only_type", "train_mask", "The nodes that the probe learns from.")
    val_mask = _of("only_type", "val_mask", "The nodes that choose the probe's strength.")
    test_mask = _of("only_type", "test_mask", "The nodes that are scored.")
    splits = _of("only_type", "splits", "All splits, if there are several.")
    node_ids = _of("only_type", "node_ids", "The caller's ids; None: they are the rows.")
    class_names = _of("only_type", "class_names", "Names of the classes, by number.")
    preparation = _of("only_type", "preparation", "What made `x` of a table's columns.")
    num_features = _of("only_type", "num_features", "Number of features, P.")
    num_classes = _of("only_type", "num_classes", "Number of classes, or of labels per node.")
    has_split = _of("only_type", "has_split", "Whether there are train, val and test nodes.")
    num_splits = _of("only_type", "num_splits", "Number of splits; 0 without a whole one.")
    split_gap = _of("only_type", "split_gap", "Describes an incomplete split; else empty.")
    indptr = _of("only_relation", "indptr", "CSR row pointers, ``[num_nodes + 1]``.")
    indices = _of("only_relation", "indices", "CSR indices, each undirected edge twice.")
    edge_weight = _of("only_relation", "edge_weight", "A weight per entry, or None.")

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types, N."""
        return sum(one.num_nodes for one in self.nodes.values())

    @property
    def num_edges(self) -> int:
        """Number of edges of all relations; each undirected edge counts once."""
        return sum(one.num_edges for one in self.relations.values())

    @property
    def self_loops_removed(self) -> int:
        """Number of self-loops in the input."""
        return sum(one.self_loops_removed for one in self.relations.values())

    def degrees(self, node_type: str | None = None) -> Integers:
        """Returns the number of edges of each node of a type, or of the only one."""
        nodes = self.only_type if node_type is None else self.type(node_type)
        degree: Integers = np.zeros(nodes.num_nodes, np.int64)
        for relation in self.relations.values():
            if relation.target == nodes.name:
                degree += np.diff(relation.indptr)
            if relation.source == nodes.name and not relation.undirected:
                degree += np.bincount(relation.indices, minlength=nodes.num_nodes)
        return degree

    @cached_property
    def labelled_type(self) -> str:
        """The type whose nodes have labels; empty if none has, or several."""
        found = [name for name, one in self.nodes.items() if one.y is not None]
        return found[0] if len(found) == 1 else ""

    def split(self, number: int) -> Self:
        """Returns the graph with split `number`, from 0, of its only type as the only one."""
        return replace(self, nodes={self.only_type.name: self.only_type.split(number)})

    def edge_index(self) -> Integers:
        """Returns sources and targets of the entries of the only relation, ``[2, entries]``."""
        found = self.only_relation.edge_index()
        # An undirected relation has both: in the order of rows.
        return np.ascontiguousarray(found[::-1]) if self.only_relation.undirected else found

    def describe(self) -> str:
        """Returns the counts of all types and relations in one line."""
        if self.is_plain:
            kind = "sparse" if scipy.sparse.issparse(self.x) else "dense"
            parts = [
                counted(self.num_nodes, "node"),
                counted(self.num_edges, "edge"),
                counted(self.num_features, f"{kind} feature"),
            ]
            return ", ".join([*parts, *filter(None, [self.only_type.described_labels])])
        parts = []
        for name, one in self.nodes.items():
            own = [
                counted(one.num_nodes, "node"),
                counted(one.num_features, "feature"),
                *filter(None, [one.described_labels]),
            ]
            parts.append(f"{name}: {', '.join(own)}")
        parts += [
            f"{one.source} {one.name} {one.target}: {counted(one.num_edges, 'edge')}"
            for one in self.relations.values()
        ]
        return "; ".join(parts)

    def __repr__(self) -> str:
        return f"Graph({self.name!r}: {self.describe()})"


def write_graph(graph: Graph, store: StoreWriter, features: str | None) -> None:
    """Writes a graph into an open store; see `write_nodes` for `features`."""
    for name, one in graph.nodes.items():
        (writer,) = store.add_type(name, [0, one.num_nodes], one.class_names)
        write_nodes(writer, vars(one), features)
    for key, relation in graph.relations.items():
        loops = relation.self_loops_removed
        (writer,) = store.add_relation(
            key, undirected=relation.undirected, self_loops_removed=loops
        )
        narrow = graph.is_plain and graph.num_nodes < 1 << 31
        write_edges(writer, vars(relation), narrow=narrow)


def _plain_edges(edge_index: Any, num_nodes: int, edge_weight: Any = None) -> Edges:
    ends = ("", num_nodes)  # the type of a plain graph is not named in messages
    return checked_edges(edge_index, ends, ends, edge_weight=edge_weight, undirected=True)


def _with_features(arrays: dict[str, Any]) -> dict[str, Any]:
    demand(
        arrays.get("x") is not None,
        "the graph has no features: x is a row per node, or 'structural'",
    )
    num_nodes = arrays.pop("num_nodes", None)
    if isinstance(arrays["x"], str) and arrays["x"] == "structural":
        from graphcl.graphs.structural import structural_features as computed

        return arrays | {"x": computed(*_plain_edges(arrays["edge_index"], num_nodes)[:2])}
    rows = arrays["x"].shape[0] if hasattr(arrays["x"], "shape") else len(arrays["x"])
    demand(num_nodes is None or rows == num_nodes, f"x: {rows} rows for {num_nodes} nodes")
    return arrays
