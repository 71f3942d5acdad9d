"""The edges of a typed graph in parts, and the children that are drawn along them.

As in `graphcl.partitioned.topology`, a process has the edges of its own part, in both directions of
every relation. Those of the other parts are mapped where their folders can be read, and asked for
where they cannot. Along relations with weights or vectors, or without replacement, the owner of a
node always draws: it has prepared them. A draw depends on the rank of the parent in its level of
the whole batch, and on the edge; so it does not matter who makes it.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from graphcl.errors import StoreError
from graphcl.graphs.schema import Direction
from graphcl.kernels.buffers import borrow
from graphcl.kernels.counter import Key
from graphcl.kernels.slots import Slots
from graphcl.partitioned.inference import local_relation
from graphcl.partitioned.topology import require_own
from graphcl.partitioned.typed_features import PreparedPart
from graphcl.partitioned.wire import Wire
from graphcl.store.typed_parts import open_typed_part
from graphcl.typed_drawing import Drawn, Nodes, SampledDirection, draw_children


class TypedTopology:
    """The edges of all parts, as far as this process reaches them, and a wire to the others.

    All processes of the group make one together.

    Args:
        prepared: this process's own part, checked.
        wire: to the others.
        fan_outs: children per node in each direction in which a type receives.
        replace: whether a neighbour can be drawn twice.
        topology: ``asked`` maps no part but the own one.

    Attributes:
        directions: for each type, those in which it receives, with the edges of the own part.
        asks: whether any process has to ask for children.
    """

    def __init__(
        self,
        prepared: PreparedPart,
        wire: Wire,
        *,
        fan_outs: Mapping[Direction, int],
        replace: bool,
        topology: str = "auto",
    ) -> None:
        self._prepared, self._wire, self._replace = prepared, wire, replace
        self._fan_outs = fan_outs
        self._parts: dict[Direction, dict[int, SampledDirection]] = {}
        own = prepared.part
        directions: dict[str, list[SampledDirection]] = {}
        for channel in fan_outs:
            one = self._direction(channel, prepared)
            self._parts[channel] = {own.number: one}
            directions.setdefault(channel.receiver, []).append(one)
        self.directions = {name: tuple(listed) for name, listed in directions.items()}
        for number in range(len(own.parts)) if topology == "auto" and replace else ():
            if number != own.number:
                self._map(number)
        every = len(own.parts)
        self._asks = {
            channel: bool(wire.most(int(len(self._parts[channel]) < every))) for channel in fan_outs
        }
        self.asks = any(self._asks.values())

    def _direction(self, channel: Direction, prepared: PreparedPart) -> SampledDirection:
        edges = prepared.edges(channel)
        assert edges is not None
        senders = borrow(edges["indices"])
        relation = local_relation(edges, channel, prepared.scaling, senders, counted=False)
        fan_out, weighted = self._fan_outs[channel], "edge_weight" in edges
        return SampledDirection.of(
            channel, relation, fan_out, weighted=weighted, replace=self._replace
        )

    def _map(self, number: int) -> None:
        """Maps the edges of another part, if it can be read; else its owner is asked."""
        own = self._prepared
        try:
            other = open_typed_part(own.part.parts.path, number)
            if other.parts.build != own.part.parts.build:
                return
            other.check()
        except StoreError:
            return  # not here, or not that of this build: its owner has it
        there = PreparedPart(other, other.nodes, own.schema, own.scaling)
        for channel in self._fan_outs:
            about = other.parts.relations[channel.relation]
            if not about.weighted and not about.num_edge_features:
                self._parts[channel][number] = self._direction(channel, there)

    def draw(
        self, direction: SampledDirection, table: Nodes, keys: tuple[Key, Key], *, edge_drop: float
    ) -> Drawn:
        """Draws children of nodes of any part, as `draw_children` does on the whole graph.

        All processes call it together.
        """
        channel, fan_out = direction.channel, direction.fan_out
        receivers = self._prepared.part.parts.types[channel.receiver]
        owners = torch.from_numpy(receivers.owner(table.nodes.numpy()))
        children = torch.zeros(len(table.nodes), fan_out, dtype=torch.int64)
        floats = torch.zeros(len(table.nodes), _width(direction))
        draws = {"edge_drop": edge_drop, "replace": self._replace}
        for number, one in self._parts[channel].items():
            which = (owners == number).nonzero()[:, 0]
            if len(which):
                start = int(receivers.starts[number])
                some = Nodes(table.nodes[which] - start, table.places[which], table.ranks[which], 0)
                found = draw_children(one, some, keys, **draws)  # type: ignore[arg-type]
                children[which], floats[which] = _packed(one, found)
        if self._asks[channel]:
            far = torch.tensor([n not in self._parts[channel] for n in range(len(receivers))])
            which = far[owners].nonzero()[:, 0]
            which = which[torch.argsort(owners[which], stable=True)]
            counts = torch.bincount(owners[which], minlength=len(receivers)).tolist()
            wanted = torch.stack(
                [one[which] for one in (table.nodes, table.places, table.ranks)], 1
            )
            answer = self._answer(direction, keys, edge_drop)
            there, values = self._wire.ask(wanted, counts, answer)
            children[which], floats[which] = there.long(), values
        self._check(channel, children)
        return _unpacked(direction, children, floats)

    def _answer(
        self, direction: SampledDirection, keys: tuple[Key, Key], edge_drop: float
    ) -> Callable[[Tensor], tuple[Tensor, ...]]:
        part = self._prepared.part.nodes[direction.channel.receiver]
        senders = self._prepared.part.parts.types[direction.channel.sender]
        kind = torch.int32 if senders.num_nodes < 1 << 31 else torch.int64

        def answer(asked: Tensor) -> tuple[Tensor, ...]:
            nodes, places, ranks = (asked[:, place].contiguous() for place in range(3))
            require_own(part, nodes)
            some = Nodes(nodes - part.nodes.start, places, ranks, 0)
            found = draw_children(direction, some, keys, edge_drop=edge_drop, replace=self._replace)
            children, floats = _packed(direction, found)
            return children.to(kind), floats

        return answer

    def _check(self, channel: Direction, children: Tensor) -> None:
        """Refuses numbers that no node has: a part may have been written to since it was checked.

        Raises:
            StoreError: there is one.
        """
        limit = self._prepared.part.parts.types[channel.sender].num_nodes
        if children.numel() and not 0 <= int(children.min()) <= int(children.max()) < limit:
            raise StoreError(f"relation {':'.join(channel.relation)}: its edges are damaged")


def _width(direction: SampledDirection) -> int:
    """Returns how many numbers a parent has: weights, its own one, and vectors, in both views."""
    return 2 * (direction.fan_out + 1 + direction.vectors)


def _packed(direction: SampledDirection, drawn: Drawn) -> tuple[Tensor, Tensor]:
    """Returns the children of each parent, and all numbers, one row for each parent."""
    slots, fan_out = drawn.slots, direction.fan_out
    pieces = [slots.weights.view(2, -1, fan_out), slots.own]
    pieces += [] if drawn.vectors is None else [drawn.vectors]
    floats = torch.cat(pieces, dim=2).permute(1, 0, 2)
    return slots.nodes.view(-1, fan_out), floats.reshape(len(floats), _width(direction))


def _unpacked(direction: SampledDirection, children: Tensor, floats: Tensor) -> Drawn:
    """Undoes `_packed`; numbers of entries are not known of other parts, and not needed."""
    count, fan_out = len(children), direction.fan_out
    both = floats.view(count, 2, _width(direction) // 2).permute(1, 0, 2)
    weights = both[:, :, :fan_out].reshape(2, -1)
    own = both[:, :, fan_out : fan_out + 1].contiguous()
    vectors = both[:, :, fan_out + 1 :].contiguous() if direction.vectors else None
    nodes = children.reshape(-1)
    return Drawn(Slots(nodes, nodes, weights, own), vectors)
