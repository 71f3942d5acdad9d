"""Similar nodes: those whose embeddings have the highest cosine with a node's."""

import hashlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphcl.answers.inputs import chosen_rows, embeddings_of, graph_of, ids_of
from graphcl.arrays import Array, Floats
from graphcl.errors import RunError, require
from graphcl.evaluation.unsupervised import build_index, empty_index, unit_rows
from graphcl.files.atomic import whole_file, write_whole
from graphcl.files.records import Answer
from graphcl.files.text import read_text
from graphcl.files.user import seal, user_key

_BLOCK = 1 << 15  # rows that are compared at a time
_PAIRS = 1 << 24  # cosines that are held at a time, 64 MB


@dataclass(frozen=True, eq=False, repr=False)
class Neighbours(Answer):
    """The most similar nodes of some nodes.

    Attributes:
        rows: numbers of the nodes that were asked for, ``[n]``.
        ids: of all nodes; text of shards and stores stays encoded until it is asked for.
        nearest: numbers of the most similar nodes, most similar first, ``[n, k]``.
        cosines: with them, ``[n, k]``.
    """

    rows: Array
    ids: Any
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


def neighbors(
    source: Any, nodes: Any = None, k: int = 10, *, rows: Any = None, graph: Any = None
) -> Neighbours:
    """Returns the nodes whose embeddings are most similar to those of some nodes, by cosine.

    All nodes are compared, block by block, so the answer is exact. `graphcl neighbors` searches an
    index instead, which a run keeps.

    Args:
        source: embeddings ``[num_nodes, dim]``; a fitted model, which then embeds `graph`; or the
            path of a folder of shards, which `graphcl embed RUN PARTS` wrote.
        nodes: an id or several; with neither these nor `rows`, all. Without a graph, ids are those
            in `.parquet` shards, else row numbers.
        k: how many neighbours of each; at most all other nodes.
        rows: instead of `nodes`: row numbers, a range or a mask.
        graph: gives ids; needed if `source` is a model. Of shards, the path of the store in parts.

    Raises:
        GraphError: an id is unknown.
        RunError: a shard is missing, torn, or not of this set.
    """
    require(k >= 1, "neighbors", "k", "at least 1", k)
    graph = graph_of(graph)
    z = embeddings_of(source, graph, "neighbors")
    ids = ids_of(graph, z)
    return find_neighbours(z, ids, chosen_rows(ids, nodes, rows, "neighbors"), k)


def find_neighbours(z: Any, ids: Any, rows: Array, k: int, index: Any = None) -> Neighbours:
    """Returns the nearest nodes of some rows: by an index over `z`, or by comparing all."""
    k = min(k, len(z) - 1)
    if index is None:
        return Neighbours(rows, ids, *_compare_all(z, rows, k))
    nearest, cosines = np.zeros((len(rows), k), np.int64), np.zeros((len(rows), k), np.float32)
    for place, row in enumerate(rows[:, None]):
        near, similar = nearest_without(z, unit_rows(z[row])[0], k, row, index)
        if len(near) < k:  # an index is a graph, and may not reach all nodes
            (near,), (similar,) = _compare_all(z, row, k)
        nearest[place], cosines[place] = near, similar
    return Neighbours(rows, ids, nearest, cosines)


def nearest_without(
    rows: Any, vector: Array, k: int, without: Array, index: Any = None
) -> tuple[Array, Array]:
    """Returns the k rows most similar to a vector of length 1, apart from some, and their cosines.

    `rows` have length 1, unless there is an index over them.
    """
    if index is None:
        cosines = rows @ vector
        cosines[without] = -np.inf
        most = min(k, int(np.isfinite(cosines).sum()))
        best = np.argpartition(-cosines, most - 1)[:most] if most else np.zeros(0, np.int64)
        scores = cosines[best]
    else:
        keys = index.search(vector, min(len(rows), k + len(without))).keys.astype(np.int64)
        best = keys[~np.isin(keys, without)][:k]
        scores = unit_rows(rows[best]) @ vector
    order = np.lexsort((best, -scores))
    return best[order], scores[order]


def _compare_all(z: Any, rows: Array, k: int) -> tuple[Array, Array]:
    """Reads all embeddings once and keeps the k best of each row; among equals, the first."""
    own = unit_rows(z[rows])
    keys, near = np.zeros((len(rows), 0), np.int64), np.zeros((len(rows), 0), np.float32)
    height = max(1, min(_BLOCK, _PAIRS // max(1, len(rows))))
    for start in range(0, len(z), height):
        block = unit_rows(z[start : start + height])
        similar = own @ block.T
        inside = np.flatnonzero((rows >= start) & (rows < start + len(block)))
        similar[inside, rows[inside] - start] = -np.inf
        best = np.argsort(-similar, axis=1, kind="stable")[:, :k]
        keys = np.concatenate([keys, best + start], axis=1)
        near = np.concatenate([near, np.take_along_axis(similar, best, axis=1)], axis=1)
        kept = np.argsort(-near, axis=1, kind="stable")[:, :k]
        keys, near = np.take_along_axis(keys, kept, axis=1), np.take_along_axis(near, kept, axis=1)
    return keys, near


INDEX, ABOUT = "neighbors.usearch", "neighbors.json"


def stored_index(run: Path, z: Floats) -> tuple[Any, str]:
    """Returns an index over the rows of `z`, and why it was built (empty if it was read).

    If the run cannot be written to, the index is kept in memory only.
    """
    digest = hashlib.blake2b(np.ascontiguousarray(z).data, digest_size=16).hexdigest()
    about = {"embeddings": digest, "rows": len(z), "dim": int(z.shape[1])}
    key = user_key()
    index, why = _read(run, about, key)
    if index is not None:
        return index, ""
    index = build_index(unit_rows(z))
    try:
        with whole_file(run / INDEX) as staging:
            index.save(str(staging))
            about["seal"] = seal(staging, key)
            # A crash before the next write must not leave the old description with the new index.
            (run / ABOUT).unlink(missing_ok=True)
        write_whole(run / ABOUT, json.dumps(about) + "\n")
    except (OSError, RuntimeError):
        why = f"{why}; it could not be stored in {run}"
    return index, why


def _read(run: Path, about: dict[str, Any], key: bytes) -> tuple[Any, str]:
    try:
        known = json.loads(read_text(run / ABOUT, RunError))
    except (OSError, ValueError, RecursionError, RunError):
        return None, "none was stored"
    if not isinstance(known, dict) or {**known, "seal": None} != {**about, "seal": None}:
        return None, "the embeddings have changed"
    index = empty_index(about["dim"])
    try:
        if not secrets.compare_digest(str(known.get("seal")), seal(run / INDEX, key)):
            return None, "the stored one is damaged, or another user built it"
        index.load(str(run / INDEX))
    except (OSError, RuntimeError, ValueError):
        return None, "the stored one is damaged"
    return (index, "") if len(index) == about["rows"] else (None, "the stored one is damaged")
