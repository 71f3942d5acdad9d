"""What embeddings tell of a graph: its features, and its links; no label is needed.

A target is learned by ridge regression from the embeddings of some nodes, and predicted for the
others. Labels are targets of that kind which nobody has yet: embeddings from which many different
things can be predicted from few examples are likely to predict them too.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError
from graphcl.evaluation.nearest import unit_rows
from graphcl.evaluation.splits import mean_auc

STRENGTHS = tuple(10.0**power for power in range(-3, 5))
COMPONENTS = 32
FEW = 0.1  # share of the nodes that is learned from
DRAWS = 3
BLIND = 1e-6  # of the largest singular value: what is smaller is rounding

Array = npt.NDArray[Any]


def principal_targets(x: Any, count: int = COMPONENTS) -> Array:
    """Returns the first principal components of a table, each with variance 1, ``[N, count]``.

    Columns are first standardised; fewer components are returned if the table has fewer. A table
    without any variance gives none.
    """
    x = np.asarray(x, np.float64)
    deviation = x.std(axis=0)
    x = (x - x.mean(axis=0))[:, deviation > 0] / deviation[deviation > 0]
    if x.shape[1] == 0 or len(x) < 2:
        return np.empty((len(x), 0))
    products = x @ x.T if len(x) <= x.shape[1] else x.T @ x
    values, vectors = np.linalg.eigh(products)
    kept = np.argsort(values)[::-1][:count]
    kept = kept[values[kept] > BLIND * values.max()]
    scores = vectors[:, kept] if len(x) <= x.shape[1] else x @ vectors[:, kept]
    found: Array = (scores - scores.mean(axis=0)) / scores.std(axis=0)
    return found


def few_shot_recovery(z: Any, targets: Any, *, seed: int = 0) -> float:
    r"""Returns how well `targets` are predicted from few nodes' embeddings: the mean :math:`R^2`.

    A tenth of the nodes is drawn, a ridge regression fitted to it, and its :math:`R^2` measured on
    the others; a column worse than its mean counts 0. The penalty is the best of `STRENGTHS` by
    leave-one-out error on the tenth. The mean is over columns and `DRAWS` draws.

    Args:
        z: embeddings ``[N, dim]``.
        targets: what to predict, ``[N, columns]``.
        seed: decides the draws.
    """
    z, targets = np.asarray(z, np.float64), np.asarray(targets, np.float64)
    if z.ndim != 2 or targets.ndim != 2 or len(z) != len(targets):
        raise GraphError(f"recovery: embeddings {z.shape} for targets {targets.shape}")
    if targets.shape[1] == 0:
        return 0.0
    random = np.random.default_rng(seed)
    count = min(len(z) - 1, max(10, round(FEW * len(z))))
    scores = []
    for _ in range(DRAWS):
        order = random.permutation(len(z))
        few, rest = order[:count], order[count:]
        found = _ridge(z[few], targets[few], z[rest])
        error = ((targets[rest] - found) ** 2).sum(axis=0)
        total = ((targets[rest] - targets[rest].mean(axis=0)) ** 2).sum(axis=0)
        kept = total > 0
        scores.append(np.maximum(0, 1 - error[kept] / total[kept]).mean() if kept.any() else 0.0)
    return float(np.mean(scores))


def _ridge(z: Array, y: Array, new: Array) -> Array:
    """Returns predictions for new rows; columns of `z` are standardised by its own rows."""
    deviation = z.std(axis=0)
    scale = np.where(deviation > BLIND * max(float(deviation.max(initial=0)), BLIND), deviation, 1)
    mean, middle = z.mean(axis=0), y.mean(axis=0)
    z, new, y = (z - mean) / scale, (new - mean) / scale, y - middle
    left, singular, right = np.linalg.svd(z, full_matrices=False)
    inner = left.T @ y
    best, chosen = np.inf, STRENGTHS[-1]
    for strength in STRENGTHS:
        shrunk = singular**2 / (singular**2 + strength)
        leverage = (left**2 * shrunk).sum(axis=1) + 1 / len(z)
        left_out = (y - left @ (shrunk[:, None] * inner)) / np.maximum(1 - leverage, BLIND)[:, None]
        error = float((left_out**2).sum())
        if error < best:
            best, chosen = error, strength
    weights = right.T @ ((singular / (singular**2 + chosen))[:, None] * inner)
    predicted: Array = new @ weights + middle
    return predicted


def link_recovery(z: Any, links: Any, *, known: Any, seed: int = 0) -> float:
    """Returns how well embeddings tell links from other pairs: the ROC-AUC of the cosine.

    Args:
        z: embeddings ``[N, dim]`` of a graph that lacks `links`.
        links: pairs of rows, ``[2, links]``.
        known: all pairs that are linked, those of `links` among them, ``[2, pairs]``: none of these
            is drawn for the other pairs, of which there are as many as links.
        seed: decides the other pairs.

    Returns:
        0.5 if there are no links, which is chance.
    """
    unit, links = unit_rows(z), np.asarray(links)
    n, count = len(unit), links.shape[1]
    if count == 0 or n < 3:
        return 0.5
    random = np.random.default_rng(seed)
    drawn = random.integers(0, n, (2, 4 * count + 16))
    low, high = drawn.min(axis=0), drawn.max(axis=0)
    known = np.asarray(known)
    taken = np.isin(low * n + high, known.min(axis=0) * n + known.max(axis=0)) | (low == high)
    others = np.stack([low, high])[:, ~taken][:, :count]
    if others.shape[1] == 0:
        return 0.5
    pairs = np.concatenate([links, others], axis=1)
    cosine = (unit[pairs[0]] * unit[pairs[1]]).sum(axis=1)
    linked = np.arange(len(cosine)) < count
    return mean_auc(cosine[:, None], linked[:, None].astype(np.int64))
