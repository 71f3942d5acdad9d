"""The neighbourhood of some nodes of a graph in parts, whole: what their exact embeddings need."""

import numpy as np
import numpy.typing as npt

from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import NODE
from graphcl.graphs.schema import EDGES
from graphcl.partitioned.topology import PartsTopology

IntArray = npt.NDArray[np.int64]


def neighbourhood_in_parts(
    topology: PartsTopology, nodes: IntArray, hops: int
) -> tuple[Graph, IntArray]:
    """Returns the nodes within some hops of `nodes` as a graph, and the rows of `nodes` in it.

    It is what `graphcl.graphs.neighbourhood` returns of a whole graph, with features that are
    scaled as in training. All processes call it together, each for nodes of any parts or none.

    Args:
        topology: of a plain graph.
        nodes: ascending.
        hops: at least 1.
    """
    reached = frontier = nodes
    inner: list[IntArray] = []
    lists: list[IntArray] = []
    weights = []
    for _ in range(hops):
        lengths, found, weight = topology.neighbours(EDGES, frontier)
        inner.append(frontier)
        ends = np.cumsum(lengths)[:-1]
        lists += np.split(found, ends) if len(frontier) else []
        if weight is not None and len(frontier):
            weights += np.split(weight, ends)
        frontier = np.setdiff1d(found, reached)
        reached = np.union1d(reached, frontier)
    known = np.concatenate(inner)
    order = np.argsort(known)
    counts = np.zeros(len(reached), np.int64)
    counts[np.searchsorted(reached, known)] = [len(one) for one in lists]
    none = [np.empty(0, np.int64)]
    around = np.concatenate([lists[at] for at in order.tolist()] or none)
    weighted = [weights[at] for at in order.tolist()] if weights else None
    graph = Graph.from_csr(
        indptr=np.concatenate([[0], counts.cumsum()]),
        indices=np.searchsorted(reached, around).astype(np.int64),
        x=topology.rows[NODE].fetch(reached).rows(slice(None)).numpy(),
        edge_weight=None if weighted is None else np.concatenate(weighted),
        name=topology.prepared.part.parts.name,
    )
    return graph, np.searchsorted(reached, nodes)
