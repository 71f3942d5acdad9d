"""Batches from a typed graph that is encoded whole.

What NT-Xent is taken over is a choice of the batches: nodes of one type in each batch (``each``),
of all types together (``all``), or of chosen types together. The loss itself is the paper's. Nodes
of other types are negatives that are told apart by their type alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from graphcl.distributed import ALONE, Share
from graphcl.encoders.typed import TypedEncoder
from graphcl.errors import ParameterError, suggestion
from graphcl.graphs.typed import Key
from graphcl.kernels.features import Features
from graphcl.kernels.relation import RelationAdjacency
from graphcl.seeding import generator
from graphcl.settings import check_setting
from graphcl.training.full_graph import steps_of

View = tuple[Mapping[str, Features], Mapping[Key, RelationAdjacency]]


@dataclass(frozen=True)
class TypedBatch:
    """A minibatch B of nodes of one type or several, in the whole graph.

    Attributes:
        graph: that graph.
        perturbation: what the views are drawn from; called with features and relations.
        rows: the nodes of B, by type.
        share: of B, the rows that are this process's own.
    """

    graph: "TypedFullGraph"
    perturbation: Any
    rows: Mapping[str, Tensor]
    share: Share = ALONE

    @property
    def num_nodes(self) -> int:
        """M, the size of the minibatch over all processes."""
        return sum(map(len, self.rows.values()))

    def views(self, generator: torch.Generator) -> list[View]:
        """Draws both views."""
        return [self.perturbation(self.graph.x, self.graph.relations, generator) for _ in range(2)]

    def encode(self, encoder: nn.Module, views: list[View]) -> tuple[Tensor, Tensor]:
        """Returns the embeddings of B, or this process's share, in view 1 and in view 2."""
        assert isinstance(encoder, TypedEncoder)
        own = self.share.rows(self.num_nodes)
        found = []
        for view in views:
            rows = encoder.on_rows(*view, self.rows)
            found.append(torch.cat([rows[name] for name in self.rows])[own])
        return found[0], found[1]


@dataclass(frozen=True)
class TypedFullGraph:
    """Every batch sees the whole graph; an epoch visits every contrasted node once.

    In a group of processes each encodes the same views of the whole graph and takes its share of
    the rows: the loss is divided among them, the encoder is not.

    Args:
        x: features of each type, on the device that trains.
        relations: likewise the edges.
        sizes: the number of nodes of each type.
        batch_nodes: M, the nodes per step; 0 takes all.
        contrast: ``each``, ``all``, or names of types, separated by commas.
    """

    x: Mapping[str, Features]
    relations: Mapping[Key, RelationAdjacency]
    sizes: Mapping[str, int]
    batch_nodes: int = 0
    contrast: str = "each"

    def __post_init__(self) -> None:
        check_setting("TypedFullGraph", "batch_nodes", self.batch_nodes)
        contrasted_types(self.contrast, list(self.sizes))

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return batches_in(self.sizes, self.contrast, self.batch_nodes)

    @property
    def constant(self) -> bool:
        """Whether every batch is the same tensors; a step is not recorded on a GPU."""
        return False

    def epoch(
        self,
        number: int,
        seed: int,
        *,
        perturbation: Any,
        first: int = 0,
        share: Share = ALONE,
    ) -> Iterator[TypedBatch]:
        """Yields the batches of one epoch from the `first` on; the same for number and seed."""
        table = next(iter(self.x.values()))
        device = table.device if isinstance(table, Tensor) else table.values.device
        for rows in typed_batches(self.sizes, self.contrast, self.batch_nodes, number, seed)[
            first:
        ]:
            here = {name: chosen.to(device) for name, chosen in rows.items()}
            yield TypedBatch(self, perturbation, here, share)


def contrasted_types(contrast: str, types: Sequence[str]) -> list[str]:
    """Returns the types whose nodes are contrasted.

    Raises:
        ParameterError: a name is unknown.
    """
    if contrast in ("all", "each"):
        return list(types)
    names = [name.strip() for name in contrast.split(",")]
    for name in names:
        if name not in types:
            known = ", ".join(types)
            raise ParameterError(
                f"contrast: must be 'each', 'all' or names of types ({known}); got {name!r}"
                f"{suggestion(name, types)}"
            )
    return list(dict.fromkeys(names))


def batches_in(sizes: Mapping[str, int], contrast: str, batch_nodes: int) -> int:
    """Returns the number of batches in an epoch."""
    chosen = [sizes[name] for name in contrasted_types(contrast, list(sizes))]
    if contrast != "each":
        return steps_of(sum(chosen), batch_nodes)
    return sum(steps_of(size, batch_nodes) for size in chosen)


def typed_batches(
    sizes: Mapping[str, int], contrast: str, batch_nodes: int, number: int, seed: int
) -> list[dict[str, Tensor]]:
    """Returns the nodes of each batch of an epoch by type, on the host, in a random order."""
    random = generator(seed, "batches", number)
    names = contrasted_types(contrast, list(sizes))
    if contrast == "each":
        found = []
        for name in names:
            order = torch.randperm(sizes[name], generator=random)
            parts = order.tensor_split(steps_of(sizes[name], batch_nodes))
            found += [{name: part} for part in parts]
        mixed = torch.randperm(len(found), generator=random).tolist()
        return [found[place] for place in mixed]
    ends = torch.tensor([sizes[name] for name in names]).cumsum(0)
    order = torch.randperm(int(ends[-1]), generator=random)
    # Equal sizes: a last batch of few nodes would have few negatives.
    return [
        _by_type(part, names, ends)
        for part in order.tensor_split(steps_of(len(order), batch_nodes))
    ]


def _by_type(nodes: Tensor, names: Sequence[str], ends: Tensor) -> dict[str, Tensor]:
    """Splits numbers over all types into numbers within each; a type without any is left out."""
    kinds = torch.bucketize(nodes, ends, right=True)
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    parts = {name: nodes[kinds == k] - starts[k] for k, name in enumerate(names)}
    return {name: part for name, part in parts.items() if len(part)}
