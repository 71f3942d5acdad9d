"""What answers take: embeddings, in memory or in shards, or a model, a graph, and nodes by id."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError

Array = npt.NDArray[Any]


def graph_of(graph: Any) -> Any:
    """Returns a graph; of the path of a store in parts, its nodes alone, without edges.

    Raises:
        StoreError: there is no store in parts, or it is damaged.
    """
    if not isinstance(graph, str | Path):
        return graph
    from graphcl.partitioned.nodes import read_parts_nodes

    return read_parts_nodes(Path(graph))


def embeddings_of(source: Any, graph: Any, owner: str) -> Any:
    """Returns embeddings ``[nodes, dim]``, from an array, shards, or a fitted model and its graph.

    Those of shards, given by the path of their folder, stay on disk.

    Raises:
        GraphError: a model without a graph, or embeddings that do not fit the graph.
        RunError: shards that are not whole, or not of the graph's build.
    """
    if isinstance(source, str | Path):
        from graphcl.partitioned.embeddings import open_shards

        source = open_shards(Path(source))
    if hasattr(source, "shards"):
        return _sharded(source, graph, owner)
    if hasattr(source, "transform") and not hasattr(source, "to_numpy"):  # no data frame
        if graph is None:
            raise GraphError(f"{owner}: a model needs the graph to embed; pass graph=")
        source = source.transform(graph)
    if hasattr(source, "to_numpy"):
        source = source.to_numpy()
    if isinstance(source, list) and source and np.ndim(source[0]) == 2:  # of several graphs
        source = np.concatenate(source)
    z = np.asarray(source)
    if z.ndim != 2 or z.shape[1] == 0 or z.dtype.kind not in "biuf":
        raise GraphError(
            f"{owner}: embeddings must be numbers [nodes, dim]; got {z.dtype} {z.shape}"
        )
    if graph is not None and graph.num_nodes != len(z):
        raise GraphError(f"{owner}: {len(z)} embeddings for a graph of {graph.num_nodes} nodes")
    return z


def _sharded(source: Any, graph: Any, owner: str) -> Any:
    from graphcl.partitioned.nodes import PartsNodes, check_same_build

    if isinstance(graph, PartsNodes):
        check_same_build(source, graph)
    elif graph is not None:  # rows of shards are in the numbering of the parts
        raise GraphError(f"{owner}: with shards, graph must be the path of the store in parts")
    return source


def ids_of(graph: Any, z: Any) -> Any:
    """Returns the ids of a graph's nodes, or those in shards; without either, their numbers."""
    ids = None
    if graph is not None:
        ids = graph.node_ids
    elif hasattr(z, "shards"):
        ids = z.node_ids()
    if ids is None:
        return np.arange(len(z))
    return ids if hasattr(z, "shards") else ids[:]
