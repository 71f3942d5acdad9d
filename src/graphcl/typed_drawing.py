"""Children that are drawn in a typed graph, in one direction of a relation at a time.

`graphcl.typed_sampling` puts them together to trees. A draw belongs to the rank of the parent in
its level of the whole batch, and to the edge; so it does not matter which process makes it.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Self

import torch
from torch import Tensor

from graphcl.errors import StoreError
from graphcl.graphs.schema import Direction
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.counter import (
    Key,
    draw,
    draw_long,
    kept,
    nested,
    shifted,
    stream_key,
    threshold,
)
from graphcl.kernels.neighbours import EdgeWeights, draw_entries, sample_neighbours
from graphcl.kernels.slots import Means, Slots, sample_means, sample_slots


@dataclass(frozen=True)
class SampledDirection:
    """One direction of a relation, ready to be sampled.

    Attributes:
        channel: which one.
        relation: its edges, by receiver.
        fan_out: children per node.
        edge_weights: of a weighted relation, in this direction; else None.
        numbers: 0 … entries − 1, where `edge_weights` are given or nothing is drawn twice.
    """

    channel: Direction
    relation: Adjacency
    fan_out: int
    edge_weights: EdgeWeights | None = None
    numbers: Tensor | None = None

    @classmethod
    def of(
        cls,
        channel: Direction,
        relation: Adjacency,
        fan_out: int,
        *,
        weighted: bool,
        replace: bool,
    ) -> Self:
        """Prepares a direction for sampling; `weighted` says whether its edges have weights."""
        relation = relation.toward(channel.backwards)
        weights, numbers, device = None, None, relation.indptr.device
        if weighted:
            indptr = relation.indptr.cpu().numpy()
            values = relation.weight.cpu().numpy()
            weights = EdgeWeights.of(indptr, values, replace=replace, device=device)
        if weights is not None or not replace:
            numbers = torch.arange(len(relation.weight), device=device)
        return cls(channel, relation, fan_out, weights, numbers)

    @property
    def vectors(self) -> int:
        """The width of the edges' vectors; 0 without them."""
        return 0 if self.relation.features is None else self.relation.features.shape[1]


@dataclass(frozen=True)
class Children:
    """The sampled children of a type's nodes in one direction.

    Attributes:
        direction: which one.
        rows: where they are among the nodes of their type in the level below, those of one parent
            side by side.
        weights: of each child in its parent's mean in both views, ``[2, n, 1, fan_out]``; None if
            no layer uses them.
        own: the parent's own weight in it, ``[2, n, 1]``; None if it is not in its mean.
        vectors: the means of the edges' vectors, ``[2, n, edge features]``, or None.
    """

    direction: SampledDirection
    rows: slice
    weights: Tensor | None
    own: Tensor | None
    vectors: Tensor | None


@dataclass
class Nodes:
    """The nodes of one type in a level.

    Attributes:
        nodes: their numbers, ``[n]``.
        places: the place in the batch of the seed node of each.
        ranks: the number of each in this level of the whole batch, which decides its draws. One of
            several processes has some of the nodes.
        total: how many nodes the level of the whole batch has.
        inputs: in both views, their perturbed features, then for each of `children` the means of
            features and of the edges' vectors, ``[2, n, columns]``; None in the deepest level.
        children: in each direction in which the type receives; empty in the deepest level.
    """

    nodes: Tensor
    places: Tensor
    ranks: Tensor
    total: int
    inputs: Tensor | None = None
    children: list[Children] = field(default_factory=list)


class Drawn(NamedTuple):
    """Children that were drawn, and the means of edges' vectors, ``[2, n, edge features]``."""

    slots: Slots
    vectors: Tensor | None


def keys_of(seed: int, hop: int, name: str, number: int, channel: Direction) -> tuple[Key, Key]:
    """Returns the streams of the children of a type in its direction `number`, and of edges."""
    children = stream_key(seed, "neighbours", hop, name, number)
    return children, stream_key(seed, "edges", *channel.relation)


def draw_children(
    direction: SampledDirection,
    table: Nodes,
    keys: tuple[Key, Key],
    *,
    edge_drop: float,
    replace: bool,
) -> Drawn:
    """Draws the children of a type's nodes in one direction, and drops edges in both views."""
    simple = replace and direction.edge_weights is None and not table.nodes.is_cuda
    sample = _sampled if simple else sample_slots_reference
    slots = sample(direction, table, keys, edge_drop=edge_drop, replace=replace)
    features, count = direction.relation.features, len(table.nodes)
    if features is None:
        return Drawn(slots, None)
    if not len(features):
        return Drawn(slots, features.new_zeros(2, count, direction.vectors))
    rows = features[slots.numbers].view(count, direction.fan_out, direction.vectors)
    weights = slots.weights.view(2, count, 1, direction.fan_out)
    return Drawn(slots, (weights @ rows)[:, :, 0])


def sample_entries(
    direction: SampledDirection, nodes: Tensor, ranks: Tensor, *, replace: bool, key: Key
) -> tuple[Tensor, Tensor]:
    """Returns sampled places in the direction's CSR, ``[n · fan_out]``, and their weights.

    A weight of 0 marks an empty slot.
    """
    if nodes.device.type == "cpu" and (direction.edge_weights is not None or not replace):
        return _drawn_entries(direction, nodes, ranks, replace=replace, key=key)
    # Neighbours with weights, or none twice, are drawn for consecutive ranks at a time.
    if (direction.edge_weights is not None or not replace) and len(nodes):
        ends = (ranks.diff() != 1).nonzero()[:, 0] + 1
        runs = torch.tensor_split(torch.arange(len(nodes), device=nodes.device), ends.tolist())
        if len(runs) > 1:
            found = [
                sample_entries(direction, nodes[run], ranks[run], replace=replace, key=key)
                for run in runs
            ]
            return torch.cat([one for one, _ in found]), torch.cat([one for _, one in found])
        key = shifted(key, int(ranks[0]) * direction.fan_out)
    csr, fan_out = direction.relation.csr, direction.fan_out
    start = csr.indptr[nodes]
    degree = (csr.indptr[nodes + 1] - start)[:, None]
    relative: Tensor | None = None
    if direction.edge_weights is not None:
        assert direction.numbers is not None
        places, relative = direction.edge_weights.sample(
            csr.indptr, direction.numbers, nodes, fan_out=fan_out, key=key
        )
    elif replace:
        slots = torch.arange(fan_out, device=nodes.device)
        draws = draw(ranks[:, None] * fan_out + slots, key)
        places = (start[:, None] + ((draws * degree) >> 32)).view(-1)
    else:
        assert direction.numbers is not None
        places = sample_neighbours(
            csr.indptr, direction.numbers, nodes, fan_out=fan_out, replace=False, key=key
        )
    if replace:
        filled, each = (degree > 0).expand(-1, fan_out), degree / fan_out
    else:
        filled = torch.arange(fan_out, device=nodes.device) < degree
        each = degree.clamp(min=fan_out) / fan_out
    weight = torch.where(filled, each.float(), 0.0).reshape(-1)
    if relative is not None:
        weight = weight * relative
    return torch.where(filled.reshape(-1), places, 0), weight


def _drawn_entries(
    direction: SampledDirection, nodes: Tensor, ranks: Tensor, *, replace: bool, key: Key
) -> tuple[Tensor, Tensor]:
    """`sample_entries` of weighted edges, or without replacement, for any ranks, on a CPU."""
    csr, fan_out = direction.relation.csr, direction.fan_out
    weights = direction.edge_weights or EdgeWeights()
    drawn = draw_entries(
        csr.indptr,
        len(csr.indices),
        nodes,
        ranks,
        fan_out=fan_out,
        replace=replace,
        key=key,
        limits=weights.limits,
    )
    if len(drawn) and int(drawn.min()) < -1:
        raise StoreError(f"relation {':'.join(direction.channel.relation)}: its edges are damaged")
    degree = (csr.indptr[nodes + 1] - csr.indptr[nodes])[:, None]
    each = (degree if replace else degree.clamp(min=fan_out)) / fan_out
    weight = torch.where(drawn >= 0, each.float().expand(-1, fan_out).reshape(-1), 0.0)
    places = drawn.clamp(min=0)
    if weights.relative is not None and len(weights.relative):
        weight = weight * weights.relative[places]
    return places, weight


def _sampled(
    direction: SampledDirection,
    table: Nodes,
    keys: tuple[Key, Key],
    *,
    edge_drop: float,
    replace: bool,
) -> Slots:
    """`sample_slots_reference` of unweighted edges with replacement, in one loop on a CPU."""
    del replace
    relation = direction.relation
    csr = relation.csr
    return sample_slots(
        *csr,
        relation.edge_ids,
        table.nodes,
        table.places,
        table.ranks,
        fan_out=direction.fan_out,
        edge_drop=edge_drop,
        within=relation.within,
        key=keys[0],
        edges=keys[1],
    )


def sampled_means(
    direction: SampledDirection,
    table: Nodes,
    keys: tuple[Key, Key],
    means: Means,
    edge_drop: float,
    *,
    stored: bool,
) -> Slots | None:
    """`_sampled`, and the means of features, in one loop."""
    relation = direction.relation
    csr = relation.csr
    return sample_means(
        *csr,
        relation.edge_ids,
        table.nodes,
        table.places,
        table.ranks,
        means,
        fan_out=direction.fan_out,
        edge_drop=edge_drop,
        within=relation.within,
        key=keys[0],
        edges=keys[1],
        stored=stored,
    )


def sample_slots_reference(
    direction: SampledDirection,
    table: Nodes,
    keys: tuple[Key, Key],
    *,
    edge_drop: float,
    replace: bool,
) -> Slots:
    """Returns sampled children and their weights, in plain tensor operations."""
    relation, fan_out = direction.relation, direction.fan_out
    entries, weight = sample_entries(
        direction, table.nodes, table.ranks, replace=replace, key=keys[0]
    )
    csr = relation.csr
    if not len(csr.indices):  # of a part of a graph
        own = torch.full((2, len(table.nodes), 1), 1.0 if relation.within else 0.0)
        return Slots(entries, entries, torch.zeros(2, len(entries)), own)
    numbers = entries if csr.entries is None else csr.entries[entries]
    edges = numbers if relation.edge_ids is None else relation.edge_ids[numbers]
    places = table.places.repeat_interleave(fan_out)
    bits, limit = draw_long(edges, nested(places, keys[1])), threshold(edge_drop)
    present = torch.stack([kept(bits, view, limit) for view in (0, 1)])
    shaped = torch.where(present, weight, 0.0).view(2, -1, fan_out)
    total = shaped.sum(2, keepdim=True) + (1.0 if relation.within else 0.0)
    inverse = torch.where(total > 0, 1 / torch.where(total > 0, total, 1), 0)
    return Slots(csr.indices[entries], numbers, (shaped * inverse).view(2, -1), inverse)
