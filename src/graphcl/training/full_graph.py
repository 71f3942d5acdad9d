"""Batches from one graph that is in memory whole."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from graphcl.errors import require
from graphcl.kernels.csr import Adjacency, Features
from graphcl.seeding import generator


@dataclass(frozen=True)
class Batch:
    """A minibatch B of nodes in the graph that holds their L-hop subgraphs.

    Attributes:
        x: features of that graph.
        adjacency: its edges.
        nodes: the rows of B in it, or None where B is every node.
    """

    x: Features
    adjacency: Adjacency
    nodes: Tensor | None

    @property
    def num_nodes(self) -> int:
        """M, the size of the minibatch."""
        return self.adjacency.num_nodes if self.nodes is None else len(self.nodes)


@dataclass(frozen=True)
class FullGraph:
    """Every batch sees the whole graph; the loss is taken over all nodes or `batch_nodes` of them.

    An epoch visits every node once, in a random order; it is one step where all nodes make one
    batch, as on the paper's citation graphs.

    Differs from the paper: the L-hop subgraphs of a batch share one perturbation of the graph
    around them, where the paper draws one per subgraph. Each subgraph's own law is the same, and
    the encoder runs once per view instead of once per node.

    Args:
        x: features, on the device that trains.
        adjacency: likewise.
        batch_nodes: M, the nodes per step; 0 takes all.
    """

    x: Features
    adjacency: Adjacency
    batch_nodes: int = 0

    def __post_init__(self) -> None:
        require(self.batch_nodes >= 0, "FullGraph", "batch_nodes", "0 or more", self.batch_nodes)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        if self.batch_nodes == 0:
            return 1
        return -(-self.adjacency.num_nodes // self.batch_nodes)

    @property
    def constant(self) -> bool:
        """Whether every batch is the whole graph."""
        return self.steps_per_epoch == 1

    def epoch(self, number: int, seed: int) -> Iterator[Batch]:
        """Yields the batches of one epoch; the same for the same number and seed."""
        if self.steps_per_epoch == 1:
            yield Batch(self.x, self.adjacency, None)
            return
        order = torch.randperm(
            self.adjacency.num_nodes, generator=generator(seed, "batches", number)
        )
        # Equal sizes: a last batch of few nodes would have few negatives.
        for nodes in order.tensor_split(self.steps_per_epoch):
            yield Batch(self.x, self.adjacency, nodes.to(self.adjacency.indptr.device))
