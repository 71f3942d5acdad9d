"""The part of a graph that the embeddings of some nodes depend on."""

from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import require
from graphcl.graphs.graph import Graph
from graphcl.store.columns import ScaledFeatures

IntArray = npt.NDArray[np.int64]


def neighbourhood(
    graph: Graph, nodes: slice | IntArray, hops: int
) -> tuple[Graph, slice | IntArray]:
    """Returns the nodes within some hops of `nodes` as a graph, and the rows of `nodes` in it.

    If that is more than half of the graph, the graph and `nodes` are returned as they are. Nodes
    keep their order, so sums over neighbours keep theirs. Rows of the nodes that are `hops` away
    are empty, because only their features are needed: the result is for inference alone. The time
    depends on what is reached, not on the graph.

    Args:
        graph: any graph.
        nodes: a range, or row numbers in any order.
        hops: at least 1.
    """
    graph.check()
    if isinstance(nodes, slice):
        start, stop, step = nodes.indices(graph.num_nodes)
        require(step == 1 and start < stop, "embed_graph", "nodes", "a range of nodes", nodes)
        chosen, order = np.arange(start, stop), np.arange(stop - start)
    else:
        chosen, order = np.unique(nodes, return_inverse=True)
    reached = inner = frontier = chosen
    for _ in range(hops):
        inner = reached
        if len(frontier) > graph.num_nodes // 2:
            return graph, nodes
        around = np.unique(graph.indices[_entries(graph.indptr, frontier)]).astype(np.int64)
        frontier = np.setdiff1d(around, reached, assume_unique=True)
        reached = np.union1d(reached, frontier)
    if len(reached) > graph.num_nodes // 2:
        return graph, nodes
    entries = _entries(graph.indptr, inner)
    counts = np.zeros(len(reached), dtype=np.int64)
    counts[np.searchsorted(reached, inner)] = graph.indptr[inner + 1] - graph.indptr[inner]
    part = Graph.from_csr(
        indptr=np.concatenate([[0], counts.cumsum()]),
        indices=np.searchsorted(reached, graph.indices[entries]).astype(np.int64),
        x=table_rows(graph.x, reached),
        edge_weight=None if graph.edge_weight is None else graph.edge_weight[entries],
        name=graph.name,
    )
    return part, np.searchsorted(reached, chosen)[order]


def _entries(indptr: IntArray, nodes: IntArray) -> IntArray:
    """Returns the places of all entries of the nodes' rows."""
    starts = np.asarray(indptr[nodes])
    counts = indptr[nodes + 1] - starts
    found: IntArray = np.repeat(starts - (counts.cumsum() - counts), counts)
    found += np.arange(len(found))
    return found


def table_rows(x: Any, rows: IntArray) -> Any:
    """Returns rows of features in the form that they have."""
    if isinstance(x, ScaledFeatures):
        scale = None if x.row_scale is None else x.row_scale[rows]
        return ScaledFeatures(x.values[rows], x.scale, scale)
    return x[rows]
