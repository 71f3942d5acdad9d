"""A whole graph that several processes encode together, each its own rows of every layer.

A process holds its rows of the features, of the adjacency and of the activations, and in each
layer, for a while, a slab of all rows. Each layer gathers what it pools, once forward and once
backward (`graphcl.kernels.adjacency_rows`). All processes draw the views that one process would
draw, and each keeps what belongs to its rows, so drawing is not divided. `FullGraph` has the
batches.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from graphcl.distributed import Share, gather_tables
from graphcl.encoders import LayeredEncoder
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import TableScaling
from graphcl.graphs.tensors import feature_tensor
from graphcl.kernels.adjacency import IntArray
from graphcl.kernels.adjacency_rows import AdjacencyRows, BatchRows
from graphcl.kernels.features import Features
from graphcl.views import Drop, PartOfDraws, Perturbation


def can_divide(encoder: nn.Module, perturbation: Perturbation) -> bool:
    """Returns whether a process can encode some nodes of a view without the others' layers.

    The encoder has to state its layers and be nothing else. Its normalisations have to treat each
    row by itself, which batch normalisation does not. The perturbation has to be the paper's, whose
    draws for some rows are known.
    """
    if not isinstance(encoder, LayeredEncoder) or type(perturbation) is not Drop:
        return False
    by_rows = all(layer.by_rows for layer in encoder.layer_specs())
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
        held: the own rows that are in the batch, of both copies.
        wanted: the places of this process's share of the batch, among the rows that all hold.
        batch: how the batch is divided.
        returned: the places of `held` in a gathered table of the batch.
        rows: the batch among the places of all nodes.
    """

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


def own_rows(
    graph: Graph, division: Division, *, device: torch.device, feature_scaling: TableScaling
) -> tuple[Features, AdjacencyRows, PartOfDraws]:
    """Returns own rows of the features and of the adjacency, of both copies of a plain graph.

    The third result says which draws for the features of both copies are those of own rows. The
    graph may be mapped, and only own rows are copied.
    """
    graph.check()
    own = division.own
    x = feature_tensor(graph.x[own], device=device, feature_scaling=feature_scaling)
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
    return copies, adjacency, draws


def encode_batch(
    encoder: nn.Module, x: Features, adjacency: AdjacencyRows, nodes: Tensor, division: Division
) -> Tensor:
    """Returns the embeddings of this process's share of a batch, of both copies.

    `nodes` are on the host.
    """
    route = _Route.of(nodes.numpy(), division, adjacency.weight.device)
    held = cast("LayeredEncoder", encoder).on_rows(
        x, replace(adjacency, batch=route.rows), route.held
    )
    return cast("Tensor", _Exchange.apply(held, route))  # type: ignore[no-untyped-call]
