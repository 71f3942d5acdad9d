r"""Sampled L-hop subgraphs in a typed graph: trees with a fan-out per direction of a relation.

A group holds the tree nodes of one type that were reached by the same directions of relations.
Every node of a group has the same number of sampled children in each direction in which its type
receives, so a mean over them is a reshape. A child represents :math:`d / f` of its parent's d
neighbours in that direction, as in `graphcl.sampling`, so without perturbation the expectation of
each mean is that over the whole relation.

Draws belong to the place of the seed node in the batch, and to the edge or the node: in the tree of
one seed node an edge is kept or dropped wherever it occurs, in either direction, and a node has one
set of features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphcl.encoders.typed import TypedEncoder, TypedLayer
from graphcl.graphs.schema import Channel
from graphcl.kernels.counter import (
    draw,
    draw_long,
    kept,
    nested,
    positions,
    shifted,
    stream_key,
    threshold,
)
from graphcl.kernels.gather_rows import gather_rows
from graphcl.kernels.neighbours import EdgeWeights, sample_neighbours
from graphcl.kernels.relation import RelationAdjacency
from graphcl.views import DropTyped


@dataclass(frozen=True)
class Direction:
    """One direction of a relation, ready to be sampled.

    Attributes:
        channel: which one.
        relation: its edges.
        fan_out: children per node.
        edge_weights: of a weighted relation, in this direction; else None.
    """

    channel: Channel
    relation: RelationAdjacency
    fan_out: int
    edge_weights: EdgeWeights | None = None


@dataclass(frozen=True)
class Children:
    """The sampled children of a group in one direction.

    Attributes:
        direction: which one.
        group: the children themselves, those of one parent side by side.
        weights: of each child in its parent's mean in both views, ``[2, n, 1, fan_out]``.
        own: the parent's own weight in it, ``[2, n, 1]``; None if it is not in its mean.
        inputs: the means of the perturbed features, ``[2, n, features]``.
        vectors: the means of the edges' vectors, ``[2, n, edge features]``, or None.
    """

    direction: Direction
    group: "Group"
    weights: Tensor
    own: Tensor | None
    inputs: Tensor
    vectors: Tensor | None


@dataclass(frozen=True)
class Group:
    """Tree nodes of one type.

    Attributes:
        node_type: their type.
        nodes: their numbers, ``[n]``.
        inputs: their perturbed features in both views, ``[2, n, features]``; None in the deepest
            level, where only the means above are needed.
        children: in each direction in which the type receives; empty in the deepest level.
    """

    node_type: str
    nodes: Tensor
    inputs: Tensor | None = None
    children: tuple[Children, ...] = ()


def sample_entries(
    direction: Direction,
    nodes: Tensor,
    *,
    replace: bool,
    seed: int,
    path: Sequence[int],
    first: int,
) -> tuple[Tensor, Tensor]:
    """Returns sampled places in the direction's CSR, ``[n · fan_out]``, and their weights.

    A weight of 0 marks an empty slot. `first` is the place in the batch of the first seed node's
    slots, so that a part of a batch has the draws that it has in the whole.
    """
    csr = direction.relation.csr(direction.channel.backwards)
    fan_out = direction.fan_out
    key = shifted(stream_key(seed, "neighbours", *path), first)
    start = csr.indptr[nodes]
    degree = (csr.indptr[nodes + 1] - start)[:, None]
    slots = torch.arange(fan_out, device=nodes.device)
    relative: Tensor | None = None
    if direction.edge_weights is not None:
        numbers = torch.arange(len(csr.indices), device=nodes.device)
        places, relative = direction.edge_weights.sample(
            csr.indptr, numbers, nodes, fan_out=fan_out, key=key
        )
    elif replace:
        draws = draw(positions(len(nodes) * fan_out, nodes.device), key).view(-1, fan_out)
        places = (start[:, None] + ((draws * degree) >> 32)).view(-1)
    else:
        numbers = torch.arange(len(csr.indices), device=nodes.device)
        places = sample_neighbours(
            csr.indptr, numbers, nodes, fan_out=fan_out, replace=False, key=key
        )
    if replace:
        filled = (degree > 0).expand(-1, fan_out)
        each = degree / fan_out
    else:
        filled = slots < degree
        each = degree.clamp(min=fan_out) / fan_out
    weight = torch.where(filled, each.float(), 0.0).reshape(-1)
    if relative is not None:
        weight = weight * relative
    return torch.where(filled.reshape(-1), places, 0), weight


def sample_group(
    node_type: str,
    nodes: Tensor,
    x: Mapping[str, Tensor],
    directions: Mapping[str, Sequence[Direction]],
    perturbation: DropTyped,
    *,
    depth: int,
    replace: bool,
    seed: int,
    first: int = 0,
    per_seed: int = 1,
    path: tuple[int, ...] = (),
) -> Group:
    """Samples the subgraphs of some nodes of a type and draws two views of them.

    Args:
        node_type: their type.
        nodes: the seed nodes, or a level below them.
        x: dense features of each type, on the device of `nodes`.
        directions: for each type the directions in which it receives.
        perturbation: the rates.
        depth: how many hops.
        replace: whether a neighbour can be drawn twice.
        seed: decides every draw.
        first: the place in the batch of the first seed node.
        per_seed: how many of `nodes` belong to one seed node.
        path: the directions that led here.
    """
    if depth == 0:
        return Group(node_type, nodes)
    places = first + torch.arange(len(nodes), device=nodes.device) // per_seed
    own = _rows(x[node_type], nodes, places, perturbation, node_type, seed)
    children = []
    for number, direction in enumerate(directions.get(node_type, ())):
        below, slots = (*path, number), per_seed * direction.fan_out
        entries, weight = sample_entries(
            direction, nodes, replace=replace, seed=seed, path=below, first=first * slots
        )
        children.append(
            _children(
                direction,
                entries,
                weight,
                own,
                places,
                x,
                perturbation,
                seed,
                lambda numbers, direction=direction, below=below, slots=slots: sample_group(
                    direction.channel.sender,
                    numbers,
                    x,
                    directions,
                    perturbation,
                    depth=depth - 1,
                    replace=replace,
                    seed=seed,
                    first=first,
                    per_seed=slots,
                    path=below,
                ),
            )
        )
    return Group(node_type, nodes, own, tuple(children))


def _rows(
    x: Tensor, nodes: Tensor, places: Tensor, perturbation: DropTyped, node_type: str, seed: int
) -> Tensor:
    """Returns the perturbed features of tree nodes in both views."""
    ones = x.new_ones(2, len(nodes))
    rate, key = perturbation.feature_rate(node_type), stream_key(seed, "features", node_type)
    return gather_rows(x, nodes, ones, places, feature_drop=rate, key=key)


def _children(  # type: ignore[no-untyped-def]
    direction: Direction,
    entries: Tensor,
    weight: Tensor,
    own: Tensor,
    places: Tensor,
    x: Mapping[str, Tensor],
    perturbation: DropTyped,
    seed: int,
    sample,
) -> Children:
    channel, relation, fan_out = direction.channel, direction.relation, direction.fan_out
    csr = relation.csr(channel.backwards)
    empty = not len(csr.indices)
    nodes = entries if empty else csr.indices[entries]
    numbers = entries if csr.entries is None or empty else csr.entries[entries]
    edges = numbers if relation.edge_ids is None or empty else relation.edge_ids[numbers]
    key = stream_key(seed, "edges", *channel.relation)
    bits = draw_long(edges, nested(places.repeat_interleave(fan_out), key))
    limit = threshold(perturbation.edge_rate(channel.relation))
    of_view = torch.stack([torch.where(kept(bits, view, limit), weight, 0.0) for view in (0, 1)])
    shaped = of_view.view(2, -1, 1, fan_out)
    total = shaped.sum(3) + (1.0 if relation.within else 0.0)  # [2, n, 1]
    inverse = torch.where(total > 0, 1 / torch.where(total > 0, total, 1), 0)
    weights = shaped * inverse[..., None]
    rate = perturbation.feature_rate(channel.sender)
    stream = stream_key(seed, "features", channel.sender)
    inputs = gather_rows(
        x[channel.sender], nodes, weights.reshape(2, -1), places, feature_drop=rate, key=stream
    )
    share = inverse if relation.within else None
    if share is not None:
        inputs = inputs + share * own
    vectors = None
    if relation.features is not None:
        rows = relation.features[numbers].view(1, len(places), fan_out, -1)
        vectors = (weights @ rows)[:, :, 0]
    return Children(direction, sample(nodes), weights, share, inputs, vectors)


def encode_group(group: Group, encoder: TypedEncoder, view: int) -> Tensor:
    """Returns the embeddings of the seed nodes in one view, ``[n, dim]``."""
    return _encode(group, encoder, encoder.statement(), view)[-1]


def _encode(
    group: Group, encoder: TypedEncoder, layers: Sequence[TypedLayer], view: int
) -> list[Tensor]:
    """Returns the results of all layers that the group's level has; `layers` are those."""
    assert group.inputs is not None
    h = group.inputs[view] @ encoder.input_map(group.node_type)
    below = [
        _encode(one.group, encoder, layers[:-1], view) if len(layers) > 1 else []
        for one in group.children
    ]
    results: list[Tensor] = []
    for number, layer in enumerate(layers):
        total = h @ layer.own[group.node_type]
        messages = {one.channel: one for one in layer.into(group.node_type)}
        for one, lower in zip(group.children, below, strict=True):
            message = messages[one.direction.channel]
            if number == 0:
                mean = one.inputs[view] @ encoder.input_map(one.direction.channel.sender)
            else:
                rows = lower[number - 1].view(len(h), one.direction.fan_out, -1)
                mean = (one.weights[view] @ rows)[:, 0]
                if one.own is not None:
                    mean = mean + one.own[view] * h
            if message.edges is not None and one.vectors is not None:
                mean = mean + one.vectors[view] @ message.edges
            total = total + mean @ message.pooled
        h = layer.finish(group.node_type, total)
        results.append(h)
    return results
