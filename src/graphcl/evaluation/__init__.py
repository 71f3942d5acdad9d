"""Evaluation: scores of arrays. Nothing here gets a model, so no label can reach training."""

from graphcl.evaluation.multilabel import MultilabelResult, multilabel_probe
from graphcl.evaluation.probe import ProbeResult, linear_probe
from graphcl.evaluation.scores import (
    MultilabelPredictionResult,
    PredictionResult,
    score_predictions,
)

__all__ = [
    "MultilabelPredictionResult",
    "MultilabelResult",
    "PredictionResult",
    "ProbeResult",
    "linear_probe",
    "multilabel_probe",
    "score_predictions",
]
