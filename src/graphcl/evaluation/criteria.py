"""Scores to choose by: validation nodes alone, or no labels at all."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from graphcl.errors import GraphError
from graphcl.evaluation.nearest import unit_rows
from graphcl.evaluation.probe import STRENGTHS, fit_logistic, redraw, standardiser
from graphcl.evaluation.unsupervised import sampled_rows

Array = npt.NDArray[Any]
SPLITS = 3
CLUSTERS, STARTS = 8, 3  # of k-means
SAMPLE = 10_000  # nodes that are clustered
LEAST_FRACTION = 0.02  # of nodes outside the largest cluster, for there to be clusters at all


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


def cluster_stability(z_1: Any, z_2: Any, *, clusters: int = CLUSTERS) -> float:
    """Returns how far the clusters of two sets of embeddings of the same nodes agree.

    Each is clustered by k-means on standardised rows of unit length, and the agreement is the
    adjusted Rand index: 1 where the clusters are the same, 0 where they agree as chance would, and
    0 where either has all but a few nodes in one cluster: a collapsed encoder is not a stable one.
    Of a large graph, `SAMPLE` nodes take part. The same embeddings give the same result, bit for
    bit.

    Args:
        z_1: embeddings, ``[num_nodes, dim]``.
        z_2: others of the same nodes, ``[num_nodes, dim]``.
        clusters: how many each is parted into, at most.
    """
    nodes = sampled_rows(len(z_1), 0, SAMPLE)
    with threadpool_limits(1):  # the order of sums, and so the last bits, would be the threads'
        parts = [
            _clusters(np.asarray(z)[nodes], clusters, seed) for seed, z in enumerate((z_1, z_2))
        ]
    if any(_is_one_cluster(labels) for labels in parts):
        return 0.0
    return float(adjusted_rand_score(*parts))


def _is_one_cluster(labels: Array) -> bool:
    return bool(np.bincount(labels).max() > (1 - LEAST_FRACTION) * len(labels))


def _clusters(z: Array, clusters: int, seed: int) -> Array:
    z = unit_rows(standardiser(z)(z))
    means = KMeans(min(clusters, len(z)), n_init=STARTS, max_iter=100, random_state=seed)
    with warnings.catch_warnings():
        # Fewer distinct rows than clusters, as of a collapsed encoder.
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels: Array = means.fit_predict(z)
    return labels
