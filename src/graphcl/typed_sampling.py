r"""Sampled L-hop subgraphs in a typed graph: trees with a fan-out per direction of a relation.

A level holds the tree nodes that are equally far from their seed nodes, in one table for each type.
Every node has the same number of sampled children in each direction in which its type receives, so
a mean over them is a reshape. A child represents :math:`d / f` of its parent's d neighbours in that
direction, as in `graphcl.sampling`, so without perturbation the expectation of each mean is that
over the whole relation.

Draws belong to the place of the seed node in the batch, and to the edge or the node: in the tree of
one seed node an edge is kept or dropped wherever it occurs, in either direction, and a node has one
set of features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphcl.graphs.schema import Channel
from graphcl.kernels.buffers import empty
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
from graphcl.kernels.gather_rows import gather_rows
from graphcl.kernels.neighbours import EdgeWeights, sample_neighbours
from graphcl.kernels.relation import RelationAdjacency
from graphcl.kernels.slots import Means, Slots, sample_means, sample_slots
from graphcl.views import DropTyped


@dataclass(frozen=True)
class Direction:
    """One direction of a relation, ready to be sampled.

    Attributes:
        channel: which one.
        relation: its edges.
        fan_out: children per node.
        edge_weights: of a weighted relation, in this direction; else None.
        numbers: 0 … entries − 1, where `edge_weights` are given or nothing is drawn twice.
    """

    channel: Channel
    relation: RelationAdjacency
    fan_out: int
    edge_weights: EdgeWeights | None = None
    numbers: Tensor | None = None

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

    direction: Direction
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


@dataclass
class _Below:
    """The nodes of one type in the level that is being sampled, part by part."""

    nodes: list[Tensor] = field(default_factory=list)
    places: list[Tensor] = field(default_factory=list)
    ranks: list[Tensor] = field(default_factory=list)
    count: int = 0
    total: int = 0

    def add(self, parents: Nodes, children: Tensor, fan_out: int) -> slice:
        """Adds the children of some nodes; returns where they are."""
        slots = torch.arange(fan_out, device=children.device)
        rows = slice(self.count, self.count + len(children))
        self.nodes.append(children)
        self.places.append(parents.places.repeat_interleave(fan_out))
        self.ranks.append((self.total + parents.ranks[:, None] * fan_out + slots).view(-1))
        self.count, self.total = rows.stop, self.total + parents.total * fan_out
        return rows

    def joined(self) -> Nodes:
        nodes, places, ranks = (torch.cat(one) for one in (self.nodes, self.places, self.ranks))
        return Nodes(nodes, places, ranks, self.total)


Level = dict[str, Nodes]


def sample_levels(
    seeds: Mapping[str, Tensor],
    x: Mapping[str, Tensor],
    directions: Mapping[str, Sequence[Direction]],
    perturbation: DropTyped,
    *,
    depth: int,
    replace: bool,
    seed: int,
    own: slice | None = None,
    whole: bool = False,
) -> list[Level]:
    """Samples the subgraphs of a batch and draws two views of them.

    Args:
        seeds: the seed nodes of each type; a node's place in the batch is that in their sequence.
        x: dense features of each type, on the device of the nodes.
        directions: for each type the directions in which it receives.
        perturbation: the rates.
        depth: L, how many hops.
        replace: whether a neighbour can be drawn twice.
        seed: decides every draw.
        own: the places of the seed nodes that are sampled, with the same draws as if all were; None
            samples all.
        whole: also return the deepest level, whose nodes no layer needs.

    Returns:
        The seed nodes, their children, and so on: L levels, or L + 1.
    """
    levels = [_top(seeds, own)]
    for hop in range(depth):
        below: dict[str, _Below] | None = {} if whole or hop + 1 < depth else None
        for name, table in levels[-1].items():
            _fill(name, table, x, directions.get(name, ()), perturbation, replace, seed, hop, below)
        if below is not None:
            levels.append({name: parts.joined() for name, parts in below.items()})
    return levels


def _top(seeds: Mapping[str, Tensor], own: slice | None) -> Level:
    """Returns the seed nodes, or some of them."""
    top: Level = {}
    place = 0
    for name, nodes in seeds.items():
        ranks = torch.arange(len(nodes), device=nodes.device)
        first, last = 0, len(nodes)
        if own is not None:
            first, last = (min(max(end - place, 0), len(nodes)) for end in (own.start, own.stop))
        some = ranks[first:last]
        top[name] = Nodes(nodes[first:last], place + some, some, len(nodes))
        place += len(nodes)
    return top


def _fill(
    name: str,
    table: Nodes,
    x: Mapping[str, Tensor],
    directions: Sequence[Direction],
    perturbation: DropTyped,
    replace: bool,
    seed: int,
    hop: int,
    below: dict[str, _Below] | None,
) -> None:
    """Samples the children of a type's nodes, and computes the inputs of these nodes."""
    count, width = len(table.nodes), x[name].shape[1]
    widths = [(x[one.channel.sender].shape[1], one.vectors) for one in directions]
    table.inputs = empty((2, count, width + sum(map(sum, widths))), x[name])

    def gather(of: str, nodes: Tensor, weights: Tensor, start: int) -> Tensor:
        out = table.inputs[:, :, start : start + x[of].shape[1]]  # type: ignore[index]
        rate, key = perturbation.feature_rate(of), stream_key(seed, "features", of)
        gather_rows(x[of], nodes, weights, table.places, feature_drop=rate, key=key, out=out)
        return out

    own = gather(name, table.nodes, x[name].new_ones(2, count), 0)
    start = width
    for number, (direction, (features, vectors)) in enumerate(zip(directions, widths, strict=True)):
        rate = perturbation.edge_rate(direction.channel.relation)
        keys = (
            stream_key(seed, "neighbours", hop, name, number),
            stream_key(seed, "edges", *direction.channel.relation),
        )
        simple = replace and direction.edge_weights is None and not table.nodes.is_cuda
        sender = direction.channel.sender
        if simple and not vectors:
            out = table.inputs[:, :, start : start + features]
            features_of = stream_key(seed, "features", sender), perturbation.feature_rate(sender)
            means = Means(x[sender], *features_of, own, out)
            found = _sampled_means(direction, table, keys, means, rate, stored=below is not None)
            start += features
            if found is None or below is None:
                table.children.append(Children(direction, slice(0, 0), None, None, None))
                continue
            weights = found.weights.view(2, count, 1, direction.fan_out)
            rows_below = below.setdefault(sender, _Below()).add(
                table, found.nodes, direction.fan_out
            )
            share = found.own if direction.relation.within else None
            table.children.append(Children(direction, rows_below, weights, share, None))
            continue
        sample = _sampled if simple else sample_slots_reference
        slots = sample(direction, table, keys, edge_drop=rate, replace=replace)
        nodes, numbers = slots.nodes, slots.numbers
        weights = slots.weights.view(2, count, 1, direction.fan_out)
        rows_below = slice(0, 0)
        if below is not None:
            rows_below = below.setdefault(sender, _Below()).add(table, nodes, direction.fan_out)
        mean = gather(sender, nodes, slots.weights, start)
        share = slots.own if direction.relation.within else None
        if share is not None:
            mean += share * own
        start += features
        around = None
        if direction.relation.features is not None:
            rows = direction.relation.features[numbers].view(count, direction.fan_out, vectors)
            around = (weights @ rows)[:, :, 0]
            table.inputs[:, :, start : start + vectors] = around
            start += vectors
        table.children.append(Children(direction, rows_below, weights, share, around))


def sample_entries(
    direction: Direction, nodes: Tensor, ranks: Tensor, *, replace: bool, key: Key
) -> tuple[Tensor, Tensor]:
    """Returns sampled places in the direction's CSR, ``[n · fan_out]``, and their weights.

    A weight of 0 marks an empty slot.
    """
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
    csr, fan_out = direction.relation.csr(direction.channel.backwards), direction.fan_out
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


def _sampled(
    direction: Direction, table: Nodes, keys: tuple[Key, Key], *, edge_drop: float, replace: bool
) -> Slots:
    """`sample_slots_reference` of unweighted edges with replacement, in one loop on a CPU."""
    del replace
    relation = direction.relation
    csr = relation.csr(direction.channel.backwards)
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


def _sampled_means(
    direction: Direction,
    table: Nodes,
    keys: tuple[Key, Key],
    means: Means,
    edge_drop: float,
    *,
    stored: bool,
) -> Slots | None:
    """`_sampled`, and the means of features, in one loop."""
    relation = direction.relation
    csr = relation.csr(direction.channel.backwards)
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
    direction: Direction, table: Nodes, keys: tuple[Key, Key], *, edge_drop: float, replace: bool
) -> Slots:
    """Returns sampled children and their weights, in plain tensor operations."""
    relation, fan_out = direction.relation, direction.fan_out
    entries, weight = sample_entries(
        direction, table.nodes, table.ranks, replace=replace, key=keys[0]
    )
    csr = relation.csr(direction.channel.backwards)
    numbers = entries if csr.entries is None else csr.entries[entries]
    edges = numbers if relation.edge_ids is None else relation.edge_ids[numbers]
    places = table.places.repeat_interleave(fan_out)
    bits, limit = draw_long(edges, nested(places, keys[1])), threshold(edge_drop)
    present = torch.stack([kept(bits, view, limit) for view in (0, 1)])
    shaped = torch.where(present, weight, 0.0).view(2, -1, fan_out)
    total = shaped.sum(2, keepdim=True) + (1.0 if relation.within else 0.0)
    inverse = torch.where(total > 0, 1 / torch.where(total > 0, total, 1), 0)
    return Slots(csr.indices[entries], numbers, (shaped * inverse).view(2, -1), inverse)
