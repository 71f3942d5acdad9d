"""Batches from graphs that several processes encode together, each its own rows of every layer.

A process holds its rows of the features, of the adjacency and of the activations. Each layer
gathers what it pools, once forward and once backward (`graphcl.kernels.adjacency_rows`). All
processes draw the views that one process would draw, and each keeps what belongs to its rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from graphcl.distributed import ALONE, Share, gather_tables
from graphcl.encoders import LayeredEncoder
from graphcl.errors import require
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import NODE
from graphcl.graphs.scaling import Scaling
from graphcl.graphs.tensors import feature_tensor
from graphcl.kernels.adjacency import Adjacency, IntArray
from graphcl.kernels.adjacency_rows import AdjacencyRows, BatchRows
from graphcl.kernels.features import Features
from graphcl.settings import check_setting
from graphcl.training.batches import node_batches, steps_of
from graphcl.views import Drop, PartOfDraws, Perturbation, drop_edges, drop_features


def can_divide(encoder: nn.Module, perturbation: Perturbation) -> bool:
    """Returns whether a process can encode some nodes of a view without the others' layers.

    The encoder has to state its layers and be nothing else. Its normalisations have to treat each
    row by itself, which batch normalisation does not. The perturbation has to be the paper's, whose
    draws for some rows are known.
    """
    if not isinstance(encoder, LayeredEncoder) or type(perturbation) is not Drop:
        return False
    by_rows = all(layer.by_rows for layer in encoder.statement())
    return by_rows and type(encoder).forward is LayeredEncoder.forward


@dataclass(frozen=True)
class Division:
    """The nodes of a table, divided among processes as `Share.rows` does, in two copies.

    A gathered table has the parts of the processes in order. A part is padded to one height in each
    copy, because `all_gather` takes tables of one size.

    Attributes:
        num_nodes: the rows of one copy, over all processes.
        share: this process's.
    """

    num_nodes: int
    share: Share

    @property
    def own(self) -> slice:
        """The nodes of this process."""
        return self.share.rows(self.num_nodes)

    @property
    def height(self) -> int:
        """How many nodes the largest part has."""
        return -(-self.num_nodes // self.share.world)

    @property
    def places(self) -> int:
        """How many rows a gathered table has."""
        return self.share.world * 2 * self.height

    @cached_property
    def _starts(self) -> IntArray:
        world = range(self.share.world)
        return np.array([self.share.rows(self.num_nodes, rank).start for rank in world])

    def owner(self, nodes: IntArray) -> IntArray:
        """Returns the rank of the process that has each node."""
        found: IntArray = np.searchsorted(self._starts, nodes, side="right") - 1
        return found

    def place(self, nodes: IntArray) -> IntArray:
        """Returns the row of each node's first copy in a gathered table."""
        owner = self.owner(nodes)
        found: IntArray = nodes + (owner * 2 * self.height - self._starts[owner])
        return found

    def gather(self, rows: Tensor) -> Tensor:
        """Returns all rows, ``[places, d]``; each process passes its own, of both copies."""
        return _gather_copies(rows.view(2, -1, rows.shape[1]), self.height, self.share)


def _gather_copies(copies: Tensor, height: int, share: Share) -> Tensor:
    """Gathers ``[2, rows, d]`` of every process, padded to `height` rows; returns all, flat."""
    padded = copies
    if copies.shape[1] < height:
        padded = copies.new_zeros(2, height, copies.shape[2])
        padded[:, : copies.shape[1]] = copies
    return gather_tables(padded, share).flatten(0, 2)


class _Route(NamedTuple):
    """Where the rows of a batch of some nodes are, and where they go.

    Attributes:
        height: how many nodes of the batch a process has at most.
        held: the own rows that are in the batch, of both copies.
        wanted: the places of this process's share of the batch, among the rows that all hold.
        batch: how the batch is divided.
        returned: the places of `held` in a gathered table of the batch.
        rows: the batch among the places of all nodes.
    """

    height: int
    held: Tensor
    wanted: Tensor
    batch: Division
    returned: Tensor
    rows: BatchRows

    @classmethod
    def of(cls, nodes: IntArray, division: Division, device: torch.device) -> Self:
        share, batch = division.share, Division(len(nodes), division.share)
        owner = division.owner(nodes)
        counts = np.bincount(owner, minlength=share.world)
        # Each process holds its nodes of the batch in the order of the batch.
        order = np.argsort(owner, kind="stable")
        number = np.empty_like(order)
        number[order] = np.arange(len(nodes)) - np.repeat(np.cumsum(counts) - counts, counts)
        height = int(counts.max())
        row = owner * 2 * height + number
        mine = np.flatnonzero(owner == share.rank)
        held, own = nodes[mine] - division.own.start, division.own.stop - division.own.start
        places = division.place(nodes)

        def index(array: Any) -> Tensor:
            return torch.from_numpy(array).to(device)

        def both(first: IntArray, further: int) -> IntArray:
            return np.concatenate([first, first + further])

        rows = np.full((2, division.places), -1)
        rows[:, both(places, division.height)] = both(row, height), np.tile(np.arange(len(row)), 2)

        def gather(table: Tensor) -> Tensor:
            return _gather_copies(_copies(table), height, share)

        return cls(
            height,
            index(both(held, own)),
            index(both(row[batch.own], height)),
            batch,
            index(both(batch.place(mine), batch.height)),
            BatchRows(gather, *index(rows)),
        )


def _copies(table: Tensor) -> Tensor:
    return table.view(2, len(table) // 2, table.shape[1])


class _Exchange(torch.autograd.Function):
    """From own rows in a batch to this process's share of it; backward, the way back."""

    @staticmethod
    def forward(ctx: Any, held: Tensor, route: _Route) -> Tensor:
        ctx.route = route
        return route.rows.gather(held)[route.wanted]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        route: _Route = ctx.route
        return route.batch.gather(grad)[route.returned], None


@dataclass(frozen=True)
class DividedBatch:
    """A minibatch B of nodes in a graph whose rows are divided among processes.

    Attributes:
        graph: this process's part of the graph.
        perturbation: what the views are drawn from.
        nodes: the nodes of B, on the host, or None where B is every node.
    """

    graph: "DividedGraph"
    perturbation: Drop
    nodes: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        """M, the size of the minibatch over all processes."""
        return self.graph.division.num_nodes if self.nodes is None else len(self.nodes)

    @property
    def recorded_as(self) -> None:
        """A recorded step cannot wait for other processes."""

    def views(self, generator: torch.Generator) -> tuple[Features, Adjacency]:
        """Draws both views as one process would and returns own rows of them, side by side."""
        graph, perturbation = self.graph, self.perturbation
        return (
            drop_features(graph.x, perturbation.feature_drop, generator, part=graph.draws),
            drop_edges(graph.adjacency, perturbation.edge_drop, generator),
        )

    def encode(
        self, encoder: nn.Module, views: tuple[Features, Adjacency]
    ) -> tuple[Tensor, Tensor]:
        """Returns the embeddings of this process's share of B in view 1 and in view 2."""
        x, adjacency = views
        if self.nodes is None:
            h_1, h_2 = encoder(x, adjacency).chunk(2)
            return h_1, h_2
        route = _Route.of(self.nodes.numpy(), self.graph.division, adjacency.weight.device)
        held = cast("LayeredEncoder", encoder).on_rows(
            x, replace(cast("AdjacencyRows", adjacency), batch=route.rows), route.held
        )
        h_1, h_2 = _Exchange.apply(held, route).chunk(2)  # type: ignore[no-untyped-call]
        return h_1, h_2


@dataclass(frozen=True)
class DividedGraph:
    """`FullGraph` for one process of a group: it encodes its rows of every layer, and no others.

    Batches, views and loss are those of `FullGraph` in one process, to the order of sums. A process
    holds its rows of features, adjacency and activations, and in each layer, for a while, a slab of
    all rows. It sends its rows of each layer once forward and once backward. Every process makes
    all draws and keeps those of its rows, so drawing is not divided.

    Args:
        x: own rows of the features, of both copies, on the device that trains.
        adjacency: own rows of the adjacency, of both copies, likewise.
        draws: which draws for the features of both copies are those of `x`.
        division: which rows those are.
        batch_nodes: M, the nodes per step over all processes; 0 takes all.
    """

    x: Features
    adjacency: AdjacencyRows
    draws: PartOfDraws
    division: Division
    batch_nodes: int = 0

    @classmethod
    def of(
        cls,
        graph: Graph,
        *,
        share: Share,
        device: torch.device,
        feature_scaling: Scaling = "none",
        batch_nodes: int = 0,
    ) -> Self:
        """Builds this process's part; the graph may be mapped, and only own rows are copied."""
        division = Division(graph.num_nodes, share)
        own = division.own
        x = feature_tensor(graph, device=device, feature_scaling=feature_scaling, rows=own)
        if isinstance(x, Tensor):
            copies: Features = torch.cat([x, x])
            starts = [row * x.shape[1] for row in (own.start, own.stop, graph.num_nodes)]
        else:
            copies = x.twice()
            pointers: Any = graph.x.indptr
            starts = [int(pointers[row]) for row in (own.start, own.stop, graph.num_nodes)]
        start, stop, each = starts
        adjacency = AdjacencyRows.two_copies(
            graph.indptr,
            graph.indices,
            graph.edge_weight,
            rows=own,
            gathering=division,
            device=device,
        )
        draws = PartOfDraws(2 * each, (slice(start, stop), slice(each + start, each + stop)))
        return cls(copies, adjacency, draws, division, batch_nodes)

    def __post_init__(self) -> None:
        check_setting("DividedGraph", "batch_nodes", self.batch_nodes)
        division = self.division
        enough = division.num_nodes >= division.share.world
        say = f"as many as the {division.share.world} processes"
        require(enough, "DividedGraph", "the nodes", say, division.num_nodes)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return steps_of(self.division.num_nodes, self.batch_nodes)

    @property
    def constant(self) -> bool:
        """Whether every batch is the whole graph."""
        return self.steps_per_epoch == 1

    def epoch(
        self,
        number: int,
        seed: int,
        *,
        perturbation: Perturbation,
        first: int = 0,
        share: Share = ALONE,
    ) -> Iterator[DividedBatch]:
        """Yields the batches of one epoch from the `first` on; the same for number and seed."""
        same = share == self.division.share
        require(same, "DividedGraph", "share", f"{self.division.share}, as it was built for", share)
        drops = type(perturbation) is Drop  # one derived from it may draw otherwise
        require(drops, "DividedGraph", "perturbation", "Drop", type(perturbation).__name__)
        whole = DividedBatch(self, cast("Drop", perturbation))
        if self.constant:
            yield from [whole][first:]
            return
        sizes = {NODE: self.division.num_nodes}
        for nodes in node_batches(sizes, "each", self.batch_nodes, number, seed)[first:]:
            yield DividedBatch(self, whole.perturbation, nodes[NODE])
