"""Scores for choosing settings: on validation nodes, or without labels."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from graphcl.errors import GraphError
from graphcl.evaluation.multilabel import STEPS, held_out_scores
from graphcl.evaluation.nearest import unit_rows
from graphcl.evaluation.probe import (
    STRENGTHS,
    check_embeddings,
    fit_logistic,
    node_split,
    redraw,
    standardiser,
)
from graphcl.evaluation.splits import LABEL_AUC, ROC_AUC, mean_auc, metric_of
from graphcl.evaluation.unsupervised import sampled_rows
from graphcl.graphs.collection import Labelled

Array = npt.NDArray[Any]
SPLITS = 3
CLUSTERS, STARTS = 8, 3  # of k-means; clusters at most
SAMPLE = 10_000  # at most so many nodes are clustered
LEAST_FRACTION = 0.02  # of nodes outside the largest cluster; with fewer, there is one cluster


def nodes_to_choose_by(graph: Labelled) -> tuple[Array, Array, Array]:
    """Returns train and validation nodes, their labels, and which of them are train nodes.

    Raises:
        GraphError: there are no labels, or a part has none.
    """
    if graph.y is None:
        raise GraphError(f"{graph.name}: has no labels to choose by")
    train, val, _ = node_split(graph, graph.y, 0, owner="validation")
    nodes = np.concatenate([train, val])
    return nodes, graph.y[nodes], np.arange(len(nodes)) < len(train)


def validation_score(
    z: Any,
    y: Any,
    train: Any,
    *,
    splits: int = SPLITS,
    steps: int = STEPS,
    device: str | torch.device = "cpu",
) -> float:
    """Returns the probe's best validation score, averaged over several splits.

    It is the score of `metric_of`: ROC-AUC for two classes, accuracy for more, and the mean AUC of
    the labels where a node has several; these are scored on the given split alone.

    The first split is the given one. The others are drawn from the same nodes, with as many
    training nodes of each class; with a few hundred nodes, the ranking by one split depends on
    chance. Every call makes the same draws.

    Args:
        z: embeddings of the training and validation nodes, ``[nodes, dim]``.
        y: their classes ``[nodes]``, or 0/1 ``[nodes, labels]``; test labels are not passed, so
            they cannot be used.
        train: which of them are training nodes, ``[nodes]`` booleans.
        splits: how many splits.
        steps: number of updates with several labels per node; see `multilabel_probe`.
        device: where to train with several labels per node.

    Raises:
        GraphError: fewer than two classes to learn, or no validation node.
    """
    z, y, train = np.asarray(z), np.asarray(y), np.asarray(train, dtype=np.bool_)
    if train.all():
        raise GraphError("validation: there are no labelled validation nodes")
    if metric_of(y) == LABEL_AUC:
        scores = held_out_scores(z[train], y[train], z[~train], steps=steps, device=device)
        return max(mean_auc(one, y[~train]) for one in scores)
    if len(np.unique(y[train])) < 2:
        raise GraphError("validation: the training nodes hold fewer than two classes")
    check_embeddings(z)
    random = np.random.default_rng(0)
    masks = [train, *(redraw(y, train, random) for _ in range(splits - 1))]
    with threadpool_limits(1):  # the products are too small for threads
        return float(np.mean([_best_score(z, y, mask) for mask in masks]))


def _best_score(z: Array, y: Array, train: Array) -> float:
    best, classifier, metric = 0.0, None, metric_of(y)
    z = standardiser(z[train])(z)  # as the probe: by the rows that it learns from
    for strength in STRENGTHS:
        # With some 20 training nodes per class, a weaker penalty than C = 1 is never the best.
        if strength <= 1:
            classifier = fit_logistic(z[train], y[train], strength, classifier)
            if metric == ROC_AUC:
                scores = classifier.decision_function(z[~train])[:, None]
                found = mean_auc(scores, (y[~train] == classifier.classes_[1])[:, None])
            else:
                found = float((classifier.predict(z[~train]) == y[~train]).mean())
            best = max(best, found)
    return best


def cluster_stability(z_1: Any, z_2: Any) -> float:
    """Returns how well the clusters of two sets of embeddings of the same nodes agree.

    Each set is clustered by k-means on standardised rows of unit length. The result is the adjusted
    Rand index: 1 if the clusters are the same, 0 if they agree as much as by chance. It is also 0
    if either set has nearly all nodes in one cluster, because a collapsed encoder is not stable.
    On a large graph, `SAMPLE` nodes are clustered. The same embeddings give the same bits. Both
    sets are ``[num_nodes, dim]``.
    """
    nodes = sampled_rows(len(z_1), 0, SAMPLE)
    with threadpool_limits(1):  # threads would change the order of sums, and so the last bits
        parts = [_clusters(np.asarray(z)[nodes], seed) for seed, z in enumerate((z_1, z_2))]
    if any(np.bincount(part).max() > (1 - LEAST_FRACTION) * len(part) for part in parts):
        return 0.0
    return float(adjusted_rand_score(*parts))


def _clusters(z: Array, seed: int) -> Array:
    z = unit_rows(standardiser(z)(z))  # by all rows: nothing is held out here
    means = KMeans(min(CLUSTERS, len(z)), n_init=STARTS, max_iter=100, random_state=seed)
    with warnings.catch_warnings():
        # A collapsed encoder gives fewer distinct rows than clusters.
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels: Array = means.fit_predict(z)
    return labels
