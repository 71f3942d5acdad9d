"""Evaluation: arrays in, scores out. Nothing here sees a model."""

from graphcl.evaluation.probe import ProbeResult, linear_probe

__all__ = ["ProbeResult", "linear_probe"]
