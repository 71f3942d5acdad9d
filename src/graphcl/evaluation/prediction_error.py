"""How often predictions are wrong: accuracy, F1, log loss, and whether probabilities hold."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.evaluation.failure import majority_share
from graphcl.evaluation.probe import f1
from graphcl.files.records import Answer

Array = npt.NDArray[Any]
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


def measure(
    probability: Array,
    targets: Array,
    several: bool,
    *,
    nodes: int,
    folds: int = 1,
    how: str = "cross-validation",
) -> PredictionError:
    """Compares probabilities ``[rows, outputs]`` with the truth, 0/1 of the same shape."""
    tiny = np.finfo(np.float64).tiny
    if several:
        given = probability > 0.5
        right = (given == targets).mean()
        loss = -np.log(np.maximum(np.where(targets > 0, probability, 1 - probability), tiny)).mean()
        micro, macro = (f1(targets, given, average) for average in ("micro", "macro"))
        majority = majority_share(targets)
    else:
        truth, guess = targets.argmax(axis=1), probability.argmax(axis=1)
        right = micro = (truth == guess).mean()
        loss = -np.log(np.maximum(probability[np.arange(len(truth)), truth], tiny)).mean()
        macro = f1(truth, guess)
        majority = majority_share(truth)
    return PredictionError(
        accuracy=float(right),
        macro_f1=macro,
        micro_f1=float(micro),
        log_loss=float(loss),
        calibration_error=calibration_error(probability, targets, several),
        majority=majority,
        standard_error=float(np.sqrt(right * (1 - right) / nodes)),
        nodes=nodes,
        folds=folds,
        how=how,
    )


def calibration_error(probability: Array, targets: Array, several: bool) -> float:
    """Returns the expected calibration error (ECE), with `BINS` bins of equal width.

    Answers are grouped by their probability. In each group, the mean probability is compared with
    the fraction that is right, and the differences are averaged, weighted by the groups' sizes. An
    answer is the most probable class of a node; with `several`, every pair of node and label.
    """
    if several:
        confidence, right = probability.ravel(), targets.ravel() > 0
    else:
        confidence = probability.max(axis=1)
        right = probability.argmax(axis=1) == targets.argmax(axis=1)
    group = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(group, weights=confidence - right, minlength=BINS)
    return float(np.abs(gaps).sum() / max(1, len(confidence)))
