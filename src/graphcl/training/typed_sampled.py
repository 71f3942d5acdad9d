"""Batches from a typed graph that is too large to encode whole: sampled L-hop subgraphs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from graphcl.distributed import ALONE, Share
from graphcl.encoders import LayeredEncoder
from graphcl.errors import require
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import Key
from graphcl.graphs.schema import Direction, Schema
from graphcl.graphs.typed_tensors import Prepared, typed_tensors
from graphcl.kernels.buffers import retry_smaller
from graphcl.seeding import derive
from graphcl.training.batches import batches_in, contrasted_types, node_batches
from graphcl.training.modes import SAMPLED_BATCH_NODES
from graphcl.training.sampled import one_ahead, require_drop, with_seeds
from graphcl.training.typed_levels import encode_levels
from graphcl.typed_drawing import SampledDirection
from graphcl.typed_sampling import Level, sample_levels
from graphcl.views import Drop


def fan_outs_of(
    graph: Graph, schema: Schema, fan_out: int, own: Mapping[Key, int] | None = None
) -> dict[Direction, int]:
    """Returns the children that a node has in each direction in which its type receives.

    `fan_out` is what a node has in all directions together. They share it in proportion to their
    mean degrees, each of which counts as at most `fan_out`; each direction has at least one. `own`
    says other numbers for some relations.
    """
    sizes = {name: one.num_nodes for name, one in graph.nodes.items()}
    entries = {key: len(one.indices) for key, one in graph.relations.items()}
    return divide_fan_out(sizes, entries, schema, fan_out, own)


def divide_fan_out(
    sizes: Mapping[str, int],
    entries: Mapping[Key, int],
    schema: Schema,
    fan_out: int,
    own: Mapping[Key, int] | None = None,
) -> dict[Direction, int]:
    """Does as `fan_outs_of` for a graph of these numbers of nodes, and of entries in relations."""
    found: dict[Direction, int] = {}
    for name, size in sizes.items():
        channels = [one for one in schema.into(name) if entries.get(one.relation)]
        degrees = [min(fan_out, entries[one.relation] / size) for one in channels]
        for channel, degree in zip(channels, degrees, strict=True):
            share = round(fan_out * degree / sum(degrees))
            found[channel] = (own or {}).get(channel.relation, max(1, share))
    return found


@dataclass(frozen=True)
class TypedSampledBatch:
    """A minibatch whose subgraphs were sampled, and perturbed twice, while the last one trained.

    Attributes:
        levels: this process's share of the seed nodes, by type, and the trees below them.
        num_nodes: M, the size of the minibatch over all processes.
    """

    levels: list[Level]
    num_nodes: int

    def views(self, generator: torch.Generator) -> list[Level]:  # noqa: ARG002 (drawn ahead)
        """Returns both views."""
        return self.levels

    def encode(self, encoder: nn.Module, views: list[Level]) -> tuple[Tensor, Tensor]:
        """Returns the embeddings of this process's seed nodes in view 1 and in view 2."""
        assert isinstance(encoder, LayeredEncoder)
        both = torch.cat(list(encode_levels(views, encoder).values()), dim=1)
        return both[0], both[1]


@dataclass(frozen=True)
class TypedSampledGraph:
    """Each step sees `batch_nodes` nodes and a sampled tree around each of them.

    In a group of processes each samples and encodes its share of the seed nodes. The draws depend
    on seed, epoch, step and place in the batch alone: the number of processes changes nothing.

    Args:
        x: dense features of each type, float32, on the device that trains.
        directions: for each type, the directions in which it receives.
        sizes: the number of nodes of each type.
        batch_nodes: M, the nodes per step.
        layers: L, the hops.
        replace: whether a neighbour can be drawn twice.
        contrast: ``each``, ``all``, or names of types, separated by commas.
    """

    x: Mapping[str, Tensor]
    directions: Mapping[str, tuple[SampledDirection, ...]]
    sizes: Mapping[str, int]
    batch_nodes: int
    layers: int
    replace: bool = True
    contrast: str = "each"

    @classmethod
    def of(
        cls,
        prepared: Prepared,
        *,
        device: torch.device,
        batch_nodes: int,
        fan_outs: Mapping[Direction, int],
        layers: int,
        replace: bool = True,
        contrast: str = "each",
    ) -> Self:
        """Builds a source from a graph; sparse features are made dense."""
        graph = prepared.graph
        x, relations = typed_tensors(graph, device=device, scaling=prepared.scaling)
        dense = {
            name: one if isinstance(one, Tensor) else one.to_dense() for name, one in x.items()
        }
        directions: dict[str, list[SampledDirection]] = {}
        for channel, fan_out in fan_outs.items():
            weighted = graph.relations[channel.relation].edge_weight is not None
            one = SampledDirection.of(
                channel, relations[channel.relation], fan_out, weighted=weighted, replace=replace
            )
            directions.setdefault(channel.receiver, []).append(one)
        return cls(
            dense,
            {name: tuple(listed) for name, listed in directions.items()},
            {name: one.num_nodes for name, one in graph.nodes.items()},
            batch_nodes or SAMPLED_BATCH_NODES,
            layers,
            replace,
            contrast,
        )

    def __post_init__(self) -> None:
        count = self.batch_nodes
        require(count >= 1, "TypedSampledGraph", "batch_nodes", "at least 1", count)
        contrasted_types(self.contrast, list(self.sizes))

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
        works = [
            partial(self.batch, rows, drop, seed=one, share=share)
            for rows, one in with_seeds(parts, number, seed)
        ][first:]
        on_gpu = next(iter(self.x.values())).is_cuda
        yield from map(retry_smaller, works) if on_gpu else one_ahead(works)

    def batch(
        self,
        rows: Mapping[str, Tensor],
        perturbation: Drop,
        *,
        seed: int,
        share: Share = ALONE,
    ) -> TypedSampledBatch:
        """Samples the subgraphs of a share of some nodes of each type and perturbs them twice."""
        device = next(iter(self.x.values())).device
        total = sum(map(len, rows.values()))
        levels = sample_levels(
            {name: nodes.to(device) for name, nodes in rows.items()},
            self.x,
            self.directions,
            perturbation,
            depth=self.layers,
            replace=self.replace,
            seed=derive(seed, "tree"),
            own=share.rows(total),
        )
        return TypedSampledBatch(levels, total)
