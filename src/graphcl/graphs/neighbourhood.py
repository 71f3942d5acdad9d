"""The part of a graph that the embeddings of some nodes depend on: its own nodes, or new ones.

For new nodes the grown graph itself is not built. They come after the graph's own, so their entries
come last in the rows of their neighbours, and sums over neighbours have the order that they would
have in the grown graph.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from graphcl.arrays import Floats, Integers
from graphcl.errors import GraphError, demand
from graphcl.graphs import validation
from graphcl.graphs.edges import reverse_order
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import Key, Relation
from graphcl.store.columns import entry_places, table_rows

WHO = "embed_new"
_NONE = np.zeros(0, np.int64)


class Surroundings:
    """Finds the nodes around others; the reverse of a directed relation is made once."""

    def __init__(self, graph: Graph) -> None:
        graph.check()
        self.graph = graph

    def within(self, nodes: Mapping[str, Integers], hops: int) -> tuple[Graph, dict[str, Integers]]:
        """Returns what is within some hops of nodes as a graph, and which rows it has, by type.

        If that is more than half of the graph, it is the graph itself. Nodes keep their order, so
        sums over neighbours keep theirs. Nodes that are `hops` away have no edges but to others,
        because only their features are needed: the result is for inference alone. A type of which
        no node is reached is not there. The time depends on what is reached, not on the graph.

        Args:
            nodes: rows by type, ascending, each once.
            hops: how far.
        """
        graph, most = self.graph, self.graph.num_nodes // 2
        whole = graph, {name: np.arange(one.num_nodes) for name, one in graph.nodes.items()}
        reached = {name: rows for name, rows in nodes.items() if len(rows)}
        frontier, inner = reached, dict[str, Integers]()
        for _ in range(hops):
            inner = reached
            if sum(map(len, frontier.values())) > most:
                return whole
            frontier = self._beyond(frontier, reached)
            reached = {
                name: np.union1d(reached.get(name, _NONE), frontier.get(name, _NONE))
                for name in graph.nodes
                if name in reached or name in frontier
            }
        if sum(map(len, reached.values())) > most:
            return whole
        parts = {
            name: Nodes(
                name,
                len(reached[name]),
                None if one.x is None else table_rows(one.x, reached[name]),
            )
            for name, one in graph.nodes.items()
            if name in reached
        }
        relations = {
            key: self._edges(one, reached, inner)
            for key, one in graph.relations.items()
            if one.source in reached and one.target in reached
        }
        return Graph(parts, relations, graph.name), reached

    def _beyond(
        self, frontier: Mapping[str, Integers], reached: Mapping[str, Integers]
    ) -> dict[str, Integers]:
        """Returns the neighbours of nodes that are not reached yet, by type."""
        found: dict[str, list[Integers]] = {}
        for key, one in self.graph.relations.items():
            if one.target in frontier:
                entries = entries_of(one.indptr, frontier[one.target])
                found.setdefault(one.source, []).append(one.indices[entries])
            if not one.undirected and one.source in frontier:
                indptr, targets, _ = self._reverses[key]
                entries = entries_of(indptr, frontier[one.source])
                found.setdefault(one.target, []).append(targets[entries])
        beyond = {name: np.unique(np.concatenate(some)) for name, some in found.items()}
        far = {
            name: np.setdiff1d(some, reached.get(name, _NONE), assume_unique=True)
            for name, some in beyond.items()
        }
        return {name: some.astype(np.int64) for name, some in far.items() if len(some)}

    @cached_property
    def _reverses(self) -> dict[Key, tuple[Integers, Integers, Integers]]:
        """Directed relations by source: pointers, targets, and the entry of each."""
        return {
            key: reverse_order(one.indptr, one.indices, self.graph.nodes[one.source].num_nodes)
            for key, one in self.graph.relations.items()
            if not one.undirected
        }

    def _edges(
        self, one: Relation, reached: Mapping[str, Integers], inner: Mapping[str, Integers]
    ) -> Relation:
        """Returns the edges of a relation that inner nodes have, in the numbers of the part."""
        entries = entries_of(one.indptr, inner.get(one.target, _NONE))
        if not one.undirected:
            indptr, _, places = self._reverses[one.key]
            back = places[entries_of(indptr, inner.get(one.source, _NONE))]
            entries = np.union1d(entries, back)
        targets = np.searchsorted(one.indptr, entries, side="right") - 1
        rows = np.searchsorted(reached[one.target], targets)
        counts = np.bincount(rows, minlength=len(reached[one.target]))
        sources = np.searchsorted(reached[one.source], one.indices[entries])
        beside: dict[str, Any] = {
            name: None if getattr(one, name) is None else getattr(one, name)[entries]
            for name in ("edge_weight", "edge_features", "edge_ids")
        }
        pointers = np.concatenate([[0], counts.cumsum()])
        return replace(one, indptr=pointers, indices=sources.astype(np.int64), **beside)


def entries_of(indptr: Integers, nodes: Integers) -> Integers:
    """Returns the places of all entries of the nodes' rows."""
    starts = np.asarray(indptr[nodes])
    return entry_places(starts, indptr[nodes + 1] - starts)


@dataclass(frozen=True, eq=False)
class NewNodes:
    """Nodes that a graph does not have yet, with their edges; build them with `new_nodes`.

    Attributes:
        x: their features, ``[n, P]`` float32, dense or CSR.
        own: the new node of each entry, ascending: 0 … n − 1.
        other: the node at the entry's other end, ascending within a node: a row of the graph, or
            its number of nodes plus the place of a new node. An edge between two new nodes is there
            twice.
        weight: float32, per entry; None if no weight was given.
    """

    x: Floats | scipy.sparse.csr_array
    own: Integers
    other: Integers
    weight: Floats | None = None

    def __len__(self) -> int:
        return int(self.x.shape[0])


class GrownPart(NamedTuple):
    """What the embeddings of new nodes depend on.

    Attributes:
        graph: the nodes of the old graph that are reached, in their order, then the new nodes. Rows
            of the nodes that are farthest away are empty, because only their features are needed.
        levels: for each layer the rows in `graph` on which it is needed, ascending; those of the
            last are the new nodes.
    """

    graph: Graph
    levels: list[Integers]


def new_nodes(
    graph: Graph,
    features: Any,
    neighbours: Sequence[Integers],
    *,
    edges: Any = None,
    weights: Sequence[Any] | None = None,
) -> NewNodes:
    """Checks new nodes and puts their edges in order.

    A neighbour that is listed twice is one edge; its weights are added.

    Args:
        graph: the graph that they join.
        features: one row per new node, dense or sparse.
        neighbours: for each new node, rows of the graph.
        edges: edges among the new nodes, ``[m, 2]``: places in `features`; or ``[m, 3]``, where the
            third column is a weight.
        weights: in the form of `neighbours`; None is 1 everywhere.

    Raises:
        GraphError: something does not fit the graph or the rest; the message says what.
    """
    x = _features(features, graph)
    number, size = x.shape[0], graph.num_nodes
    demand(
        len(neighbours) == number,
        f"{WHO}: {len(neighbours)} lists of neighbours for {number} nodes",
    )
    counts = [len(some) for some in neighbours]
    own = np.repeat(np.arange(number), counts)
    other = np.concatenate(neighbours).astype(np.int64) if own.size else own
    for node in other[(other < 0) | (other >= size)][:1]:
        raise GraphError(f"{WHO}: neighbour {node} of a graph of {size} nodes")
    among, of_edges = _among(edges, number)
    weighted = weights is not None or of_edges is not None or graph.edge_weight is not None
    weight = _weights(weights, counts, of_edges, len(among)) if weighted else None
    own = np.concatenate([own, among[:, 0], among[:, 1]])
    other = np.concatenate([other, among[:, 1] + size, among[:, 0] + size])
    codes = own * (size + number) + other
    if weight is None:
        codes = np.unique(codes)
    else:
        codes, place = np.unique(codes, return_inverse=True)
        weight = np.bincount(place, weight, minlength=len(codes)).astype(np.float32)
    return NewNodes(x, codes // (size + number), codes % (size + number), weight)


def _features(features: Any, graph: Graph) -> Any:
    sparse = scipy.sparse.issparse(features)
    if not sparse and np.ndim(features) == 1:
        features = np.asarray(features)[None]
    x: Any = validation.features(features)
    if x.shape[1] != graph.num_features:
        wanted = f"{graph.name} has {graph.num_features}"
        raise GraphError(f"{WHO}: {x.shape[1]} features; {wanted}")
    if scipy.sparse.issparse(graph.x):
        return x if scipy.sparse.issparse(x) else scipy.sparse.csr_array(x)
    return x.toarray() if scipy.sparse.issparse(x) else x


def _among(edges: Any, number: int) -> tuple[Integers, Any]:
    """Returns pairs of new nodes without loops, and the weights that were given with them."""
    none = np.zeros((0, 2), np.int64)
    if edges is None or np.size(edges) == 0:
        return none, None
    try:
        given = np.asarray(edges, dtype=np.float64)
    except (TypeError, ValueError):
        given = np.zeros(0)
    demand(
        given.ndim == 2 and given.shape[1] in (2, 3) and np.isfinite(given).all(),
        f"{WHO}: edges must be pairs of new nodes, each a place in features",
    )
    places = given[:, :2]
    demand(
        not ((places % 1 != 0).any() or (places < 0).any() or (places >= number).any()),
        f"{WHO}: edges must name new nodes by their places, 0 to {number - 1}",
    )
    pairs = places.astype(np.int64)
    apart = pairs[:, 0] != pairs[:, 1]
    return pairs[apart], given[apart, 2] if given.shape[1] == 3 else None


def _weights(given: Any, counts: list[int], of_edges: Any, edges: int) -> Floats:
    """Returns the weight of each entry, before equal entries are merged."""
    parts = [np.ones(count) for count in counts]
    if given is not None:
        try:
            parts = [np.asarray(some, dtype=np.float64).reshape(-1) for some in given]
        except (TypeError, ValueError):
            raise GraphError(f"{WHO}: weights must be numbers, as many as neighbours") from None
        demand(
            [len(some) for some in parts] == counts,
            f"{WHO}: weights must be as many as neighbours, of each node",
        )
    among = np.ones(edges) if of_edges is None else of_edges
    values = np.concatenate([*parts, among, among])
    limits = np.finfo(np.float32)
    for weight in values[~((values >= limits.tiny) & (values <= limits.max))][:1]:
        raise GraphError(f"{WHO}: weight {weight}; weights are positive and finite")
    return values.astype(np.float32)


def grown_part(graph: Graph, new: NewNodes, hops: int | None) -> GrownPart:
    """Returns the nodes within some hops of the new ones, with these, as a graph for inference.

    The time depends on what is reached, not on the graph. Without `hops` it is the whole graph, and
    there are no levels.
    """
    graph.check()
    size, indptr, indices = graph.num_nodes, np.asarray(graph.indptr), np.asarray(graph.indices)
    old = new.other < size
    near = [_NONE, np.unique(new.other[old])]  # within 0 hops, 1 hop, …
    for _ in range((hops or 1) - 1):
        around = indices[entries_of(indptr, near[-1])].astype(np.int64)
        near.append(np.unique(np.concatenate([near[-1], around])))
    inner, reached = near[-2:] if hops else [np.arange(size)] * 2
    entries = entries_of(indptr, inner)
    columns = indices[entries].astype(np.int64)
    first = len(reached)

    def place(nodes: Integers) -> Integers:
        found: Integers = np.searchsorted(reached, nodes)
        return np.where(nodes >= size, nodes - size + first, found)

    counts = indptr[inner + 1] - indptr[inner]
    known = old if hops != 1 else np.zeros_like(old)  # of one hop, only features are needed
    ends = place(new.other)
    rows = np.concatenate([np.repeat(place(inner), counts), ends[known], new.own + first])
    cells = np.concatenate([place(columns), new.own[known] + first, ends])
    order = np.lexsort((cells, rows))
    total = first + len(new)
    weight = None
    if new.weight is not None:
        of_old = np.ones(len(entries), np.float32)
        if graph.edge_weight is not None:
            of_old = graph.edge_weight[entries]
        weight = np.concatenate([of_old, new.weight[known], new.weight])[order]
    part = Graph.from_csr(
        indptr=np.concatenate([[0], np.bincount(rows, minlength=total).cumsum()]),
        indices=cells[order],
        x=_joined(graph.x, reached, new.x),
        edge_weight=weight,
        name=graph.name,
    )
    own = np.arange(first, total)
    levels = [np.concatenate([place(some), own]) for some in near[-2::-1]] if hops else []
    return GrownPart(part, levels)


def _joined(x: Any, rows: Integers, new: Any) -> Any:
    """Returns rows of the graph's features, in float32, and those of the new nodes below them."""
    if scipy.sparse.issparse(x):
        return scipy.sparse.csr_array(scipy.sparse.vstack([x[rows], new], format="csr"))
    return np.concatenate([x[rows].astype(np.float32, copy=False), new])
