"""Training: one visible loop, and what feeds it."""

from graphcl.training.full_graph import FullGraph
from graphcl.training.loop import EpochMetrics, train

__all__ = ["EpochMetrics", "FullGraph", "train"]
