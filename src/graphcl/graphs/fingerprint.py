"""Which graph a training is of, in a few digits, without reading all of it."""

import hashlib
from typing import Any

import numpy as np

from graphcl.graphs.graph import Graph
from graphcl.store.columns import ScaledFeatures

SAMPLED = 4096  # entries of each array: a graph of any size takes milliseconds


def fingerprint(graphs: tuple[Graph, ...]) -> str:
    """Returns sixteen hex digits of sizes and of evenly spread entries of structure and features.

    Another graph has others, all but surely; one that differs in a few entries that were not looked
    at has the same.
    """
    digest = hashlib.sha256()
    for graph in graphs:
        sizes = (graph.num_nodes, len(graph.indices), graph.num_features)
        digest.update(repr(sizes).encode())
        digest.update(_spread(graph.indptr))
        digest.update(_spread(graph.indices))
        if graph.edge_weight is not None:
            digest.update(_spread(graph.edge_weight))
        if isinstance(graph.x, np.ndarray | ScaledFeatures):
            rows = max(1, SAMPLED // max(1, graph.num_features))
            digest.update(_spread(graph.x, rows))
        else:
            digest.update(_spread(graph.x.data))
            digest.update(_spread(graph.x.indices))
    return digest.hexdigest()[:16]


def _spread(array: Any, count: int = SAMPLED) -> bytes:
    """Returns the bytes of `count` evenly spread rows."""
    if len(array) == 0:
        return b""
    places = np.unique(np.linspace(0, len(array) - 1, min(count, len(array))).astype(np.int64))
    return np.ascontiguousarray(array[places]).tobytes()
