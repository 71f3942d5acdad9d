"""Nearest neighbours among embeddings, by cosine similarity: exact, or by an index.

Up to `EXACT_ROWS` rows, all pairs are compared in blocks. Above, usearch's graph index (HNSW) is
used: it finds nearly all of the true neighbours in a small part of the time.
"""

from typing import Any

import numpy as np

from graphcl.arrays import Floats, Integers
from graphcl.errors import import_extra, require

EXACT_ROWS = 20_000
BLOCK_PAIRS = 1 << 24  # similarities held at once, 64 MB


def unit_rows(z: Any) -> Floats:
    """Returns rows of length 1, float32; a row of zeros stays zero."""
    z = np.asarray(z, dtype=np.float32)
    length = np.linalg.norm(z, axis=1, keepdims=True)
    unit: Floats = z / np.where(length > 0, length, 1)
    return unit


def nearest(z: Any, k: int, *, exact_rows: int = EXACT_ROWS) -> tuple[Integers, Floats]:
    """Returns the `k` nearest rows of every row, without itself, and their cosines.

    The same input gives the same result, because one thread builds the index.

    Args:
        z: embeddings ``[N, dim]``.
        k: number of neighbours; at most N − 1 are returned.
        exact_rows: up to this many rows, all pairs are compared.

    Returns:
        Row numbers and cosine similarities, each ``[N, min(k, N - 1)]``, most similar first.
    """
    require(k >= 1, "nearest", "k", "at least 1", k)
    unit = unit_rows(z)
    k = min(k, len(unit) - 1)
    if k == 0:
        return np.empty((len(unit), 0), np.int64), np.empty((len(unit), 0), np.float32)
    if len(unit) <= exact_rows:
        return _nearest_exact(unit, k)
    index = build_index(unit, threads=1)
    found = index.search(unit, k + 1, threads=0)
    return drop_self(found.keys.astype(np.int64), 1 - found.distances.astype(np.float32))


def build_index(z: Floats, *, threads: int = 0) -> Any:
    """Returns a usearch index over the rows of `z`, keyed by row number.

    Args:
        z: embeddings ``[N, dim]``; the index keeps them in half precision.
        threads: 1 gives the same index every time. 0 uses all cores; their race then decides the
            order of insertion, and so now and then a neighbour.
    """
    index = empty_index(z.shape[1])
    index.add(np.arange(len(z)), z, threads=threads)
    return index


def empty_index(dim: int) -> Any:
    """Returns an empty usearch index for cosines, to be filled or restored from a file."""
    usearch = import_extra("usearch.index", feature="searching neighbours", extra="neighbors")
    return usearch.Index(ndim=dim, metric="cos", dtype="f16")


def drop_self(keys: Integers, cosines: Floats) -> tuple[Integers, Floats]:
    """Returns ``[N, k]`` from ``[N, k + 1]``: each row without itself, or else without its last."""
    own = keys == np.arange(len(keys))[:, None]
    own[~own.any(axis=1), -1] = True  # among duplicates, a row may not find itself
    keep = ~own
    shape = (len(keys), keys.shape[1] - 1)
    return keys[keep].reshape(shape), cosines[keep].reshape(shape)


def _nearest_exact(unit: Floats, k: int) -> tuple[Integers, Floats]:
    import torch  # here, because searching an index needs none

    rows = torch.from_numpy(unit)
    numbers, cosines = [], []
    block = max(1, BLOCK_PAIRS // len(unit))
    for start in range(0, len(unit), block):
        similar = rows[start : start + block] @ rows.T
        own = torch.arange(len(similar))
        similar[own, start + own] = -torch.inf
        top = similar.topk(k, dim=1)
        numbers.append(top.indices.numpy())
        cosines.append(top.values.numpy())
    return np.concatenate(numbers), np.concatenate(cosines)
