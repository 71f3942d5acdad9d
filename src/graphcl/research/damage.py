"""Damages graphs, to test robustness: missing links, spurious links, missing features."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.graphs.graph import Graph
from graphcl.store.columns import ScaledFeatures

BLOCK_ROWS = 1 << 14
Array = npt.NDArray[Any]


def missing_links(graph: Graph, rate: float, random: np.random.Generator) -> Graph:
    """Returns the graph without each undirected edge with probability `rate`."""
    edges, weight = _edges(graph)
    kept = random.random(edges.shape[1]) >= rate
    return _relinked(graph, edges[:, kept], None if weight is None else weight[kept])


def spurious_links(graph: Graph, rate: float, random: np.random.Generator) -> Graph:
    """Returns the graph with ``rate * num_edges`` links added between random pairs of nodes.

    A drawn pair that is a self-loop or an existing link adds nothing; in sparse graphs such pairs
    are rare. In a weighted graph, a new link has the mean weight.
    """
    edges, weight = _edges(graph)
    count = round(rate * graph.num_edges)
    added = random.integers(0, graph.num_nodes, (2, count))
    new = np.stack([added.min(axis=0), added.max(axis=0)])
    both = np.concatenate([edges, new], axis=1)
    # `unique` keeps the first of equal pairs, so an existing link keeps its weight.
    keys, first = np.unique(both[0] * graph.num_nodes + both[1], return_index=True)
    first = first[keys % graph.num_nodes != keys // graph.num_nodes]
    if weight is not None:
        weight = np.append(weight, np.full(count, weight.mean() if len(weight) else 1))[first]
    return _relinked(graph, both[:, first], weight)


def missing_features(graph: Graph, rate: float, random: np.random.Generator) -> Graph:
    """Returns the graph with each feature of each node set to zero with probability `rate`."""

    def damaged(values: Any) -> Any:
        kept = np.empty_like(values)
        for start in range(0, len(values), BLOCK_ROWS):  # all draws at once may not fit in memory
            rows = values[start : start + BLOCK_ROWS]
            kept[start : start + BLOCK_ROWS] = rows * (random.random(rows.shape) >= rate)
        return kept

    x: Any = graph.x
    if isinstance(x, np.ndarray):
        x = damaged(x)
    elif isinstance(x, ScaledFeatures):
        x = replace(x, values=damaged(x.values))
    else:
        x = x.copy()
        x.data = damaged(x.data)
        x.eliminate_zeros()  # sparse features of a graph never store zeros
    return graph.replace(x=x, store=None)


def _edges(graph: Graph) -> tuple[Array, Array | None]:
    both = graph.edge_index()
    once = both[0] < both[1]
    return both[:, once], None if graph.edge_weight is None else graph.edge_weight[once]


def _relinked(graph: Graph, edges: Array, weight: Array | None) -> Graph:
    bare = np.zeros((graph.num_nodes, 1), dtype=np.float32)
    linked = Graph.from_edge_index(edges, bare, edge_weight=weight)
    structure = {key: getattr(linked, key) for key in ("indptr", "indices", "edge_weight")}
    # Features, labels and masks were checked when the graph was built.
    return graph.replace(**structure, store=None)
