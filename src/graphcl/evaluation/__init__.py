"""Evaluation: arrays in, scores out. Nothing here sees a model."""

from graphcl.evaluation.multilabel import MultilabelResult, multilabel_probe
from graphcl.evaluation.probe import ProbeResult, linear_probe

__all__ = ["MultilabelResult", "ProbeResult", "linear_probe", "multilabel_probe"]
