"""Training: one visible loop, and what feeds it."""

from graphcl.training.checkpoints import Checkpoints
from graphcl.training.full_graph import FullGraph, ManyGraphs
from graphcl.training.loop import EpochMetrics, train
from graphcl.training.sampled import SampledGraph

__all__ = [
    "Checkpoints",
    "EpochMetrics",
    "FullGraph",
    "ManyGraphs",
    "SampledGraph",
    "train",
]
