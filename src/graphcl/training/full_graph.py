"""Batches from graphs that are encoded whole: one of them, or several.

Several processes can encode a graph together, each its own rows of every layer. A process holds its
rows of the features, of the adjacency and of the activations, and in each layer, for a while, a
slab of all rows. Each layer gathers what it pools, once forward and once backward
(`graphcl.kernels.adjacency_rows`). All processes draw the views that one process would draw, and
each keeps what belongs to its rows, so drawing is not divided.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from graphcl.distributed import ALONE, Share, gather_tables
from graphcl.encoders import LayeredEncoder
from graphcl.encoders.layer import as_tables
from graphcl.errors import PartError, demand, require
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import NODE
from graphcl.graphs.scaling import TableScaling
from graphcl.graphs.tensors import Prepared, feature_tensor
from graphcl.kernels.adjacency import IntArray
from graphcl.kernels.adjacency_rows import AdjacencyRows, BatchRows
from graphcl.kernels.features import Features
from graphcl.seeding import derive, generator
from graphcl.settings import check_setting
from graphcl.training.loop import Batch, BatchSource, batches_in, contrasted_types, node_batches
from graphcl.views import Drop, PartOfDraws, Perturbation

View = tuple[Any, Any]  # what a perturbation returns


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
        return np.asarray(np.searchsorted(self._starts, nodes, side="right") - 1)

    def place(self, nodes: IntArray) -> IntArray:
        """Returns the row of each node's first copy in a gathered table."""
        owner = self.owner(nodes)
        return np.asarray(nodes + (owner * 2 * self.height - self._starts[owner]))

    def gather(self, rows: Tensor) -> Tensor:
        """Returns all rows, ``[places, d]``; each process passes its own, of both copies."""
        return _gather_copies(rows, self.height, self.share)


def _gather_copies(rows: Tensor, height: int, share: Share) -> Tensor:
    """Gathers both copies of some rows of every process, each padded to `height`; returns all."""
    padded = copies = rows.view(2, len(rows) // 2, rows.shape[1])
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

        gather = partial(_gather_copies, height=height, share=share)
        return cls(
            index(both(held, own)),
            index(both(row[batch.own], height)),
            batch,
            index(both(batch.place(mine), batch.height)),
            BatchRows(gather, *index(rows)),
        )


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


@dataclass(frozen=True)
class WholeBatch:
    """A minibatch B of nodes in the graph that holds their L-hop subgraphs.

    Where every entry is drawn by itself, as the paper's perturbation does, perturbing two copies
    side by side draws both views at once, and the encoder runs once on both: half the calls and
    larger products than one view after the other. Any other perturbation is called twice.

    Attributes:
        graph: that graph.
        perturbation: what the views are drawn from.
        nodes: the rows of B in one copy, by type; None where B is every node of the only type.
        share: of B, the rows that are this process's own.
    """

    graph: "FullGraph"
    perturbation: Perturbation
    nodes: Mapping[str, Tensor] | None = None
    share: Share = ALONE

    @property
    def num_nodes(self) -> int:
        """M, the size of the minibatch over all processes."""
        if self.nodes is None:
            return sum(self.graph.sizes.values())
        return sum(map(len, self.nodes.values()))

    @property
    def recorded_as(self) -> Hashable:
        """The graph, if B is every node of it."""
        return id(self.graph) if self.nodes is None else None

    def views(self, generator: torch.Generator) -> list[View]:
        """Draws both views: as one view of the two copies where that is the same."""
        if self.graph.draws is not None:
            drop = cast("Drop", self.perturbation)
            return [drop(*self.graph.copies, generator, part=self.graph.draws)]
        if getattr(self.perturbation, "entrywise", False):
            return [self.perturbation(*self.graph.copies, generator)]
        given = self.graph.x, self.graph.adjacency
        views = [self.perturbation(*given, generator) for _ in range(2)]
        return [(x, adjacency) for x, adjacency in views]  # or it is no view, and said here

    def encode(self, encoder: nn.Module, views: list[View]) -> tuple[Tensor, Tensor]:
        """Returns the embeddings of B, or this process's share, in view 1 and in view 2."""
        found = [self._of_batch(encoder, view, copies=len(views) == 1) for view in views]
        if len(found) == 1:
            halves = [table.chunk(2) for table in found[0]]
            found = [[table for table, _ in halves], [table for _, table in halves]]
        h_1, h_2 = (tables[0] if len(tables) == 1 else torch.cat(tables) for tables in found)
        if self.share.world == 1 or self.graph.division is not None:
            return h_1, h_2
        own = self.share.rows(self.num_nodes)
        return h_1[own], h_2[own]

    def _of_batch(self, encoder: nn.Module, view: View, *, copies: bool) -> list[Tensor]:
        """Returns the rows of B in a view, one table for each type; of `copies`, both rows."""
        if self.nodes is None:
            return _tables(_encoded(encoder, view))
        rows, division = self.nodes, self.graph.division
        if division is not None:
            (some,) = rows.values()
            return [encode_batch(encoder, *view, some, division)]
        if copies:
            sizes = self.graph.sizes
            rows = {name: torch.cat([some, some + sizes[name]]) for name, some in rows.items()}
        if isinstance(encoder, LayeredEncoder):
            plain = not isinstance(view[0], Mapping)
            return _tables(encoder.on_rows(*view, *rows.values() if plain else [rows]))
        (some,) = rows.values()
        return [_encoded(encoder, view)[some]]


def _encoded(encoder: nn.Module, view: View) -> Any:
    """Returns what the encoder makes of a view; of a plain graph, a row for each node."""
    found, rows = encoder(*view), getattr(view[0], "shape", (None,))[0]
    demand(
        rows is None or not isinstance(found, Tensor) or len(found) == rows,
        f"the encoder {type(encoder).__name__} returned {len(found):,} rows for {rows} nodes of "
        "the views",
        PartError,
    )
    return found


def _tables(h: Tensor | Mapping[str, Tensor]) -> list[Tensor]:
    return list(h.values()) if isinstance(h, Mapping) else [h]


@dataclass(frozen=True)
class FullGraph:
    """Every batch sees the whole graph; the loss is taken over all nodes or `batch_nodes` of them.

    An epoch visits every contrasted node once, in a random order; it is one step where all nodes
    make one batch, as on the paper's citation graphs.

    Differs from the paper: the L-hop subgraphs of a batch share one perturbation of the graph
    around them, where the paper draws one per subgraph. Each subgraph's own law is the same, and
    the encoder runs once per view instead of once per node.

    In a group of processes each encodes the same views of the whole graph and takes its share of
    the rows: the loss is divided among them, the encoder is not. With a `division`, both are: each
    process encodes its rows of every layer, and no others (`graphcl.training.full_graph`). The
    batches, views and loss are those of one process, to the order of sums.

    Args:
        x: features, on the device that trains; of a graph that is not plain, by type. With a
            division, own rows of both copies.
        adjacency: likewise the edges, or those of each relation.
        batch_nodes: M, the nodes per step over all processes; 0 takes all.
        contrast: ``each``, ``all``, or names of types, separated by commas.
        division: which rows are those of this process; None has all.
        draws: which draws for the features of both copies are those of own rows.
    """

    x: Any
    adjacency: Any
    batch_nodes: int = 0
    contrast: str = "each"
    division: Division | None = None
    draws: PartOfDraws | None = None

    @classmethod
    def of(
        cls,
        prepared: Prepared,
        *,
        device: torch.device,
        divided: Share = ALONE,
        batch_nodes: int = 0,
        contrast: str = "each",
    ) -> Self:
        """Builds a source from a graph; a plain one can be `divided` among processes."""
        if divided.world == 1:
            return cls(*prepared.tensors(device), batch_nodes, contrast)
        division = Division(prepared.graph.num_nodes, divided)
        scaling = prepared.scaling.nodes[NODE]
        x, adjacency, draws = own_rows(
            prepared.graph, division, device=device, feature_scaling=scaling
        )
        return cls(x, adjacency, batch_nodes, contrast, division, draws)

    def __post_init__(self) -> None:
        check_setting("FullGraph", "batch_nodes", self.batch_nodes)
        if self.division is not None:
            size, world = self.division.num_nodes, self.division.share.world
            say = f"as many as the {world} processes"
            require(size >= world, "FullGraph", "the nodes", say, size)
        contrasted_types(self.contrast, list(self.sizes))

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The number of nodes of each type."""
        if self.division is not None:
            return {NODE: self.division.num_nodes}
        tables, _ = as_tables(self.x, self.adjacency)
        return {name: int(table.shape[0]) for name, table in tables.items()}

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return batches_in(self.sizes, self.contrast, self.batch_nodes)

    @property
    def constant(self) -> bool:
        """Whether every batch is the whole graph."""
        return self.steps_per_epoch == 1 and len(self.sizes) == 1

    @cached_property
    def copies(self) -> View:
        """The graph twice, side by side, with no edge between the copies."""
        if self.division is not None:
            return self.x, self.adjacency
        if not isinstance(self.x, Mapping):
            return _twice(self.x), self.adjacency.twice()
        relations = {key: one.twice() for key, one in self.adjacency.items()}
        return {name: _twice(table) for name, table in self.x.items()}, relations

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
        if self.division is not None:
            own = self.division.share
            require(share == own, "FullGraph", "share", f"{own}, as it was built for", share)
            drops = type(perturbation) is Drop  # one derived from it may draw otherwise
            require(drops, "FullGraph", "perturbation", "Drop", type(perturbation).__name__)
        if self.constant:
            yield from [WholeBatch(self, perturbation, share=share)][first:]
            return
        table = next(iter(as_tables(self.x, self.adjacency)[0].values()))
        device = table.device if isinstance(table, Tensor) else table.values.device
        if self.division is not None:
            device = torch.device("cpu")  # where rows are looked up
        batches = node_batches(self.sizes, self.contrast, self.batch_nodes, number, seed)
        for rows in batches[first:]:
            here = {name: some.to(device) for name, some in rows.items()}
            yield WholeBatch(self, perturbation, here, share)


def _twice(x: Any) -> Any:
    return torch.cat([x, x]) if isinstance(x, Tensor) else x.twice()


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
