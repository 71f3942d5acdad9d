"""What answers take: embeddings, in memory or in shards, or a model, a graph, and nodes by id."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError, suggestion
from graphcl.store.columns import Names

Array = npt.NDArray[Any]
MOST_COMPARED = 100_000  # ids that are searched for a suggestion
_BLOCK = 1 << 16  # ids that are looked at at a time


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
        check_same_build(source, graph.parts)
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


def rows_of(wanted: Iterable[Any], ids: Any, owner: str, error: type[Exception]) -> Array:
    """Returns the rows of nodes by id. An id counts as its text, so 7 and "7" are one.

    Of nodes with the same id, the first is meant. Ids are looked at in blocks: a dictionary holds
    those that are asked for alone.

    Raises:
        error: no node has the id; the message suggests a similar one.
    """
    asked = [str(_plain(one)) for one in wanted]
    place = _found(set(asked), ids)
    for one in asked:
        if one not in place:
            texts = _texts(ids[:MOST_COMPARED])
            near = suggestion(one, texts)
            hint = near or (f"; ids look like {texts[0]!r}" if texts else "")
            raise error(f"{owner}: no node has the id {one!r}{hint}")
    return np.array([place[one] for one in asked], dtype=np.int64)


def _found(asked: set[str], ids: Any) -> dict[str, int]:
    if isinstance(ids, Names) and len(asked) <= 8:  # a search in bytes, faster than a few decodings
        rows = {text: ids.find(text) for text in asked}
        return {text: row for text, row in rows.items() if row >= 0}
    place: dict[str, int] = {}
    for start in range(0, len(ids), _BLOCK):
        for row, text in enumerate(_texts(ids[start : start + _BLOCK]), start):
            if text in asked and text not in place:
                place[text] = row
        if len(place) == len(asked):
            break
    return place


def _texts(ids: Any) -> list[str]:
    return [str(one) for one in ids.tolist()]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
