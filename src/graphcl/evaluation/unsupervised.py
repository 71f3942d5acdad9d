"""Scores of embeddings that need no labels, and nearest neighbours by cosine similarity.

Neighbours are exact, or by an index: up to `EXACT_ROWS` rows, all pairs are compared in blocks.
Above, usearch's graph index (HNSW) is used: it finds nearly all of the true neighbours in a small
part of the time.
"""

from typing import Any

import numpy as np

from graphcl.arrays import Array, Floats, Integers
from graphcl.errors import demand, import_extra, require
from graphcl.seeding import derive

EXACT_ROWS = 20_000
BLOCK_PAIRS = 1 << 24  # similarities held at once, 64 MB
SAMPLE = 5_000  # rows of a sample, of which all pairs are compared


def unit_rows(z: Any) -> Floats:
    """Returns rows of length 1, float32; a row of zeros stays zero."""
    z = np.asarray(z, dtype=np.float32)
    length = np.linalg.norm(z, axis=1, keepdims=True)
    return np.asarray(z / np.where(length > 0, length, 1))


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
    found = build_index(unit, threads=1).search(unit, k + 1, threads=0)
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


def effective_rank(z: Any, *, seed: int = 0, sample: int = SAMPLE) -> float:
    r"""Returns how many directions embeddings use: :math:`e^{H(p)}`, their RankMe.

    H is the entropy, and p are the singular values divided by their sum (Garrido et al., 2023). It
    is 1 if all rows are multiples of one, and the number of columns if all directions are used
    alike. If every value is 0, it is 0.

    Args:
        z: embeddings ``[N, dim]``, finite.
        seed: decides the sample.
        sample: of more rows than this, so many are drawn at random.
    """
    rows = _sampled(z, seed, sample).astype(np.float64)
    largest = float(np.abs(rows).max(initial=0))
    if largest == 0:
        return 0.0
    rows /= largest  # or squares of large values would overflow
    products = rows.T @ rows if rows.shape[1] <= len(rows) else rows @ rows.T
    singular = np.sqrt(np.maximum(np.linalg.eigvalsh(products), 0))
    p = singular[singular > 0] / singular.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def mean_cosine(z: Any, *, seed: int = 0, sample: int = SAMPLE) -> float:
    """Returns the mean cosine between two different rows; it is 1 if all directions coincide.

    It is the mean over all pairs of the sample. A row of zeros has the cosine 0 with any other.

    Args:
        z: embeddings ``[N, dim]``, finite.
        seed: decides the sample.
        sample: of more rows than this, so many are drawn at random.
    """
    rows = _sampled(z, seed, sample).astype(np.float64)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = rows / np.where(length > 0, length, 1)
    n = len(unit)
    demand(n >= 2, f"mean cosine: needs at least 2 embeddings; got {n}")
    # The squared length of the sum has every pair twice, and every row with itself once.
    pairs = float((unit.sum(axis=0) ** 2).sum() - (unit**2).sum())
    return min(1.0, max(-1.0, pairs / (n * (n - 1))))


def by_size(assigned: Array) -> Array:
    """Returns groups numbered by their size, the largest first; −1, which is none, stays."""
    sizes = np.bincount(assigned[assigned >= 0])
    rank = np.append(np.argsort(np.argsort(-sizes, kind="stable")), -1)
    return np.asarray(rank[assigned])


def silhouette(z: Any, labels: Any, *, seed: int = 0, sample: int = SAMPLE) -> float:
    """Returns the mean silhouette by Euclidean distance, over at most `sample` rows."""
    from sklearn.metrics import silhouette_score

    z, labels = np.asarray(z), np.asarray(labels)
    rows = sampled_rows(len(z), seed, sample)
    return float(silhouette_score(z[rows], labels[rows]))


def sampled_rows(n: int, seed: int, sample: int) -> Array:
    """Returns all row numbers, or `sample` of them without repetition, ascending."""
    if n <= sample:
        return np.arange(n)
    random = np.random.default_rng(seed if seed >= 0 else derive(seed, "sample"))
    return np.sort(random.choice(n, sample, replace=False))


def _sampled(z: Any, seed: int, sample: int) -> Array:
    rows = sampled_rows(len(z), seed, sample)
    return np.asarray(z[rows] if hasattr(z, "dtype") else np.asarray(z)[rows])
