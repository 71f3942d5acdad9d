"""Batches from graphs that are encoded whole: one of them, or several."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from graphcl.distributed import ALONE, Share
from graphcl.encoders import LayeredEncoder
from graphcl.errors import require
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.features import Features
from graphcl.seeding import derive, generator
from graphcl.settings import check_setting
from graphcl.training.loop import Batch, BatchSource
from graphcl.views import Perturbation


@dataclass(frozen=True)
class WholeBatch:
    """A minibatch B of nodes in the graph that holds their L-hop subgraphs.

    Where every entry is drawn by itself, as the paper's perturbation does, perturbing two copies
    side by side draws both views at once, and the encoder runs once on both: half the calls and
    larger products than one view after the other. Any other perturbation is called twice.

    Attributes:
        graph: that graph.
        perturbation: what the views are drawn from.
        nodes: the rows of B in one copy, or None where B is every node.
        share: of B, the rows that are this process's own.
    """

    graph: "FullGraph"
    perturbation: Perturbation
    nodes: Tensor | None = None
    share: Share = ALONE

    @property
    def num_nodes(self) -> int:
        """M, the size of the minibatch over all processes."""
        return self.graph.adjacency.num_nodes if self.nodes is None else len(self.nodes)

    def views(self, generator: torch.Generator) -> list[tuple[Features, Adjacency]]:
        """Draws both views: as one view of the two copies where that is the same."""
        if getattr(self.perturbation, "entrywise", False):
            return [self.perturbation(*self.graph.copies, generator)]
        return [self.perturbation(self.graph.x, self.graph.adjacency, generator) for _ in range(2)]

    def encode(
        self, encoder: nn.Module, views: list[tuple[Features, Adjacency]]
    ) -> tuple[Tensor, Tensor]:
        """Returns the embeddings of B, or this process's share, in view 1 and in view 2."""
        if self.nodes is not None and self.share.world == 1 and isinstance(encoder, LayeredEncoder):
            if len(views) == 2:
                h_1, h_2 = (encoder.on_rows(*view, self.nodes) for view in views)
                return h_1, h_2
            both = torch.cat([self.nodes, self.nodes + self.graph.adjacency.num_nodes])
            h_1, h_2 = encoder.on_rows(*views[0], both).chunk(2)
            return h_1, h_2
        h_1, h_2 = encoder(*views[0]).chunk(2) if len(views) == 1 else (encoder(*v) for v in views)
        if self.nodes is None and self.share.world == 1:
            return h_1, h_2
        own = self.share.rows(self.num_nodes)
        rows = own if self.nodes is None else self.nodes[own]
        return h_1[rows], h_2[rows]


def steps_of(num_nodes: int, batch_nodes: int) -> int:
    """Returns the number of batches of `batch_nodes`, or fewer, in an epoch; 0 takes all nodes."""
    return 1 if batch_nodes == 0 else -(-num_nodes // batch_nodes)


def node_batches(num_nodes: int, steps: int, number: int, seed: int) -> Sequence[Tensor]:
    """Returns the nodes of each batch of an epoch, on the host: all nodes in a random order."""
    order = torch.randperm(num_nodes, generator=generator(seed, "batches", number))
    # Equal sizes: a last batch of few nodes would have few negatives.
    return order.tensor_split(steps)


@dataclass(frozen=True)
class FullGraph:
    """Every batch sees the whole graph; the loss is taken over all nodes or `batch_nodes` of them.

    An epoch visits every node once, in a random order; it is one step where all nodes make one
    batch, as on the paper's citation graphs.

    Differs from the paper: the L-hop subgraphs of a batch share one perturbation of the graph
    around them, where the paper draws one per subgraph. Each subgraph's own law is the same, and
    the encoder runs once per view instead of once per node.

    In a group of processes each encodes the same views of the whole graph and takes its share of
    the rows: the loss is divided among them, the encoder is not. `graphcl.training.DividedGraph`
    divides both, for encoders and perturbations that allow it.

    Args:
        x: features, on the device that trains.
        adjacency: likewise.
        batch_nodes: M, the nodes per step; 0 takes all.
    """

    x: Features
    adjacency: Adjacency
    batch_nodes: int = 0

    def __post_init__(self) -> None:
        check_setting("FullGraph", "batch_nodes", self.batch_nodes)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return steps_of(self.adjacency.num_nodes, self.batch_nodes)

    @property
    def constant(self) -> bool:
        """Whether every batch is the whole graph."""
        return self.steps_per_epoch == 1

    @cached_property
    def copies(self) -> tuple[Features, Adjacency]:
        """The graph twice, side by side, with no edge between the copies."""
        x = torch.cat([self.x, self.x]) if isinstance(self.x, Tensor) else self.x.twice()
        return x, self.adjacency.twice()

    def epoch(
        self,
        number: int,
        seed: int,
        *,
        perturbation: Perturbation,
        first: int = 0,
        share: Share = ALONE,
    ) -> Iterator[WholeBatch]:
        """Yields the batches of one epoch from the `first` on; the same for number and seed."""
        whole = WholeBatch(self, perturbation, share=share)
        if self.steps_per_epoch == 1:
            yield from [whole][first:]
            return
        for nodes in node_batches(self.adjacency.num_nodes, self.steps_per_epoch, number, seed)[
            first:
        ]:
            yield replace(whole, nodes=nodes.to(self.adjacency.indptr.device))


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
        self,
        number: int,
        seed: int,
        *,
        perturbation: Perturbation,
        first: int = 0,
        share: Share = ALONE,
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
