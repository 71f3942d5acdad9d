"""Scores of embeddings that need no labels."""

from typing import Any

import numpy as np

from graphcl.arrays import Array
from graphcl.errors import GraphError
from graphcl.seeding import derive

SAMPLE = 5_000  # rows of a sample, of which all pairs are compared


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
    if n < 2:
        raise GraphError(f"mean cosine: needs at least 2 embeddings; got {n}")
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
