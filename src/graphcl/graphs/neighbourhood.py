"""The part of a graph that the embeddings of some nodes depend on."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import require
from graphcl.graphs.edges import reverse_order
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import Key, Relation
from graphcl.store.columns import ScaledFeatures

IntArray = npt.NDArray[np.int64]


def neighbourhood(
    graph: Graph, nodes: slice | IntArray, hops: int
) -> tuple[Graph, slice | IntArray]:
    """Returns the nodes of a plain graph within some hops of `nodes`, and the rows of these in it.

    It is what `Surroundings.within` returns; or the graph and `nodes` as they are.

    Args:
        graph: any plain graph.
        nodes: a range, or row numbers in any order.
        hops: at least 1.
    """
    if isinstance(nodes, slice):
        start, stop, step = nodes.indices(graph.num_nodes)
        require(step == 1 and start < stop, "embed_graph", "nodes", "a range of nodes", nodes)
        chosen, order = np.arange(start, stop), np.arange(stop - start)
    else:
        chosen, order = np.unique(nodes, return_inverse=True)
    name = graph.only_type.name
    part, rows = Surroundings(graph).within({name: chosen}, hops)
    if part is graph:
        return graph, nodes
    return part, np.searchsorted(rows[name], chosen)[order]


class Surroundings:
    """Finds the nodes around others; the reverse of a directed relation is made once."""

    def __init__(self, graph: Graph) -> None:
        graph.check()
        self.graph = graph

    def within(self, nodes: Mapping[str, IntArray], hops: int) -> tuple[Graph, dict[str, IntArray]]:
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
        frontier, inner = reached, dict[str, IntArray]()
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
            name: Nodes(name, len(reached[name]), None if one.x is None else _rows(one, reached))
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
        self, frontier: Mapping[str, IntArray], reached: Mapping[str, IntArray]
    ) -> dict[str, IntArray]:
        """Returns the neighbours of nodes that are not reached yet, by type."""
        found: dict[str, list[IntArray]] = {}
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
    def _reverses(self) -> dict[Key, tuple[IntArray, IntArray, IntArray]]:
        """Directed relations by source: pointers, targets, and the entry of each."""
        return {
            key: reverse_order(one.indptr, one.indices, self.graph.nodes[one.source].num_nodes)
            for key, one in self.graph.relations.items()
            if not one.undirected
        }

    def _edges(
        self, one: Relation, reached: Mapping[str, IntArray], inner: Mapping[str, IntArray]
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


_NONE = np.zeros(0, np.int64)


def entries_of(indptr: IntArray, nodes: IntArray) -> IntArray:
    """Returns the places of all entries of the nodes' rows."""
    starts = np.asarray(indptr[nodes])
    counts = indptr[nodes + 1] - starts
    found: IntArray = np.repeat(starts - (counts.cumsum() - counts), counts)
    found += np.arange(len(found))
    return found


def _rows(nodes: Nodes, reached: Mapping[str, IntArray]) -> Any:
    return table_rows(nodes.x, reached[nodes.name])


def table_rows(x: Any, rows: IntArray) -> Any:
    """Returns rows of features in the form that they have."""
    if isinstance(x, ScaledFeatures):
        scale = None if x.row_scale is None else x.row_scale[rows]
        return ScaledFeatures(x.values[rows], x.scale, scale)
    return x[rows]
