"""Agreement between embeddings of the same nodes: of two trials, or of a graph and its versions.

Nothing here needs labels. Rows of all arrays are the same nodes in the same order.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError
from graphcl.evaluation.nearest import nearest

NEIGHBOURS = 10

Array = npt.NDArray[Any]


def linear_cka(z_1: Any, z_2: Any) -> float:
    r"""Returns the linear centred kernel alignment of two sets of embeddings, from 0 to 1.

    It is :math:`\|Z_1^\top Z_2\|_F^2 / (\|Z_1^\top Z_1\|_F \|Z_2^\top Z_2\|_F)` for centred columns
    (Kornblith et al., 2019). It is 1 if the two differ by a rotation and a factor alone, and 0 if
    one of them is constant. The widths may differ.
    """
    first, second = (_centred(z) for z in _alike("linear CKA", (z_1, z_2)))
    sizes = float(np.linalg.norm(first.T @ first) * np.linalg.norm(second.T @ second))
    return float(np.linalg.norm(first.T @ second) ** 2 / sizes) if sizes > 0 else 0.0


def shared_neighbours(z_1: Any, z_2: Any, k: int = NEIGHBOURS) -> float:
    """Returns which share of a node's `k` nearest embeddings by cosine are the same in both."""
    first, second = (nearest(z, k)[0] for z in _alike("shared neighbours", (z_1, z_2)))
    return overlap(first, second)


def overlap(first: Array, second: Array) -> float:
    """Returns which share of the numbers in each row, ``[N, k]``, are in the same row of both."""
    same = (first[:, :, None] == second[:, None, :]).any(axis=2)
    return float(same.mean()) if same.size else 0.0


def consensus(each: Sequence[Any], agree: Callable[[Any, Any], float] | None = None) -> list[float]:
    """Returns how well each of several sets of embeddings agrees with the others, on the mean.

    `agree` compares two of them, and is symmetric; None takes the share of neighbours that they
    have in common. A single one has nobody to agree with: 0.
    """
    if agree is None:
        each = [nearest(z, NEIGHBOURS)[0] for z in _alike("consensus", each)]
        agree = overlap
    count = len(each)
    found = np.zeros((count, count))
    for i in range(count):
        for j in range(i):
            found[i, j] = found[j, i] = agree(each[i], each[j])
    return [float(row.sum() / max(1, count - 1)) for row in found]


def lidar(views: Any, *, delta: float = 1e-4) -> float:
    r"""Returns how many directions tell nodes apart beyond what views of one node differ by.

    It is :math:`e^{H(p)}`, where p are the eigenvalues, divided by their sum, of
    :math:`\Sigma_w^{-1/2} \Sigma_b \Sigma_w^{-1/2}` (LiDAR, Thilak et al., 2024).
    :math:`\Sigma_b` is the covariance of the nodes' means over views, :math:`\Sigma_w` that of
    views around their node's mean, plus `delta` times the mean variance on its diagonal.

    Args:
        views: embeddings ``[views, N, dim]``, of two views or more.
        delta: keeps the inverse root finite.
    """
    views = np.asarray(views, np.float64)
    if views.ndim != 3 or len(views) < 2 or views.shape[1] < 2:
        raise GraphError(f"LiDAR: needs two views of two nodes; got the shape {views.shape}")
    views = views / max(float(np.abs(views).max(initial=0)), np.finfo(np.float64).tiny)
    means = views.mean(axis=0)
    around = (views - means).reshape(-1, views.shape[2])
    centred = means - means.mean(axis=0)
    between = centred.T @ centred / (len(means) - 1)
    within = around.T @ around / (len(means) * (len(views) - 1))
    size = float(np.trace(within) + np.trace(between)) / len(within)
    if size == 0:
        return 0.0
    values, vectors = np.linalg.eigh(within)
    root = vectors / np.sqrt(np.maximum(values, 0) + delta * size)
    found = np.maximum(np.linalg.eigvalsh(root.T @ between @ root), 0)
    if found.sum() == 0:
        return 0.0
    p = found[found > 0] / found.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def _centred(z: Array) -> Array:
    z = np.asarray(z, np.float64)
    z = z / max(float(np.abs(z).max(initial=0)), np.finfo(np.float64).tiny)
    centred: Array = z - z.mean(axis=0)
    return centred


def _alike(who: str, each: Sequence[Any]) -> list[Array]:
    arrays = [np.asarray(z) for z in each]
    if any(z.ndim != 2 or len(z) != len(arrays[0]) for z in arrays) or len(arrays[0]) < 2:
        raise GraphError(f"{who}: embeddings of shapes {', '.join(str(z.shape) for z in arrays)}")
    return arrays
