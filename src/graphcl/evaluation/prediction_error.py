"""How often predictions are wrong: accuracy, F1, log loss, and whether probabilities hold."""

from dataclasses import dataclass

import numpy as np

from graphcl.arrays import Array
from graphcl.evaluation.failure import majority_share
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
        standard_error: of the accuracy, for so many nodes: from ten labels, nobody can know it
            better than this.
        nodes: how many nodes were held out, each in turn.
        folds: into how many parts.
        how: ``cross-validation``, or ``held-out nodes``.
        several: whether a node may have several labels.
        roc_auc: of two classes, the chance that a node of the one is ranked above one of the other;
            0.5 means that they cannot be told apart. None for more classes, or if one is missing.
        by_class: the F1 score and the ROC-AUC of each class against the others, or of each label.
    """

    accuracy: float
    macro_f1: float
    micro_f1: float
    log_loss: float
    calibration_error: float
    majority: float
    standard_error: float
    nodes: int
    folds: int
    how: str = "cross-validation"
    several: bool = False
    roc_auc: float | None = None
    by_class: tuple[tuple[float, float | None], ...] = ()

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

    `weight` is how much each row counts; by default all count the same.
    """
    tiny = np.finfo(np.float64).tiny
    count = np.ones(len(targets)) if weight is None else weight
    if several:
        given = probability > 0.5
        right = np.average((given == targets).mean(axis=1), weights=count)
        true = np.where(targets > 0, probability, 1 - probability)
        loss = -np.log(np.maximum(true, tiny)).mean(axis=1)
        micro, macro = (f1(targets, given, average, count) for average in ("micro", "macro"))
        majority = majority_share(targets)
    else:
        truth, guess = targets.argmax(axis=1), probability.argmax(axis=1)
        given = guess[:, None] == np.arange(targets.shape[1])
        right = micro = np.average(truth == guess, weights=count)
        loss = -np.log(np.maximum(probability[np.arange(len(truth)), truth], tiny))
        macro = f1(truth, guess, "macro", count)
        majority = float((count @ targets).max() / count.sum())
    areas = [_area(p, y, count) for p, y in zip(probability.T, targets.T, strict=True)]
    each = [f1(y, own, "binary", count) for own, y in zip(given.T, targets.T, strict=True)]
    return PredictionError(
        accuracy=float(right),
        macro_f1=macro,
        micro_f1=float(micro),
        log_loss=float(np.average(loss, weights=count)),
        calibration_error=calibration_error(probability, targets, several, count),
        majority=majority,
        standard_error=float(np.sqrt(right * (1 - right) / nodes)),
        nodes=nodes,
        folds=folds,
        how=how,
        several=several,
        roc_auc=areas[1] if len(areas) == 2 and not several else None,
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
