r"""Computes features from the edges alone, for graphs without features.

A node u with degree :math:`d_u`, :math:`T_u` triangles and core number :math:`k_u` has the features

.. math::
    \log(1 + d_u), \quad
    \frac{1}{d_u} \sum_{v} \log(1 + d_v), \quad
    \frac{2 T_u}{d_u (d_u - 1)}, \quad
    \log(1 + k_u), \quad
    (P^2)_{uu}, \quad (P^3)_{uu},

that is, its degree, its neighbours' degrees, its clustering coefficient, its core number, and the
probabilities that a random walk returns after two and three steps. Each feature depends only on the
edges near u, so it is defined for unseen nodes and other graphs too. Nothing is random, and edge
weights are ignored. A node without edges has zeros.

Differs from the paper: all graphs of the paper have features.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

FEATURE_NAMES = (
    "log degree",
    "mean log degree of neighbours",
    "clustering coefficient",
    "log core number",
    "return probability, 2 steps",
    "return probability, 3 steps",
)
_ALIKE = 0.99  # the least correlation of a feature with itself, rounded
_ROWS = 1 << 16  # read at a time


def structural_features(
    indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.integer]
) -> npt.NDArray[np.float32]:
    """Returns the six features of `FEATURE_NAMES`, ``[num_nodes, 6]``.

    The CSR pattern is that of an undirected graph without self-loops, sorted in each row.
    """
    from graphcl.kernels.triangles import core_numbers, triangles  # compiled loops

    size = len(indptr) - 1
    degree = np.diff(indptr).astype(np.float64)
    inverse_degree = np.divide(1, degree, out=np.zeros(size), where=degree > 0)
    log_degree = np.log1p(degree)
    ones = np.ones(len(indices), dtype=np.int8)
    adjacency = scipy.sparse.csr_array((ones, indices, indptr), shape=(size, size))
    # Row sums over neighbours: of log degrees, and of 1 / d_v, since (P²)_uu = Σ_v 1 / (d_u d_v).
    around = adjacency @ np.stack([log_degree, inverse_degree], axis=1)
    pairs = degree * (degree - 1) / 2
    closed = triangles(indptr, indices, np.ones(size))
    columns = (
        log_degree,
        inverse_degree * around[:, 0],
        np.divide(closed, pairs, out=np.zeros(size), where=pairs > 0),
        np.log1p(core_numbers(indptr, indices)),
        inverse_degree * around[:, 1],
        2 * inverse_degree * triangles(indptr, indices, inverse_degree),
    )
    return np.stack(columns, axis=1).astype(np.float32)


def follow_edges(x: Any, before: Any, after: Any) -> Any:
    """Returns features that fit other edges: those that were computed from edges are so again.

    They are recognised by their values: the last columns of `x` are the features of the edges
    `before`, perhaps shifted, scaled or rounded as a store does. Otherwise `x` is returned.

    Args:
        x: features ``[num_nodes, width]``, or None.
        before: the CSR pattern of `x`, with ``indptr`` and ``indices``, in any direction.
        after: the pattern that is left.
    """
    number = len(FEATURE_NAMES)
    if x is None or scipy.sparse.issparse(x) or x.shape[1] < number:
        return x
    blocks = (x[start : start + _ROWS] for start in range(0, x.shape[0], _ROWS))
    old = np.concatenate([np.asarray(block, np.float32)[:, -number:] for block in blocks])
    indptr, indices = _both_directions(before)
    if _line(np.log1p(np.diff(indptr)), old[:, 0]) is None:  # the cheap one first
        return x
    own = structural_features(indptr, indices)
    lines = [_line(column, given) for column, given in zip(own.T, old.T, strict=True)]
    found = structural_features(*_both_directions(after))
    new = np.array(x, dtype=np.float32)
    for place, line in enumerate(lines):
        if line is None:
            return x
        new[:, place - number] = line[0] * found[:, place] + line[1]
    return new


def _both_directions(pattern: Any) -> tuple[Any, Any]:
    size = len(pattern.indptr) - 1
    ones = np.ones(len(pattern.indices), dtype=np.int32)
    found = scipy.sparse.csr_array((ones, pattern.indices, pattern.indptr), shape=(size, size))
    found = scipy.sparse.csr_array(found + found.T)
    found.sum_duplicates()
    return found.indptr.astype(np.int64), found.indices


def _line(column: Any, given: Any) -> tuple[float, float] | None:
    """Returns slope and offset if `given` is a linear function of a feature; else None."""
    column, given = np.asarray(column, np.float64), np.asarray(given, np.float64)
    if np.array_equal(np.asarray(column, np.float32), np.asarray(given, np.float32)):
        return 1.0, 0.0
    spread = (column.std(), given.std())
    if min(spread) == 0:
        return (0.0, float(given.mean())) if max(spread) == 0 else None
    slope = float(((column - column.mean()) * (given - given.mean())).mean() / spread[0] ** 2)
    if abs(slope) * spread[0] < _ALIKE * spread[1]:
        return None
    return slope, float(given.mean() - slope * column.mean())
