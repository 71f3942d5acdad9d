"""Evaluation: scores of arrays. Nothing here gets a model, so no `y` can reach training."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphcl.evaluation.logistic import (
        MultilabelPredictionResult,
        MultilabelResult,
        multilabel_probe,
    )
    from graphcl.evaluation.probe import PredictionResult, ProbeResult, linear_probe
    from graphcl.evaluation.splits import score_predictions

# Fetched on first use: some modules here need torch, which takes seconds to import; others do not.
_HOMES = {
    "MultilabelPredictionResult": "logistic",
    "MultilabelResult": "logistic",
    "PredictionResult": "probe",
    "ProbeResult": "probe",
    "linear_probe": "probe",
    "multilabel_probe": "logistic",
    "score_predictions": "splits",
}

__all__ = [
    "MultilabelPredictionResult",
    "MultilabelResult",
    "PredictionResult",
    "ProbeResult",
    "linear_probe",
    "multilabel_probe",
    "score_predictions",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
