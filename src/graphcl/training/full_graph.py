"""Batches from one graph that is in memory whole."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from graphcl.distributed import ALONE, Share
from graphcl.errors import require
from graphcl.kernels.csr import Adjacency, Features
from graphcl.seeding import generator
from graphcl.views import Perturbation


@dataclass(frozen=True)
class Batch:
    """A minibatch B of nodes in the graph that holds their L-hop subgraphs, in two copies.

    Perturbing two copies side by side draws both views at once, and the encoder runs once on both:
    half the calls and larger products than one view after the other.

    Attributes:
        x: features of that graph, twice.
        adjacency: its edges, twice.
        nodes: the rows of B in one copy, or None where B is every node.
        share: of B, the rows that are this process's own.
    """

    x: Features
    adjacency: Adjacency
    nodes: Tensor | None = None
    share: Share = ALONE

    @classmethod
    def of(cls, x: Features, adjacency: Adjacency, nodes: Tensor | None = None) -> "Batch":
        """Builds a batch from one copy of a graph."""
        copies = torch.cat([x, x]) if isinstance(x, Tensor) else x.twice()
        return cls(copies, adjacency.twice(), nodes)

    @property
    def num_nodes(self) -> int:
        """M, the size of the minibatch over all processes."""
        return self.adjacency.num_nodes // 2 if self.nodes is None else len(self.nodes)

    def views(
        self, perturbation: Perturbation, generator: torch.Generator
    ) -> tuple[Features, Adjacency]:
        """Draws both views: one perturbation of the two copies."""
        return perturbation(self.x, self.adjacency, generator)

    def encode(
        self, encoder: nn.Module, views: tuple[Features, Adjacency]
    ) -> tuple[Tensor, Tensor]:
        """Returns the embeddings of B, or this process's share, in view 1 and in view 2."""
        return self.pairs(encoder(*views))

    def pairs(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Splits the embeddings of both copies into those of B in view 1 and in view 2."""
        h_1, h_2 = h.chunk(2)
        if self.nodes is None and self.share.world == 1:
            return h_1, h_2
        own = self.share.rows(self.num_nodes)
        rows = own if self.nodes is None else self.nodes[own]
        return h_1[rows], h_2[rows]


@dataclass(frozen=True)
class FullGraph:
    """Every batch sees the whole graph; the loss is taken over all nodes or `batch_nodes` of them.

    An epoch visits every node once, in a random order; it is one step where all nodes make one
    batch, as on the paper's citation graphs.

    Differs from the paper: the L-hop subgraphs of a batch share one perturbation of the graph
    around them, where the paper draws one per subgraph. Each subgraph's own law is the same, and
    the encoder runs once per view instead of once per node.

    In a group of processes each encodes the same views of the whole graph and takes its share of
    the rows: the loss is divided among them, the encoder is not.

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

    def epoch(
        self, number: int, seed: int, *, first: int = 0, share: Share = ALONE
    ) -> Iterator[Batch]:
        """Yields the batches of one epoch from the `first` on; the same for number and seed."""
        if self.steps_per_epoch == 1:
            yield from [replace(self._whole, share=share)][first:]
            return
        order = torch.randperm(
            self.adjacency.num_nodes, generator=generator(seed, "batches", number)
        )
        # Equal sizes: a last batch of few nodes would have few negatives.
        for nodes in order.tensor_split(self.steps_per_epoch)[first:]:
            here = nodes.to(self.adjacency.indptr.device)
            yield replace(self._whole, nodes=here, share=share)

    @cached_property
    def _whole(self) -> Batch:
        return Batch.of(self.x, self.adjacency)
