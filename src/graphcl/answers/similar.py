"""Similar nodes: those whose embeddings have the highest cosine with a node's."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.answers.inputs import embeddings_of, ids_of, rows_of
from graphcl.errors import GraphError, require
from graphcl.evaluation.nearest import unit_rows

Array = npt.NDArray[Any]
_BLOCK = 1 << 15  # rows that are compared at a time


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The most similar nodes of some nodes.

    Attributes:
        rows: numbers of the nodes that were asked for, ``[n]``.
        ids: of all nodes.
        nearest: numbers of the most similar nodes, most similar first, ``[n, k]``.
        cosines: with them, ``[n, k]``.
    """

    rows: Array
    ids: Array
    nearest: Array
    cosines: Array

    def __len__(self) -> int:
        return len(self.rows)

    def columns(self) -> dict[str, Any]:
        """Returns the table that `graphcl neighbors` writes: one row per pair."""
        return {
            "id": self.ids[np.repeat(self.rows, self.nearest.shape[1])],
            "neighbor": self.ids[self.nearest.ravel()],
            "cosine": self.cosines.ravel(),
        }


def neighbors(source: Any, nodes: Any, k: int = 10, *, graph: Any = None) -> Neighbours:
    """Returns the nodes whose embeddings are most similar to those of some nodes, by cosine.

    All nodes are compared, so the answer is exact. `graphcl neighbors` searches an index instead,
    which a run keeps.

    Args:
        source: embeddings ``[num_nodes, dim]``, or a fitted model, which then embeds `graph`.
        nodes: an id or several. Without a graph, ids are row numbers.
        k: how many neighbours of each; at most all other nodes.
        graph: gives ids; needed if `source` is a model.

    Raises:
        GraphError: an id is unknown.
    """
    require(k >= 1, "neighbors", "k", "at least 1", k)
    z = embeddings_of(source, graph, "neighbors")
    ids = ids_of(graph, len(z))
    single = isinstance(nodes, str) or np.ndim(nodes) == 0
    rows = rows_of([nodes] if single else nodes, ids, "neighbors", GraphError)
    return find_neighbours(z, ids, rows, k)


def find_neighbours(z: Array, ids: Array, rows: Array, k: int, index: Any = None) -> Neighbours:
    """Returns the nearest nodes of some rows: by an index over `z`, or by comparing all."""
    k = min(k, len(z) - 1)
    nearest, cosines = np.zeros((len(rows), k), np.int64), np.zeros((len(rows), k), np.float32)
    for place, row in enumerate(rows.tolist()):
        if index is None:
            keys, near = _compare_all(z, row, k)
        else:
            found = index.search(np.asarray(z[row]), k + 1)
            keys, near = found.keys.astype(np.int64), 1 - found.distances.astype(np.float32)
            others = keys != row  # among duplicates, a row may not find itself
            keys, near = keys[others][:k], near[others][:k]
            if len(keys) < k:  # an index is a graph, and may not reach all nodes
                keys, near = _compare_all(z, row, k)
        nearest[place], cosines[place] = keys, near
    return Neighbours(rows, ids, nearest, cosines)


def _compare_all(z: Array, row: int, k: int) -> tuple[Array, Array]:
    own = unit_rows(z[row : row + 1])[0]
    blocks = [unit_rows(z[start : start + _BLOCK]) @ own for start in range(0, len(z), _BLOCK)]
    similar = np.concatenate(blocks)
    similar[row] = -np.inf
    order = np.argsort(-similar, kind="stable")[:k]
    return order, similar[order]
