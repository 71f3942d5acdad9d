"""Scores over all splits of a graph, under one protocol for every graph and system.

Also those of a supervised system's predictions, and what the probe confuses.

The protocol of a comparison: the graph's own splits, all of them, else `DRAWN` random ones with
10 % / 10 % / 80 % of each class, or as many with a few labels of each class; logistic regression on
frozen embeddings. Its strength, and whether columns are scaled, is chosen on the validation nodes
of each split. Scores are accuracy, ROC-AUC for two classes, and micro-F1 and the mean AUC of the
labels where a node has several. Settings are chosen by the same scores on validation nodes.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from graphcl.arrays import Array, Integers, blocks
from graphcl.errors import GraphError, demand
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
    column_scales,
    cross_validate,
    draw_split,
    f1,
    fit_probe,
    is_cross_validated,
    node_split,
    redraw,
    scored_split,
    strength_scores,
)
from graphcl.graphs.collection import GraphCollection, Labelled
from graphcl.graphs.graph import Graph
from graphcl.graphs.interchange import embedding_table
from graphcl.graphs.validation import is_labelled
from graphcl.settings import PROBE_STEPS

DRAWN = 3
_ROWS = 4096  # that are read at once
SPLITS = 3  # that validation scores are averaged over
ACCURACY, ROC_AUC, LABEL_AUC = "accuracy", "roc_auc", "label_auc"
METRICS = {ACCURACY: "accuracy", ROC_AUC: "ROC-AUC", LABEL_AUC: "mean label AUC"}
_AVERAGED = (
    "accuracy",
    "micro_f1",
    "macro_f1",
    "val_accuracy",
    "val_micro_f1",
    "majority",
    "roc_auc",
)

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
    """The scores of a system over all splits of a graph.

    Attributes:
        metric: which score is `score`: ``accuracy``, ``roc_auc`` or ``label_auc``.
        score: its mean over the splits.
        split_scores: its value in each split.
        val_score: its mean on the validation nodes, by which settings are chosen.
        accuracy: mean accuracy; of pairs of node and label if there are several.
        micro_f1: mean micro-F1; equals the accuracy for one class per node.
        chosen: how many splits chose what; of the probe, columns that are ``scaled`` or
            ``unscaled``.
        split: ``given``, ``random``, ``given, validation drawn``, or how many labels of a class.
        splits: number of splits.
        nodes: numbers of train, validation and test nodes of the first split.
    """

    metric: str
    score: float
    split_scores: tuple[float, ...]
    val_score: float
    accuracy: float
    micro_f1: float
    chosen: Mapping[str, int]
    split: str
    splits: int
    nodes: tuple[int, int, int]


class Answers(NamedTuple):
    """What a system says in one split, with every setting that it could have there.

    Attributes:
        names: what the settings are called; some may share a name.
        val: the scores of the validation nodes, ``[settings, nodes, outputs]``; those above 0 are
            labels.
        test: returns the scores of the test nodes with one setting, ``[nodes, outputs]``.
    """

    names: Sequence[str]
    val: Array
    test: Callable[[int], Array]


# Takes splits, the 0/1 targets of the train nodes of each, and whether outputs exclude each other.
Learner = Callable[[Sequence[Split], Sequence[Integers], bool], Iterable[Answers]]


def compare_probe(
    z: Any, graph: Graph, *, labels: int | None = None, device: torch.device
) -> Comparison:
    """Scores embeddings by the protocol of this module; splits are fitted together.

    In each split, columns are standardised by `standardiser`, or all divided by one number: what
    is better on validation nodes.

    Args:
        z: embeddings, ``[num_nodes, dim]``.
        graph: has the labels and the splits.
        labels: of each class to learn from; None for the graph's splits. See `comparison_splits`.
        device: where regressions are fitted.

    Raises:
        GraphError: there are no labels, a split lacks nodes, or the embeddings do not fit.
    """
    table = embedding_table(z, "probe", graph.num_nodes)
    check_embeddings(table)

    def learn(
        parts: Sequence[Split], targets: Sequence[Integers], exclusive: bool
    ) -> Iterator[Answers]:
        # Each by its train rows alone.
        scales = [(column_scales(table[train]), _one_scale(table[train])) for train, _, _ in parts]

        def rows(nodes: Array, scale: tuple[Any, Any]) -> Tensor:
            mean, size = (torch.as_tensor(one, device=device) for one in scale)
            return ((torch.as_tensor(table[nodes], device=device).double() - mean) / size).float()

        problems = (
            (rows(train, scale), torch.tensor(y, dtype=torch.float32, device=device))
            for (train, _, _), y, both in zip(parts, targets, scales, strict=True)
            for scale in both
        )
        fitted = fit_logistic_batch(problems, STRENGTHS, softmax=exclusive)
        for (_, val, test), both in zip(parts, scales, strict=True):
            pair = [(next(fitted), scale) for scale in both]
            on_val = [one.scores(rows(val, scale)).cpu().numpy() for one, scale in pair]

            def on_test(place: int, test: Array = test, pair: Any = pair) -> Array:
                (one, scale), strength = pair[place // len(STRENGTHS)], place % len(STRENGTHS)
                scores = rows(test, scale) @ one.weight[strength] + one.bias[strength]
                return np.asarray(scores.cpu().numpy())

            yield Answers(_SCALINGS, np.concatenate(on_val), on_test)

    return compare_learner(learn, graph, labels=labels)


_SCALINGS = ("scaled",) * len(STRENGTHS) + ("unscaled",) * len(STRENGTHS)


def _one_scale(z: Array) -> tuple[float, float]:
    """Returns 0, and the number that brings the variance of columns to 1 on the mean."""
    mean = z.mean(axis=0, dtype=np.float64)
    squares = sum(
        ((z[some].astype(np.float64) - mean) ** 2).sum() for some in blocks(len(z), _ROWS)
    )
    size = math.sqrt(squares / z.size)
    return 0.0, size if size > 0 else math.inf


def compare_learner(learn: Learner, graph: Graph, *, labels: int | None = None) -> Comparison:
    """Scores whatever learns from train nodes, by the protocol of this module.

    In each split, the setting with the best score on validation nodes is scored on test nodes, the
    first of equals. `learn` gets no label of either.

    Raises:
        GraphError: there are no labels, or a split lacks nodes.
    """
    kind, parts = comparison_splits(graph, labels)
    targets, metric = _targets(graph)
    answers = learn(parts, [targets[train] for train, _, _ in parts], metric == ACCURACY)
    results, chosen = [], Counter[str]()
    for (_, val, test), answer in zip(parts, answers, strict=True):
        on_val = [measure(scores, targets[val], metric)[0] for scores in answer.val]
        best = int(np.argmax(on_val))
        chosen[answer.names[best]] += 1
        results.append((*measure(answer.test(best), targets[test], metric), on_val[best]))
    train, val, test = parts[0]
    scored, accuracy, micro, on_validation = zip(*results, strict=True)
    return Comparison(
        metric=metric,
        score=fmean(scored),
        split_scores=scored,
        val_score=fmean(on_validation),
        accuracy=fmean(accuracy),
        micro_f1=fmean(micro),
        chosen=dict(chosen),
        split=kind,
        splits=len(parts),
        nodes=(len(train), len(val), len(test)),
    )


def comparison_splits(graph: Graph, labels: int | None = None) -> tuple[str, list[Split]]:
    """Returns where the splits come from, and the labelled nodes of each.

    Where only validation nodes are missing, a fifth of the train nodes of each class are taken.

    With `labels`, whatever split the graph has, `DRAWN` are drawn: that many train nodes of each
    class, at most a third of it, and as many validation nodes; all others are test nodes. Where
    nodes have several labels, it is that many times the number of labels, of all nodes.
    """
    y = graph.y
    demand(y is not None, f"{graph.name}: has no labels to score by")
    if labels is not None:
        most = labels if y.ndim == 1 else labels * y.shape[1]
        parts = [
            draw_split(y, lambda members: min(most, members // 3), seed, owner=graph.name)
            for seed in range(DRAWN)
        ]
        return f"{labels} a class", parts
    kind, wholes = "given", [graph.split(number) for number in range(graph.num_splits)]
    if not wholes and graph.train_mask is not None and graph.test_mask is not None:
        kind, wholes = "given, validation drawn", [_with_validation(graph)]
    if wholes:
        parts = [node_split(one, y, 0) for one in wholes]
    else:
        kind, parts = "random", [node_split(graph, y, seed) for seed in range(DRAWN)]
    for number, (_, _, test) in enumerate(parts):
        demand(len(test), f"{graph.name}: split {number} has no labelled test node")
    return kind, parts


def _with_validation(graph: Graph) -> Graph:
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
    metric = metric_of(y)
    if metric == LABEL_AUC:
        return y, metric
    classes = np.unique(y[y >= 0])
    demand(len(classes) >= 2, f"{graph.name}: has fewer than two classes")
    if metric == ROC_AUC:
        return (y == classes[1]).astype(np.int64)[:, None], metric
    return (y[:, None] == classes).astype(np.int64), metric


def measure(scores: Array, targets: Array, metric: str) -> tuple[float, float, float]:
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
    demand(not train.all(), "validation: there are no labelled validation nodes")
    if metric_of(y) == LABEL_AUC:
        scores = held_out_scores(z[train], y[train], z[~train], steps=steps, device=device)
        return max(mean_auc(one, y[~train]) for one in scores)
    demand(
        len(np.unique(y[train])) >= 2, "validation: the training nodes hold fewer than two classes"
    )
    check_embeddings(z)

    def score(classifier: Any, rows: Array, truth: Array) -> float:
        if metric_of(y) == ACCURACY:
            return float((classifier.predict(rows) == truth).mean())
        scores = classifier.decision_function(rows)[:, None]
        return mean_auc(scores, (truth == classifier.classes_[1])[:, None])

    # With some 20 training nodes per class, a weaker penalty than C = 1 is never the best.
    strengths = [one for one in STRENGTHS if one <= 1]
    random = np.random.default_rng(0)
    masks = [train, *(redraw(y, train, random) for _ in range(splits - 1))]
    return float(strength_scores(z, y, masks, strengths, score).max(axis=1).mean())


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
    demand(given.shape == y.shape, f"scores: predictions {given.shape} for labels {y.shape}")
    train, val, test = scored_split(graph, y, seed, owner="scores")
    split = "random" if not isinstance(graph, GraphCollection) and not graph.has_split else "given"
    several, accuracy = y.ndim == 2, float((given[test] == y[test]).mean())
    shared: Any = {
        "accuracy": accuracy,
        "micro_f1": f1(y[test], given[test], "micro") if several else accuracy,
        "macro_f1": f1(y[test], given[test], "macro"),
        "split": split,
        "nodes": (len(train), len(val), len(test)),
        "majority": majority_share(y[test]),
    }
    if several:
        return MultilabelPredictionResult(**shared, val_micro_f1=f1(y[val], given[val], "micro"))
    return PredictionResult(**shared, val_accuracy=float((given[val] == y[val]).mean()))


@dataclass(frozen=True, eq=False)
class Confusion:
    """Counts of test nodes by their true class and the class that the probe predicts.

    Attributes:
        classes: the class numbers, ascending.
        counts: ``[classes, classes]``; rows are true classes, columns predicted ones.
    """

    classes: Integers
    counts: Integers


def probe_confusion(z: Any, graph: Labelled, *, strength: float, seed: int = 0) -> Confusion:
    """Trains the probe of `linear_probe` again and counts its predictions on test nodes.

    The strength C is that of `ProbeResult.strength`. There must be one class per node.
    """
    from sklearn.metrics import confusion_matrix

    y, z = graph.y, np.asarray(z)
    if y is None or y.ndim != 1:
        raise GraphError("confusion: needs one class per node")
    demand(len(z) == len(y), f"confusion: embeddings {z.shape} for a graph of {len(y)} nodes")
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
