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

from graphcl.encoders.typed import Message, TypedEncoder, TypedLayer
from graphcl.graphs.schema import Channel
from graphcl.kernels.buffers import empty
from graphcl.kernels.counter import (
    Key,
    draw,
    draw_long,
    kept,
    nested,
    positions,
    stream_key,
    threshold,
)
from graphcl.kernels.gather_rows import gather_rows
from graphcl.kernels.neighbours import EdgeWeights, sample_neighbours
from graphcl.kernels.relation import RelationAdjacency
from graphcl.kernels.slots import Slots, sample_slots
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
        weights: of each child in its parent's mean in both views, ``[2, n, 1, fan_out]``.
        own: the parent's own weight in it, ``[2, n, 1]``; None if it is not in its mean.
        vectors: the means of the edges' vectors, ``[2, n, edge features]``, or None.
    """

    direction: Direction
    rows: slice
    weights: Tensor
    own: Tensor | None
    vectors: Tensor | None


@dataclass
class Nodes:
    """The nodes of one type in a level.

    Attributes:
        nodes: their numbers, ``[n]``.
        places: the place in the batch of the seed node of each.
        inputs: in both views, their perturbed features, then for each of `children` the means of
            features and of the edges' vectors, ``[2, n, columns]``; None in the deepest level.
        children: in each direction in which the type receives; empty in the deepest level.
    """

    nodes: Tensor
    places: Tensor
    inputs: Tensor | None = None
    children: list[Children] = field(default_factory=list)


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

    Returns:
        The seed nodes, their children, and so on: L + 1 levels.
    """
    top: Level = {}
    place = 0
    for name, nodes in seeds.items():
        places = torch.arange(place, place + len(nodes), device=nodes.device)
        top[name], place = Nodes(nodes, places), place + len(nodes)
    levels = [top]
    for hop in range(depth):
        below: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for name, table in levels[-1].items():
            _fill(name, table, x, directions.get(name, ()), perturbation, replace, seed, hop, below)
        levels.append(
            {
                name: Nodes(torch.cat([one for one, _ in parts]), torch.cat([p for _, p in parts]))
                for name, parts in below.items()
            }
        )
    return levels


def _fill(
    name: str,
    table: Nodes,
    x: Mapping[str, Tensor],
    directions: Sequence[Direction],
    perturbation: DropTyped,
    replace: bool,
    seed: int,
    hop: int,
    below: dict[str, list[tuple[Tensor, Tensor]]],
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
        sample = _sampled if simple else sample_slots_reference
        slots = sample(direction, table, keys, edge_drop=rate, replace=replace)
        nodes, numbers = slots.nodes, slots.numbers
        weights = slots.weights.view(2, count, 1, direction.fan_out)
        sender = direction.channel.sender
        parts = below.setdefault(sender, [])
        before = sum(len(one) for one, _ in parts)
        parts.append((nodes, table.places.repeat_interleave(direction.fan_out)))
        mean = gather(sender, nodes, slots.weights, start)
        share = slots.own if direction.relation.within else None
        if share is not None:
            mean += share * own
        start += features
        around = None
        if direction.relation.features is not None:
            rows = direction.relation.features[numbers].view(count, direction.fan_out, -1)
            around = (weights @ rows)[:, :, 0]
            table.inputs[:, :, start : start + vectors] = around
            start += vectors
        rows_below = slice(before, before + len(nodes))
        table.children.append(Children(direction, rows_below, weights, share, around))


def sample_entries(
    direction: Direction, nodes: Tensor, *, replace: bool, key: Key
) -> tuple[Tensor, Tensor]:
    """Returns sampled places in the direction's CSR, ``[n · fan_out]``, and their weights.

    A weight of 0 marks an empty slot.
    """
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
        draws = draw(positions(len(nodes) * fan_out, nodes.device), key).view(-1, fan_out)
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
        fan_out=direction.fan_out,
        edge_drop=edge_drop,
        within=relation.within,
        key=keys[0],
        edges=keys[1],
    )


def sample_slots_reference(
    direction: Direction, table: Nodes, keys: tuple[Key, Key], *, edge_drop: float, replace: bool
) -> Slots:
    """Returns sampled children and their weights, in plain tensor operations."""
    relation, fan_out = direction.relation, direction.fan_out
    entries, weight = sample_entries(direction, table.nodes, replace=replace, key=keys[0])
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


def encode_levels(levels: Sequence[Level], encoder: TypedEncoder) -> dict[str, Tensor]:
    """Returns the embeddings of the seed nodes in both views, ``[2, n, dim]`` for each type.

    Layer l is computed on levels 0 to L − l, as in `graphcl.sampling`. The parts of a layer are one
    product: of own rows and means side by side, and of their matrices one above the other.
    """
    h: list[dict[str, Tensor]] = []
    for number, layer in enumerate(encoder.statement()):
        above = []
        for hop in range(len(levels) - 1 - number):
            level, found = levels[hop], {}
            for name, table in level.items():
                joined, matrix = (
                    _first(encoder, layer, name, table)
                    if number == 0
                    else _later(layer, name, table, h[hop][name], h[hop + 1])
                )
                flat = joined.reshape(-1, joined.shape[2]) @ matrix
                found[name] = layer.finish(name, flat).view(2, -1, layer.outputs)
            above.append(found)
        h = above
    return h[0]


def _messages(layer: TypedLayer, name: str, table: Nodes) -> list[tuple[Children, Message]]:
    known = {one.channel: one for one in layer.into(name)}
    return [(one, known[one.direction.channel]) for one in table.children]


def _first(
    encoder: TypedEncoder, layer: TypedLayer, name: str, table: Nodes
) -> tuple[Tensor, Tensor]:
    """Returns the rows and the matrix of the first layer, whose matrices include the input maps."""
    assert table.inputs is not None
    matrices = [encoder.input_map(name) @ layer.own[name]]
    for children, message in _messages(layer, name, table):
        matrices.append(encoder.input_map(children.direction.channel.sender) @ message.pooled)
        if message.edges is not None:
            matrices.append(message.edges @ message.pooled)
    return table.inputs, torch.cat(matrices)


def _later(
    layer: TypedLayer, name: str, table: Nodes, h: Tensor, below: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Returns the rows and the matrix of a later layer."""
    parts, matrices = [h], [layer.own[name]]
    for children, message in _messages(layer, name, table):
        sent = below[children.direction.channel.sender][:, children.rows]
        rows = sent.reshape(2, h.shape[1], children.direction.fan_out, -1)
        mean = (children.weights @ rows)[:, :, 0]
        parts.append(mean if children.own is None else mean + children.own * h)
        matrices.append(message.pooled)
        if message.edges is not None and children.vectors is not None:
            parts.append(children.vectors)
            matrices.append(message.edges @ message.pooled)
    return torch.cat(parts, dim=2), torch.cat(matrices)
