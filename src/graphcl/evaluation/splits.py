"""Scores over all splits of a graph, under one protocol for every graph and system.

Also those of a supervised system's predictions, and what the probe confuses.

The protocol of a comparison: the graph's own splits, all of them, else `DRAWN` random ones with
10 % / 10 % / 80 % of each class; logistic regression on frozen embeddings, its strength chosen on
the validation nodes of each split; accuracy, ROC-AUC for two classes, and micro-F1 and the mean AUC
of the labels where a node has several. Settings are chosen by the same scores on validation nodes.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from graphcl.arrays import Array, Integers
from graphcl.errors import GraphError
from graphcl.evaluation.failure import majority_share
from graphcl.evaluation.logistic import (
    MultilabelPredictionResult,
    fit_logistic_batch,
    held_out_scores,
)
from graphcl.evaluation.probe import (
    STRENGTHS,
    PredictionResult,
    check_embeddings,
    cross_validate,
    f1,
    fit_probe,
    is_cross_validated,
    logistic_path,
    node_split,
    redraw,
    scored_split,
    standardiser,
)
from graphcl.graphs.collection import GraphCollection, Labelled
from graphcl.graphs.graph import Graph
from graphcl.graphs.interchange import embedding_table
from graphcl.graphs.validation import is_labelled
from graphcl.settings import PROBE_STEPS

DRAWN = 3
SPLITS = 3  # that validation scores are averaged over
ACCURACY, ROC_AUC, LABEL_AUC = "accuracy", "roc_auc", "label_auc"
METRICS = {ACCURACY: "accuracy", ROC_AUC: "ROC-AUC", LABEL_AUC: "mean label AUC"}
_OTHERS = ("majority", "roc_auc")
_AVERAGED = ("accuracy", "micro_f1", "macro_f1", "val_accuracy", "val_micro_f1", *_OTHERS)

Split = tuple[Array, Array, Array]


def over_splits(score: Callable[[Any], Any], graph: Labelled) -> Mapping[str, Any]:
    """Returns the columns of a result, its scores averaged over all splits of the graph.

    `score` takes a graph of one split and returns a result such as `ProbeResult`. With several
    splits, ``splits`` is their number, and columns that are not scores are those of the first.
    """
    if isinstance(graph, GraphCollection) or graph.num_splits < 2:
        return asdict(score(graph))
    found = [asdict(score(graph.split(number))) for number in range(graph.num_splits)]
    scores = {name: [one[name] for one in found] for name in _AVERAGED if name in found[0]}
    # The test nodes of a split may lack a class; it then has no ROC-AUC.
    means = {name: None if None in each else fmean(each) for name, each in scores.items()}
    return {**found[0], **means, "splits": len(found)}


@dataclass(frozen=True)
class Comparison:
    """The scores of embeddings over all splits of a graph.

    Attributes:
        metric: which score is `score`: ``accuracy``, ``roc_auc`` or ``label_auc``.
        score: its mean over the splits.
        split_scores: its value in each split.
        val_score: its mean on the validation nodes, by which strengths are chosen.
        accuracy: mean accuracy; of pairs of node and label if there are several.
        micro_f1: mean micro-F1; equals the accuracy for one class per node.
        split: ``given``, ``random``, or ``given, validation drawn``.
        splits: number of splits.
        nodes: numbers of train, validation and test nodes of the first split.
    """

    metric: str
    score: float
    split_scores: tuple[float, ...]
    val_score: float
    accuracy: float
    micro_f1: float
    split: str
    splits: int
    nodes: tuple[int, int, int]


def compare_probe(z: Any, graph: Graph, *, device: torch.device) -> Comparison:
    """Scores embeddings by the protocol of this module; all splits are fitted together.

    Raises:
        GraphError: there are no labels, a split lacks nodes, or the embeddings do not fit.
    """
    if graph.y is None:
        raise GraphError(f"{graph.name}: has no labels to score by")
    z = embedding_table(z, "probe", graph.num_nodes)
    kind, parts = comparison_splits(graph)
    check_embeddings(z)

    def rows(nodes: Array, standard: Callable[[Array], Array]) -> Tensor:
        return torch.tensor(standard(z[nodes]), dtype=torch.float32, device=device)

    targets, metric = _targets(graph)
    standards = [standardiser(z[train]) for train, _, _ in parts]  # each by its train rows alone
    problems = [
        (rows(train, standard), torch.tensor(targets[train], dtype=torch.float32, device=device))
        for (train, _, _), standard in zip(parts, standards, strict=True)
    ]
    fitted = fit_logistic_batch(problems, STRENGTHS, softmax=metric == ACCURACY)
    results = []
    for (_, val, test), standard, one in zip(parts, standards, fitted, strict=True):
        on_val = [
            _measure(scores, targets[val], metric)[0]
            for scores in one.scores(rows(val, standard)).cpu().numpy()
        ]
        chosen = int(np.argmax(on_val))  # the strongest penalty on a tie
        scores = (rows(test, standard) @ one.weight[chosen] + one.bias[chosen]).cpu().numpy()
        results.append((*_measure(scores, targets[test], metric), on_val[chosen]))
    train, val, test = parts[0]
    scored, accuracy, micro, on_validation = zip(*results, strict=True)
    return Comparison(
        metric=metric,
        score=fmean(scored),
        split_scores=scored,
        val_score=fmean(on_validation),
        accuracy=fmean(accuracy),
        micro_f1=fmean(micro),
        split=kind,
        splits=len(parts),
        nodes=(len(train), len(val), len(test)),
    )


def comparison_splits(graph: Graph) -> tuple[str, list[Split]]:
    """Returns where the splits come from, and the labelled nodes of each.

    Where only validation nodes are missing, a fifth of the train nodes of each class are taken.
    """
    if graph.y is None:
        raise GraphError(f"{graph.name}: has no labels to score by")
    kind, wholes = "given", [graph.split(number) for number in range(graph.num_splits)]
    if not wholes and graph.train_mask is not None and graph.test_mask is not None:
        kind, wholes = "given, validation drawn", [_with_validation(graph)]
    if wholes:
        parts = [node_split(one, graph.y, 0) for one in wholes]
    else:
        kind, parts = "random", [node_split(graph, graph.y, seed) for seed in range(DRAWN)]
    for number, (_, _, test) in enumerate(parts):
        if not len(test):
            raise GraphError(f"{graph.name}: split {number} has no labelled test node")
    return kind, parts


def _with_validation(graph: Graph) -> Graph:
    assert graph.train_mask is not None
    assert graph.y is not None
    random, val = np.random.default_rng(0), np.zeros(graph.num_nodes, np.bool_)
    classes = graph.y if graph.y.ndim == 1 else np.zeros(graph.num_nodes)
    train = graph.train_mask & is_labelled(graph.y)
    for label in np.unique(classes[train]):
        members = np.flatnonzero(train & (classes == label))
        val[random.choice(members, max(1, len(members) // 5), replace=False)] = True
    return graph.replace(train_mask=graph.train_mask & ~val, val_mask=val)


def metric_of(y: Array) -> str:
    """Returns the score by which embeddings are ranked, wherever they are: a key of `METRICS`.

    That is the ROC-AUC for two classes, the accuracy for more, and the mean AUC of the labels where
    a node has several.
    """
    if y.ndim == 2:
        return LABEL_AUC
    return ROC_AUC if len(np.unique(y[y >= 0])) == 2 else ACCURACY


def _targets(graph: Graph) -> tuple[Integers, str]:
    """Returns 0/1 columns per node, and the metric; two classes are one column."""
    y = graph.y
    assert y is not None
    metric = metric_of(y)
    if metric == LABEL_AUC:
        return y, metric
    classes = np.unique(y[y >= 0])
    if len(classes) < 2:
        raise GraphError(f"{graph.name}: has fewer than two classes")
    if metric == ROC_AUC:
        return (y == classes[1]).astype(np.int64)[:, None], metric
    return (y[:, None] == classes).astype(np.int64), metric


def _measure(scores: Array, targets: Array, metric: str) -> tuple[float, float, float]:
    """Returns the metric, the accuracy and the micro-F1 of scores ``[nodes, outputs]``."""
    if metric == ACCURACY:
        right = float((scores.argmax(1) == targets.argmax(1)).mean())
        return right, right, right
    given = scores > 0
    accuracy = float((given == targets).mean())
    if metric == ROC_AUC:
        return mean_auc(scores, targets), accuracy, accuracy
    hits = 2 * (given & (targets > 0)).sum()
    micro = float(hits / max(1, given.sum() + targets.sum()))
    return mean_auc(scores, targets), accuracy, micro


def mean_auc(scores: Array, targets: Array) -> float:
    """Returns the mean ROC-AUC of the columns that hold both a 0 and a 1; 0.5 if none does.

    AUC is the chance that a node with the label scores above one without; ties count half.
    """
    from scipy.stats import rankdata

    positive = targets.sum(0)
    negative = len(targets) - positive
    both = (positive > 0) & (negative > 0)
    if not both.any():
        return 0.5
    ranks = rankdata(scores[:, both], axis=0)
    above = (ranks * targets[:, both]).sum(0) - positive[both] * (positive[both] + 1) / 2
    return float((above / (positive[both] * negative[both])).mean())


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
    steps: int = PROBE_STEPS,
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
    found, metric = [0.0], metric_of(y)
    z = standardiser(z[train])(z)  # as the probe: by the rows that it learns from
    # With some 20 training nodes per class, a weaker penalty than C = 1 is never the best.
    for classifier in logistic_path(z[train], y[train], [one for one in STRENGTHS if one <= 1]):
        if metric == ROC_AUC:
            scores = classifier.decision_function(z[~train])[:, None]
            found.append(mean_auc(scores, (y[~train] == classifier.classes_[1])[:, None]))
        else:
            found.append(float((classifier.predict(z[~train]) == y[~train]).mean()))
    return max(found)


def score_predictions(
    predicted: Any, graph: Labelled, seed: int = 0
) -> PredictionResult | MultilabelPredictionResult:
    """Compares predictions with the labels of the test nodes, and of the validation nodes.

    Args:
        predicted: classes ``[num_nodes]``, or 0/1 ``[num_nodes, labels]``; for a collection, in the
            order of its graphs.
        graph: their graph, or collection of graphs; gives labels and split, as in `linear_probe`.
        seed: decides the random split of a graph without masks.

    Raises:
        GraphError: there are no labels, a part of the split has none, or the shape is wrong.
    """
    y, given = graph.y, np.asarray(predicted)
    if y is None:
        raise GraphError("scores: the graph has no labels")
    if given.shape != y.shape:
        raise GraphError(f"scores: predictions {given.shape} for labels {y.shape}")
    train, val, test = scored_split(graph, y, seed, owner="scores")
    split = "random" if not isinstance(graph, GraphCollection) and not graph.has_split else "given"
    nodes, majority = (len(train), len(val), len(test)), majority_share(y[test])
    macro = f1(y[test], given[test], "macro")
    accuracy = float((given[test] == y[test]).mean())
    if y.ndim == 1:
        on_val = float((given[val] == y[val]).mean())
        return PredictionResult(accuracy, accuracy, macro, on_val, split, nodes, majority)
    micro, on_val = f1(y[test], given[test], "micro"), f1(y[val], given[val], "micro")
    return MultilabelPredictionResult(micro, macro, accuracy, on_val, split, nodes, majority)


@dataclass(frozen=True, eq=False)
class Confusion:
    """Counts of test nodes by their true class and the class that the probe predicts.

    Attributes:
        classes: the class numbers, ascending.
        counts: ``[classes, classes]``; rows are true classes, columns predicted ones.
    """

    classes: Integers
    counts: Integers

    @property
    def accuracy(self) -> float:
        """Fraction of test nodes on the diagonal."""
        return float(np.trace(self.counts) / self.counts.sum())


def probe_confusion(z: Any, graph: Labelled, *, strength: float, seed: int = 0) -> Confusion:
    """Trains the probe of `linear_probe` again and counts its predictions on test nodes.

    The strength C is that of `ProbeResult.strength`. There must be one class per node.
    """
    from sklearn.metrics import confusion_matrix

    y, z = graph.y, np.asarray(z)
    if y is None or y.ndim != 1:
        raise GraphError("confusion: needs one class per node")
    if len(z) != len(y):
        raise GraphError(f"confusion: embeddings {z.shape} for a graph of {len(y)} nodes")
    if is_cross_validated(graph, y):
        held = cross_validate(z, y, seed)[1]
        test = np.flatnonzero(held >= 0)
        predicted = held[test]
    else:
        train, _, test = scored_split(graph, y, seed, owner="confusion")
        check_embeddings(z)
        standard, probe = fit_probe(z[train], y[train], strength)
        predicted = probe.predict(standard(z[test]))
    classes = np.unique(np.concatenate([y[test], predicted]))
    return Confusion(classes, confusion_matrix(y[test], predicted, labels=classes))
