"""What answers take: embeddings or a model, a graph, and nodes by their ids or numbers."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError, suggestion

Array = npt.NDArray[Any]
MOST_COMPARED = 100_000  # ids that are searched for a suggestion


def embeddings_of(source: Any, graph: Any, owner: str) -> Array:
    """Returns embeddings ``[nodes, dim]``, from an array or a fitted model and its graph.

    Raises:
        GraphError: a model without a graph, or embeddings that do not fit the graph.
    """
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


def ids_of(graph: Any, count: int) -> Array:
    """Returns the ids of a graph's nodes; their numbers if it has none, or there is no graph."""
    if graph is None or graph.node_ids is None:
        return np.arange(count)
    ids: Array = graph.node_ids[:]
    return ids


def rows_of(wanted: Iterable[Any], ids: Array, owner: str, error: type[Exception]) -> Array:
    """Returns the rows of nodes by id. An id counts as its text, so 7 and "7" are one.

    Raises:
        error: no node has the id; the message suggests a similar one.
    """
    asked = [str(_plain(one)) for one in wanted]
    if len(asked) <= 3:  # a dictionary of all ids takes longer than a search or two
        texts = [str(one) for one in ids.tolist()]
        place = {one: texts.index(one) for one in asked if one in texts}
    else:
        texts = [str(one) for one in ids.tolist()]
        place = {text: row for row, text in reversed(list(enumerate(texts)))}
    for one in asked:
        if one not in place:
            near = suggestion(one, texts[:MOST_COMPARED])
            hint = near or (f"; ids look like {texts[0]!r}" if texts else "")
            raise error(f"{owner}: no node has the id {one!r}{hint}")
    return np.array([place[one] for one in asked], dtype=np.int64)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
