"""Identifies the graph of a training by a short digest, without reading all of the graph."""

import hashlib
from typing import Any

import numpy as np

from graphcl.graphs.graph import Graph
from graphcl.store.columns import ScaledFeatures

SAMPLED = 4096  # entries read from each array, so that a graph of any size takes milliseconds


def fingerprint(graphs: tuple[Graph, ...]) -> str:
    """Returns sixteen hex digits of the sizes and of evenly spaced entries of the graphs' arrays.

    Different graphs almost certainly have different fingerprints. A graph that differs only in
    entries that are not read has the same fingerprint.
    """
    digest = hashlib.sha256()
    for graph in graphs:
        sizes = (graph.num_nodes, len(graph.indices), graph.num_features)
        digest.update(repr(sizes).encode())
        digest.update(_sample(graph.indptr))
        digest.update(_sample(graph.indices))
        if graph.edge_weight is not None:
            digest.update(_sample(graph.edge_weight))
        if isinstance(graph.x, np.ndarray | ScaledFeatures):
            rows = max(1, SAMPLED // max(1, graph.num_features))
            digest.update(_sample(graph.x, rows))
        else:
            digest.update(_sample(graph.x.data))
            digest.update(_sample(graph.x.indices))
    return digest.hexdigest()[:16]


def _sample(array: Any, count: int = SAMPLED) -> bytes:
    """Returns the bytes of at most `count` evenly spaced rows."""
    if len(array) == 0:
        return b""
    places = np.unique(np.linspace(0, len(array) - 1, min(count, len(array))).astype(np.int64))
    return np.ascontiguousarray(array[places]).tobytes()
