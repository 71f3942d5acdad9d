"""Batches from several graphs that are in memory whole."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from graphcl.distributed import ALONE, Share
from graphcl.errors import require
from graphcl.seeding import derive, generator
from graphcl.training.loop import Batch, BatchSource
from graphcl.views import View


@dataclass(frozen=True)
class ManyGraphs:
    """One graph per step, all its nodes the batch, as the paper trains on PPI.

    An epoch visits every graph once, in a random order. A graph with `batch_nodes` of its own
    takes as many steps as that asks for, one after the other.

    Args:
        graphs: at least one, on the device that trains.
    """

    graphs: tuple[BatchSource, ...]

    def __post_init__(self) -> None:
        require(len(self.graphs) >= 1, "ManyGraphs", "graphs", "at least one", self.graphs)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return sum(graph.steps_per_epoch for graph in self.graphs)

    @property
    def constant(self) -> bool:
        """Whether every batch is the same: one graph, whole."""
        return self.steps_per_epoch == 1

    def epoch(
        self, number: int, seed: int, *, perturbation: View, first: int = 0, share: Share = ALONE
    ) -> Iterator[Batch]:
        """Yields the batches of one epoch from the `first` on; the same for number and seed."""
        order = torch.randperm(len(self.graphs), generator=generator(seed, "graphs", number))
        for index in order.tolist():
            graph = self.graphs[index]
            if first < graph.steps_per_epoch:
                below = derive(seed, "graph", index)
                yield from graph.epoch(
                    number, below, perturbation=perturbation, first=first, share=share
                )
            first = max(0, first - graph.steps_per_epoch)
