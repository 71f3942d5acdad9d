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

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.kernels.triangles import core_numbers, triangles

FEATURE_NAMES = (
    "log degree",
    "mean log degree of neighbours",
    "clustering coefficient",
    "log core number",
    "return probability, 2 steps",
    "return probability, 3 steps",
)


def structural_features(
    indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.integer]
) -> npt.NDArray[np.float32]:
    """Returns the six features of `FEATURE_NAMES`, ``[num_nodes, 6]``.

    The CSR pattern is that of an undirected graph without self-loops, sorted in each row.
    """
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
