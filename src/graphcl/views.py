r"""Views: randomly perturbed versions of a graph, :math:`(\tilde X, \tilde A) \sim t(X, A)`.

A perturbation never changes its input. Two calls with one generator give two independent draws.
A perturbation of your own is any object that is called as ``perturbation(x, adjacency, generator)``
and returns a view ``(x, adjacency)``; `Perturbation` is its type. It trains on whole graphs only.
``PERTURBATIONS.register`` makes a factory known by name, for recipes and saved runs; it is called
with ``edge_drop=`` and ``feature_drop=`` of the recipe.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from graphcl.graphs.relation import Key
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.features import Features
from graphcl.settings import check_setting

GPU_CHUNK = 1 << 24  # another value changes the draws of larger tables
CPU_CHUNK = 1 << 18  # 1 MB stays in a core's cache


class Perturbation(Protocol):
    """The type of a perturbation: what draws one view of a graph."""

    def __call__(
        self, x: Features, adjacency: Adjacency, generator: torch.Generator, /
    ) -> tuple[Features, Adjacency]:
        """Draws one view.

        Args:
            x: features: a tensor ``[num_nodes, P]``, or `SparseFeatures`.
            adjacency: the graph. To drop edges, return ``adjacency.with_weight(weight)`` with
                weight 0 for both directions of an edge.
            generator: on the device of `x`; all draws come from it.
        """


def drop_edges(adjacency: Adjacency, edge_drop: float, generator: torch.Generator) -> Adjacency:
    """Returns a copy in which each edge is absent with probability `edge_drop`.

    Both directions of an undirected edge are kept or dropped together, as in the paper.
    """
    if edge_drop == 0:
        return adjacency
    keep = _bernoulli(adjacency.num_edges, 1 - edge_drop, adjacency.weight, generator)
    of_entry = keep if adjacency.edge_ids is None else keep[adjacency.edge_ids]
    return adjacency.with_weight(adjacency.weight * of_entry)


@dataclass(frozen=True)
class PartOfDraws:
    """Which of the draws for a whole table are those of some of its rows.

    Attributes:
        total: the number of draws for the whole table.
        kept: the stretches that belong to the rows, in order.
    """

    total: int
    kept: tuple[slice, ...]


def drop_features(
    x: Features, feature_drop: float, generator: torch.Generator, *, part: PartOfDraws | None = None
) -> Features:
    """Returns a copy in which each feature of each node is zero with probability `feature_drop`.

    The others are scaled by ``1 / (1 - feature_drop)``, as in dropout. Sparse features only need
    draws for their non-zeros, because dropping a zero changes nothing. If `x` is some rows of a
    table, `part` says which, and they get the draws that they would get in the whole table.
    """
    if feature_drop == 0:
        return x
    values = x if isinstance(x, Tensor) else x.values
    if part is None:
        keep = _bernoulli(values.shape, 1 - feature_drop, values, generator)
    else:
        keep = _bernoulli_part(part, 1 - feature_drop, values, generator).view(values.shape)
    dropped = keep.mul_(values).div_(1 - feature_drop)
    return dropped if isinstance(x, Tensor) else x.with_values(dropped)


@dataclass(frozen=True)
class Drop:
    """The paper's t: edges and features dropped together, independently of each other.

    Both directions of an undirected edge are kept or dropped together. Vectors of edges go with
    their edges and are not perturbed otherwise. Sampled training takes the probabilities and draws
    the same perturbation on trees.

    Attributes:
        edge_drop: probability that an edge is absent from a view.
        feature_drop: probability that a feature of a node is zero in a view.
        relations: other edge drops, by relation.
        types: other feature drops, by type of nodes.
    """

    edge_drop: float
    feature_drop: float
    relations: Mapping[Key, float] = field(default_factory=dict)
    types: Mapping[str, float] = field(default_factory=dict)
    # Entries are drawn independently, so one call on two copies of a graph draws two views.
    entrywise: ClassVar[bool] = True
    recordable: ClassVar[bool] = True  # no shape depends on a draw

    def __post_init__(self) -> None:
        for rate in (self.edge_drop, *self.relations.values()):
            check_setting("Drop", "edge_drop", rate)
        for rate in (self.feature_drop, *self.types.values()):
            check_setting("Drop", "feature_drop", rate)

    def edge_rate(self, relation: Key) -> float:
        """Returns the probability that an edge of a relation is absent."""
        return self.relations.get(relation, self.edge_drop)

    def feature_rate(self, node_type: str) -> float:
        """Returns the probability that a feature of a node of a type is zero."""
        return self.types.get(node_type, self.feature_drop)

    def __call__(
        self,
        x: Any,
        adjacency: Any,
        generator: torch.Generator,
        *,
        part: PartOfDraws | None = None,
    ) -> tuple[Any, Any]:
        """Draws one view of a plain graph, or of features by type and adjacencies by relation.

        If `x` is some rows of a plain graph, `part` says which; see `drop_features`.
        """
        if not isinstance(x, Mapping):
            x = drop_features(x, self.feature_drop, generator, part=part)
            return x, drop_edges(adjacency, self.edge_drop, generator)
        tables = {
            name: drop_features(table, self.feature_rate(name), generator)
            for name, table in x.items()
        }
        relations = {
            key: drop_edges(edges, self.edge_rate(key), generator)
            for key, edges in adjacency.items()
        }
        return tables, relations


def _bernoulli(
    size: int | torch.Size, probability: float, like: Tensor, generator: torch.Generator
) -> Tensor:
    drawn = torch.empty(size, dtype=like.dtype, device=like.device)
    for chunk in torch.split(drawn.view(-1), _chunk(like)):
        _draw(chunk, probability, generator)
    return drawn


def _bernoulli_part(
    part: PartOfDraws, probability: float, like: Tensor, generator: torch.Generator
) -> Tensor:
    """Makes the draws of `_bernoulli` for a whole table and keeps a part, ``[draws kept]``.

    It never holds more than a chunk of the others.
    """
    drawn = like.new_empty(sum(one.stop - one.start for one in part.kept))
    size = min(_chunk(like), part.total)
    room = like.new_empty(size)
    for start in range(0, part.total, max(size, 1)):
        stop = min(start + size, part.total)
        chunk = _draw(room[: stop - start], probability, generator)
        before = 0
        for one in part.kept:
            low, high = max(one.start, start), min(one.stop, stop)
            if low < high:
                place = before + low - one.start
                drawn[place : place + high - low] = chunk[low - start : high - start]
            before += one.stop - one.start
    return drawn


def _draw(chunk: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    if chunk.device.type == "cpu":  # takes half the time; the resolution is 2⁻²⁴
        return chunk.uniform_(generator=generator).lt_(probability)
    return chunk.bernoulli_(probability, generator=generator)


def _chunk(like: Tensor) -> int:
    """Returns how many numbers one call draws.

    On a GPU the numbers of a call depend on how many it draws. So all calls but the last draw
    equally many, and a process that keeps a part of the draws can repeat them. On a CPU, chunks of
    any size draw the same numbers.
    """
    return CPU_CHUNK if like.device.type == "cpu" else GPU_CHUNK
