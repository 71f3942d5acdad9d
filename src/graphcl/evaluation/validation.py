"""Scores to choose by: validation nodes alone, or no labels at all."""

from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from graphcl.errors import GraphError
from graphcl.evaluation.probe import STRENGTHS, fit_logistic, redraw, standardiser

Array = npt.NDArray[Any]
SPLITS = 3


def validation_accuracy(z: Any, y: Any, train: Any, *, splits: int = SPLITS) -> float:
    """Returns the probe's best validation accuracy, averaged over several splits.

    The first split is the one given. The others are drawn from the same nodes, as many training
    nodes of each class: one split of a few hundred nodes ranks settings by its own accidents.
    The draws are the same for every call.

    Args:
        z: embeddings of the training and validation nodes, ``[nodes, dim]``.
        y: their classes, ``[nodes]``; no other label is needed, so none can be read.
        train: which of them are training nodes, ``[nodes]`` booleans.
        splits: how many splits.

    Raises:
        GraphError: fewer than two classes to learn, or no validation node.
    """
    z, y, train = np.asarray(z), np.asarray(y), np.asarray(train, dtype=np.bool_)
    if len(np.unique(y[train])) < 2:
        raise GraphError("validation: the training nodes hold fewer than two classes")
    if train.all():
        raise GraphError("validation: there are no labelled validation nodes")
    z = standardiser(z)(z)
    random = np.random.default_rng(0)
    masks = [train, *(redraw(y, train, random) for _ in range(splits - 1))]
    with threadpool_limits(1):  # small products: threads cost more than they give
        return float(np.mean([_best(z, y, mask) for mask in masks]))


def _best(z: Array, y: Array, train: Array) -> float:
    best, classifier = 0.0, None
    for strength in STRENGTHS:
        # Beyond C = 1 the penalty is too weak for some 20 nodes of a class ever to choose it.
        if strength <= 1:
            classifier = fit_logistic(z[train], y[train], strength, classifier)
            best = max(best, float((classifier.predict(z[~train]) == y[~train]).mean()))
    return best


def link_auc(z: Any, links: Any, others: Any) -> float:
    r"""Returns the probability that a held-out link is closer than a pair that is no link.

    Closeness is the cosine of standardised embeddings, and the probability the area under the ROC
    curve, :math:`P(\cos(h_u, h_v) > \cos(h_a, h_b))`, ties counted half.

    Args:
        z: embeddings of a graph that lacks the links, ``[num_nodes, dim]``.
        links: held-out links, ``[2, n]``.
        others: pairs of nodes without a link, ``[2, m]``.
    """
    z = np.asarray(z)
    z = standardiser(z)(z)
    z = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)
    near, far = (np.einsum("nd,nd->n", z[pairs[0]], z[pairs[1]]) for pairs in (links, others))
    if not (len(near) and len(far)):
        raise GraphError("link_auc: needs at least one link and one other pair")
    order = np.sort(far)
    below = np.searchsorted(order, near, side="left")
    upto = np.searchsorted(order, near, side="right")
    return float(((below + upto) / 2).mean() / len(far))
