"""How often predictions are wrong: accuracy, F1, log loss, and whether probabilities hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from graphcl.arrays import Array
from graphcl.evaluation.failure import majority_share
from graphcl.evaluation.intervals import area_interval, effective_nodes, share_interval
from graphcl.evaluation.probe import f1
from graphcl.files.records import Answer

BINS = 10


@dataclass(frozen=True, repr=False)
class PredictionError(Answer):
    """How often predictions are wrong, measured on labelled nodes that were held out.

    Attributes:
        accuracy: fraction of nodes whose most probable class is right; with several labels per
            node, the fraction of pairs of node and label that are right.
        macro_f1: mean of the F1 scores of the classes or labels.
        micro_f1: equals the accuracy for one class per node; with several labels, F1 over all
            pairs of node and label.
        log_loss: mean of −log p of what is true, per node or per pair of node and label.
        calibration_error: ECE with `BINS` bins: how far confidence is from the fraction that is
            right, on average. It is 0 if of all answers with probability 0.8, 80 % are right.
        majority: the score of one answer for all nodes: accuracy, or micro-F1 for several labels.
        accuracy_interval: between which values the accuracy lies with 95 % certainty; see
            `graphcl.evaluation.intervals`.
        nodes: how many nodes were held out, each in turn.
        folds: into how many parts.
        how: ``cross-validation``, or ``held-out nodes``.
        several: whether a node may have several labels.
        roc_auc: of two classes, the chance that a node of the one is ranked above one of the other;
            0.5 means that they cannot be told apart. None for more classes, or if one is missing.
        roc_auc_interval: between which values it lies with 95 % certainty; None without it.
        by_class: the F1 score and the ROC-AUC of each class against the others, or of each label.
    """

    accuracy: float
    macro_f1: float
    micro_f1: float
    log_loss: float
    calibration_error: float
    majority: float
    accuracy_interval: tuple[float, float]
    nodes: int
    folds: int
    how: str = "cross-validation"
    several: bool = False
    roc_auc: float | None = None
    roc_auc_interval: tuple[float, float] | None = None
    by_class: tuple[tuple[float, float | None], ...] = ()

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the error whose fields JSON kept, in which tuples are lists."""
        between = fields["roc_auc_interval"]
        tuples = {
            "accuracy_interval": tuple(fields["accuracy_interval"]),
            "roc_auc_interval": None if between is None else tuple(between),
            "by_class": tuple((f1_score, area) for f1_score, area in fields["by_class"]),
        }
        return cls(**{**fields, **tuples})

    @property
    def headline(self) -> tuple[str, float, float]:
        """What matters most, its value, and that of one answer for all nodes."""
        if self.roc_auc is not None:
            return "ROC-AUC", self.roc_auc, 0.5
        return "micro-F1" if self.several else "accuracy", self.micro_f1, self.majority


def measure(
    probability: Array,
    targets: Array,
    several: bool,
    *,
    nodes: int,
    folds: int = 1,
    how: str = "cross-validation",
    weight: Array | None = None,
) -> PredictionError:
    """Compares probabilities ``[rows, outputs]`` with the truth, 0/1 of the same shape.

    Args:
        probability: of each class or label; a node may have several rows.
        targets: the truth.
        several: whether a node may have several labels.
        nodes: how many nodes the rows are of.
        folds: into how many parts they were divided; 1 if they were not held out in turn.
        how: ``cross-validation``, or ``held-out nodes``.
        weight: how much each row counts. (default: all count the same)
    """
    tiny = np.finfo(np.float64).tiny
    independent = nodes / len(targets)  # the share of rows that tell something new
    if folds > 1:
        independent *= (folds - 1) / folds
    count = np.ones(len(targets)) if weight is None else weight
    if several:
        given = probability > 0.5
        right = np.average((given == targets).mean(axis=1), weights=count)
        effective = float(len(targets))
        true = np.where(targets > 0, probability, 1 - probability)
        loss = -np.log(np.maximum(true, tiny)).mean(axis=1)
        micro, macro = (f1(targets, given, average, count) for average in ("micro", "macro"))
        majority = majority_share(targets)
    else:
        truth, guess = targets.argmax(axis=1), probability.argmax(axis=1)
        given = guess[:, None] == np.arange(targets.shape[1])
        right = micro = np.average(truth == guess, weights=count)
        effective = effective_nodes(truth == guess, count, truth)
        loss = -np.log(np.maximum(probability[np.arange(len(truth)), truth], tiny))
        macro = f1(truth, guess, "macro", count)
        majority = float((count @ targets).max() / count.sum())
    areas = [_area(p, y, count) for p, y in zip(probability.T, targets.T, strict=True)]
    each = [f1(y, own, "binary", count) for own, y in zip(given.T, targets.T, strict=True)]
    area = areas[1] if len(areas) == 2 and not several else None
    between = None
    if area is not None:
        others, wanted = independent * targets.sum(axis=0)
        between = area_interval(area, wanted, others)
    return PredictionError(
        accuracy=float(right),
        macro_f1=macro,
        micro_f1=float(micro),
        log_loss=float(np.average(loss, weights=count)),
        calibration_error=calibration_error(probability, targets, several, count),
        majority=majority,
        accuracy_interval=share_interval(float(right), independent * effective),
        nodes=nodes,
        folds=folds,
        how=how,
        several=several,
        roc_auc=area,
        roc_auc_interval=between,
        by_class=tuple(zip(each, areas, strict=True)),
    )


def _area(risk: Array, truth: Array, weight: Array) -> float | None:
    from sklearn.metrics import roc_auc_score

    varied = 0 < truth.sum() < len(truth)
    return float(roc_auc_score(truth, risk, sample_weight=weight)) if varied else None


def calibration_error(
    probability: Array, targets: Array, several: bool, weight: Array | None = None
) -> float:
    """Returns the expected calibration error (ECE), with `BINS` bins of equal width.

    Answers are grouped by their probability. In each group, the mean probability is compared with
    the fraction that is right, and the differences are averaged, weighted by the groups' sizes. An
    answer is the most probable class of a node; with `several`, every pair of node and label.
    """
    count = np.ones(len(targets)) if weight is None else weight
    if several:
        confidence, right = probability.ravel(), targets.ravel() > 0
        count = np.repeat(count, targets.shape[1])
    else:
        confidence = probability.max(axis=1)
        right = probability.argmax(axis=1) == targets.argmax(axis=1)
    group = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(group, weights=count * (confidence - right), minlength=BINS)
    return float(np.abs(gaps).sum() / max(1.0, count.sum()))
