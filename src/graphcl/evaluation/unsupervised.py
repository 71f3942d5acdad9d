r"""Scores of embeddings that need no labels.

Alignment and uniformity are those of Wang and Isola (2020): the two properties that a contrastive
loss trades against each other, on the unit sphere.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from graphcl.arrays import Array
from graphcl.errors import GraphError
from graphcl.evaluation.nearest import unit_rows
from graphcl.seeding import derive

SAMPLE = 5_000  # rows of a sample, of which all pairs are compared


def alignment(h_1: Any, h_2: Any) -> float:
    r"""Returns how far apart the two views of a node are: :math:`\frac1N\sum_u\|h_u^1-h_u^2\|^2`.

    Rows are first scaled to length 1, so 0 is perfect and 2 is typical of unrelated rows. Both
    arrays are ``[N, dim]``.
    """
    first, second = unit_rows(h_1), unit_rows(h_2)
    if first.shape != second.shape or len(first) == 0:
        raise GraphError(f"alignment: views of shapes {first.shape} and {second.shape}")
    return float(((first - second) ** 2).sum(axis=1, dtype=np.float64).mean())


def uniformity(z: Any, *, seed: int = 0, sample: int = SAMPLE) -> float:
    r"""Returns how evenly embeddings are spread over the sphere.

    It is :math:`\log\,\mathrm{mean}_{u\neq v}\,e^{-2\|z_u-z_v\|^2}` over rows of length 1.
    Lower is more even. It is 0 if all rows coincide, and close to −4 if rows are spread evenly over
    a sphere of many dimensions.

    Args:
        z: embeddings ``[N, dim]``.
        seed: decides the sample.
        sample: of more rows than this, so many are drawn at random.
    """
    unit = unit_rows(_sampled(z, seed, sample)).astype(np.float64)
    n = len(unit)
    if n < 2:
        raise GraphError(f"uniformity: needs at least 2 embeddings; got {n}")
    lengths = (unit**2).sum(axis=1)
    square = np.maximum(lengths[:, None] + lengths[None, :] - 2 * unit @ unit.T, 0)
    np.fill_diagonal(square, np.inf)  # a row against itself does not count
    return float(np.log(np.exp(-2 * square).sum() / (n * (n - 1))))


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


@dataclass(frozen=True)
class Agreement:
    """How many of the graph's edges are also found among nearest embeddings.

    Attributes:
        share: fraction of a node's neighbours in the graph that are among its k nearest embeddings,
            averaged over the nodes with an edge. If a node has more than k, it is a fraction of k.
        chance: the same for neighbours drawn at random.
        k: number of nearest embeddings per node.
        nodes: number of nodes with an edge.
    """

    share: float
    chance: float
    k: int
    nodes: int


def neighbour_agreement(nearest: Any, indptr: Any, indices: Any) -> Agreement:
    """Compares nearest embeddings with the graph's edges.

    Args:
        nearest: the k nearest rows of every row, without itself, ``[N, k]``.
        indptr: CSR row pointers of the graph, ``[N + 1]``.
        indices: CSR column indices, sorted in each row.

    Raises:
        GraphError: the arrays do not fit each other, or the graph has no edge.
    """
    nearest, indptr, indices = np.asarray(nearest), np.asarray(indptr), np.asarray(indices)
    n, k = nearest.shape
    if len(indptr) != n + 1:
        raise GraphError(f"neighbour agreement: {n} embeddings for {len(indptr) - 1} nodes")
    degree = np.diff(indptr)
    if not degree.any() or k == 0:
        raise GraphError("neighbour agreement: the graph has no edge")
    # A pair (u, v) is coded as the number u · n + v, so that pairs can be searched.
    edges = np.repeat(np.arange(n, dtype=np.int64), degree) * n + indices  # sorted, as CSR is
    pairs = np.arange(n, dtype=np.int64)[:, None] * n + nearest
    place = np.minimum(np.searchsorted(edges, pairs), len(edges) - 1)
    hits = (edges[place] == pairs).sum(axis=1)
    linked = degree > 0
    reachable = np.minimum(degree[linked], k)
    expected = k * degree[linked] / (n - 1)  # hypergeometric mean
    return Agreement(
        share=float((hits[linked] / reachable).mean()),
        chance=float((expected / reachable).mean()),
        k=k,
        nodes=int(linked.sum()),
    )


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
