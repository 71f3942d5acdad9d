"""Batches from a typed graph in parts: sampled subgraphs whose nodes lie with several processes.

The batches are those of `TypedSampledGraph` on the whole graph in the same numbering, but for the
order of their rows; see `graphcl.training.parted`. In a step of a process children are drawn hop by
hop, along each direction of each relation (`graphcl.partitioned.typed_topology`); then the features
of all nodes of the trees are fetched, each row once; then both views are computed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphcl.distributed import ALONE, Share
from graphcl.errors import require
from graphcl.partitioned.rows import FeatureRows
from graphcl.partitioned.typed_topology import TypedTopology
from graphcl.partitioned.wire import Wire
from graphcl.seeding import derive
from graphcl.store.typed_parts import TypedPart
from graphcl.training.batches import batches_in, contrasted_types, node_batches
from graphcl.training.loop import EpochMetrics
from graphcl.training.parted import Needed, Steps, in_windows, with_traffic
from graphcl.training.sampled import require_drop, with_seeds
from graphcl.training.typed_sampled import TypedSampledBatch
from graphcl.typed_drawing import Drawn, SampledDirection, keys_of
from graphcl.typed_sampling import Below, Inputs, Level, top_level
from graphcl.views import Drop

IntArray = npt.NDArray[np.int64]
Seeds = Mapping[str, Tensor]


@dataclass(frozen=True)
class _Trees:
    """The subgraphs of a process's seed nodes, before their features are known.

    Attributes:
        levels: the seed nodes, their children, and so on, without the deepest level.
        drawn: for each level and type, what was drawn in each direction, and where it is below.
        distinct: the numbers of all nodes of each type, ascending.
    """

    levels: list[Level]
    drawn: list[dict[str, list[tuple[SampledDirection, Drawn, slice]]]]
    distinct: dict[str, IntArray]


@dataclass(frozen=True, eq=False)
class TypedPartedGraph:
    """Each step sees `batch_nodes` nodes of all parts, and a sampled tree around each of them.

    Args:
        part: this process's part.
        topology: the edges.
        rows: the features of each type.
        wire: what both use.
        batch_nodes: M, the nodes per step, over all processes.
        layers: L, the hops.
        contrast: ``each``, ``all``, or names of types, separated by commas.
        replays: draw the trees of coming steps ahead, if there is a cache to fill.
        steps: counts them.
    """

    part: TypedPart
    topology: TypedTopology
    rows: Mapping[str, FeatureRows]
    wire: Wire
    batch_nodes: int
    layers: int
    contrast: str = "each"
    replays: bool = True
    steps: Steps = field(default_factory=Steps)

    def __post_init__(self) -> None:
        count = self.batch_nodes
        require(count >= 1, "TypedPartedGraph", "batch_nodes", "at least 1", count)
        contrasted_types(self.contrast, list(self.sizes))

    @property
    def sizes(self) -> dict[str, int]:
        """The number of nodes of each type, of all parts."""
        return {name: one.num_nodes for name, one in self.part.parts.types.items()}

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return batches_in(self.sizes, self.contrast, self.batch_nodes)

    @property
    def constant(self) -> bool:
        """Every batch is another sample."""
        return False

    def epoch(
        self,
        number: int,
        seed: int,
        *,
        perturbation: Any,
        first: int = 0,
        share: Share = ALONE,
    ) -> Iterator[TypedSampledBatch]:
        """Yields the batches of one epoch from the `first` on; the same for number and seed.

        Raises:
            ParameterError: the perturbation is not the paper's, which alone is drawn on trees.
        """
        drop = require_drop(perturbation, Drop)
        parts = node_batches(self.sizes, self.contrast, self.batch_nodes, number, seed)
        steps = with_seeds(parts, number, seed)[first:]
        yield from in_windows(steps, partial(self._batch, drop, share))

    def measured(self, metrics: EpochMetrics) -> EpochMetrics:
        """Returns an epoch's metrics with what all processes sent since the last call."""
        return with_traffic(metrics, self.wire, list(self.rows.values()), self.steps)

    def _batch(
        self,
        perturbation: Drop,
        share: Share,
        seeds: Seeds,
        seed: int,
        ahead: Sequence[tuple[Seeds, int]],
    ) -> TypedSampledBatch:
        capacity = sum(one.capacity for one in self.rows.values())
        if ahead and self.replays and self.wire.most(capacity):
            self._keep(perturbation, share, ahead)
        trees = self._trees(perturbation, share, seeds, seed)
        x = {
            name: rows.fetch(trees.distinct[name]).rows(slice(None))
            for name, rows in self.rows.items()
        }
        known = {name: torch.from_numpy(one) for name, one in trees.distinct.items()}
        self.steps.done += 1

        def find(name: str, nodes: Tensor) -> Tensor:
            return torch.searchsorted(known[name], nodes)

        for level, drawn in zip(trees.levels, trees.drawn, strict=True):
            for name, table in level.items():
                directions = [direction for direction, _, _ in drawn[name]]
                tree = derive(seed, "tree")
                inputs = Inputs(name, table, x, directions, perturbation, tree, find)
                for direction, found, rows in drawn[name]:
                    inputs.put(direction, found, rows)
        return TypedSampledBatch(trees.levels, sum(map(len, seeds.values())))

    def _trees(self, perturbation: Drop, share: Share, seeds: Seeds, seed: int) -> _Trees:
        """Samples the subgraphs of this process's share; each has those of its own part first."""
        types, tree = self.part.parts.types, derive(seed, "tree")
        owners = np.concatenate([types[name].owner(nodes.numpy()) for name, nodes in seeds.items()])
        by_owner = torch.from_numpy(np.argsort(owners, kind="stable"))
        own = by_owner[share.rows(len(owners))].sort().values  # places in the batch
        levels, every = [top_level(seeds, own)], []
        for hop in range(self.layers):
            below: dict[str, Below] = {}
            drawn: dict[str, list[tuple[SampledDirection, Drawn, slice]]] = {}
            for name, table in levels[-1].items():
                drawn[name] = []
                for number, direction in enumerate(self.topology.directions.get(name, ())):
                    channel = direction.channel
                    keys = keys_of(tree, hop, name, number, channel)
                    rate = perturbation.edge_rate(channel.relation)
                    found = self.topology.draw(direction, table, keys, edge_drop=rate)
                    children = below.setdefault(channel.sender, Below())
                    rows = children.add(table, found.slots.nodes, direction.fan_out)
                    drawn[name].append((direction, found, rows))
            every.append(drawn)
            levels.append({name: one.joined() for name, one in below.items()})
        nodes: dict[str, list[IntArray]] = {name: [np.empty(0, np.int64)] for name in types}
        for level in levels:
            for name, table in level.items():
                nodes[name].append(table.nodes.numpy())
        distinct = {name: np.unique(np.concatenate(some)) for name, some in nodes.items()}
        return _Trees(levels[: self.layers], every, distinct)

    def _keep(self, perturbation: Drop, share: Share, steps: Sequence[tuple[Seeds, int]]) -> None:
        """Fills the caches with the rows of other parts that the steps need most."""
        needed = {name: Needed(self.part.nodes[name].nodes) for name in self.rows}
        for seeds, seed in steps:
            distinct = self._trees(perturbation, share, seeds, seed).distinct
            for name, one in needed.items():
                one.add(distinct[name])
        for name, rows in self.rows.items():
            rows.keep(needed[name].most(rows.capacity))
