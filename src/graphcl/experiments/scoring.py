"""Kept for code written for version 0.1.0."""

from graphcl.trials.scoring import probe_scorer

__all__ = ["probe_scorer"]
