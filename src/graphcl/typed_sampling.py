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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphcl.kernels.buffers import empty
from graphcl.kernels.counter import (
    stream_key,
)
from graphcl.kernels.gather_rows import gather_rows
from graphcl.kernels.slots import Means
from graphcl.typed_drawing import (
    Children,
    Drawn,
    Nodes,
    SampledDirection,
    draw_children,
    keys_of,
    sampled_means,
)
from graphcl.views import Drop


@dataclass
class Below:
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
        """Returns all nodes."""
        nodes, places, ranks = (torch.cat(one) for one in (self.nodes, self.places, self.ranks))
        return Nodes(nodes, places, ranks, self.total)


Level = dict[str, Nodes]


def sample_levels(
    seeds: Mapping[str, Tensor],
    x: Mapping[str, Tensor],
    directions: Mapping[str, Sequence[SampledDirection]],
    perturbation: Drop,
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
    levels = [top_level(seeds, own)]
    for hop in range(depth):
        below: dict[str, Below] | None = {} if whole or hop + 1 < depth else None
        for name, table in levels[-1].items():
            _fill(name, table, x, directions.get(name, ()), perturbation, replace, seed, hop, below)
        if below is not None:
            levels.append({name: parts.joined() for name, parts in below.items()})
    return levels


def top_level(seeds: Mapping[str, Tensor], own: slice | Tensor | None) -> Level:
    """Returns the seed nodes, or those at some places of the batch."""
    top: Level = {}
    place = 0
    for name, nodes in seeds.items():
        some = torch.arange(len(nodes), device=nodes.device)
        if isinstance(own, slice):
            first, last = (min(max(end - place, 0), len(nodes)) for end in (own.start, own.stop))
            some = some[first:last]
        elif own is not None:
            some = own[(own >= place) & (own < place + len(nodes))] - place
        top[name] = Nodes(nodes[some], place + some, some, len(nodes))
        place += len(nodes)
    return top


class Inputs:
    """Computes the inputs of a type's nodes in a level, direction by direction.

    Args:
        name: the type.
        table: its nodes; inputs and children are written to it.
        x: dense features of each type, of all nodes or of some.
        directions: in which the type receives.
        perturbation: the rates.
        seed: decides every draw.
        find: returns where nodes of a type are in `x`; None: at their numbers.
    """

    def __init__(
        self,
        name: str,
        table: Nodes,
        x: Mapping[str, Tensor],
        directions: Sequence[SampledDirection],
        perturbation: Drop,
        seed: int,
        find: Callable[[str, Tensor], Tensor] | None = None,
    ) -> None:
        self.table, self.x, self.find = table, x, find
        self.perturbation, self.seed = perturbation, seed
        count, width = len(table.nodes), x[name].shape[1]
        widths = [x[one.channel.sender].shape[1] + one.vectors for one in directions]
        table.inputs = empty((2, count, width + sum(widths)), x[name])
        self._start = 0
        self.own = self._gathered(name, table.nodes, x[name].new_ones(2, count))

    def columns(self, width: int) -> Tensor:
        """Returns the next columns of the inputs, to be written."""
        assert self.table.inputs is not None
        start, self._start = self._start, self._start + width
        return self.table.inputs[:, :, start : self._start]

    def _gathered(self, of: str, nodes: Tensor, weights: Tensor) -> Tensor:
        out = self.columns(self.x[of].shape[1])
        rate, key = self.perturbation.feature_rate(of), stream_key(self.seed, "features", of)
        rows = None if self.find is None else self.find(of, nodes)
        gather_rows(
            self.x[of], nodes, weights, self.table.places,
            feature_drop=rate, key=key, out=out, rows=rows,
        )  # fmt: skip
        return out

    def add(
        self, direction: SampledDirection, drawn: Drawn, below: dict[str, Below] | None
    ) -> None:
        """Writes the means over children that were drawn; they are added to the level below."""
        slots, fan_out, sender = drawn.slots, direction.fan_out, direction.channel.sender
        rows = slice(0, 0)
        if below is not None:
            rows = below.setdefault(sender, Below()).add(self.table, slots.nodes, fan_out)
        self.put(direction, drawn, rows)

    def put(self, direction: SampledDirection, drawn: Drawn, rows: slice) -> None:
        """Writes the means over children that are at these rows of the level below."""
        slots, count = drawn.slots, len(self.table.nodes)
        weights = slots.weights.view(2, count, 1, direction.fan_out)
        mean = self._gathered(direction.channel.sender, slots.nodes, slots.weights)
        share = slots.own if direction.relation.within else None
        if share is not None:
            mean += share * self.own
        if drawn.vectors is not None:
            self.columns(direction.vectors)[:] = drawn.vectors
        self.table.children.append(Children(direction, rows, weights, share, drawn.vectors))


def _fill(
    name: str,
    table: Nodes,
    x: Mapping[str, Tensor],
    directions: Sequence[SampledDirection],
    perturbation: Drop,
    replace: bool,
    seed: int,
    hop: int,
    below: dict[str, Below] | None,
) -> None:
    """Samples the children of a type's nodes, and computes the inputs of these nodes."""
    inputs = Inputs(name, table, x, directions, perturbation, seed)
    for number, direction in enumerate(directions):
        channel, sender = direction.channel, direction.channel.sender
        rate = perturbation.edge_rate(channel.relation)
        keys = keys_of(seed, hop, name, number, channel)
        simple = replace and direction.edge_weights is None and not table.nodes.is_cuda
        if not simple or direction.vectors:
            drawn = draw_children(direction, table, keys, edge_drop=rate, replace=replace)
            inputs.add(direction, drawn, below)
            continue
        out = inputs.columns(x[sender].shape[1])
        features_of = stream_key(seed, "features", sender), perturbation.feature_rate(sender)
        means = Means(x[sender], *features_of, inputs.own, out)
        found = sampled_means(direction, table, keys, means, rate, stored=below is not None)
        if found is None or below is None:
            table.children.append(Children(direction, slice(0, 0), None, None, None))
            continue
        weights = found.weights.view(2, len(table.nodes), 1, direction.fan_out)
        rows = below.setdefault(sender, Below()).add(table, found.nodes, direction.fan_out)
        share = found.own if direction.relation.within else None
        table.children.append(Children(direction, rows, weights, share, None))
