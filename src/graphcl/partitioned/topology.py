"""The neighbours and features of a graph in parts, as sampled batches ask for them.

A process has the edges of its own part, in both directions of every relation. Those of the other
parts are mapped where their folders can be read, and asked for where they cannot: the owner then
draws the children, and sends these alone. A draw depends on the key and on the rank of the parent
in its level of the whole batch, so it does not matter who makes it. Along relations with weights or
vectors the owner of a node always draws: it has prepared them.

The batches of a training are those of one process on the whole graph in the same numbering: the
same seed nodes in every step, the same children, the same views. Only the order of the rows of a
batch differs, and with it the order of sums: each process takes the seed nodes of its own part, as
far as shares stay equal, because their neighbours are often in the part as well.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphcl.arrays import Floats, Integers
from graphcl.distributed import Share, current_share, sum_over
from graphcl.errors import StoreError, demand
from graphcl.files.arrays import advise_random_reads
from graphcl.graphs.schema import Direction
from graphcl.graphs.tensors import edge_vectors
from graphcl.kernels.buffers import borrow
from graphcl.kernels.counter import Keys
from graphcl.kernels.neighbours import EdgeWeights
from graphcl.kernels.placing import number_distinct
from graphcl.kernels.stored_features import StoredFeatures
from graphcl.memory import free_memory_bytes
from graphcl.partitioned.boundary import Wire, open_any_part
from graphcl.partitioned.features import CPU, FeatureRows, Needed, PreparedPart, require_own
from graphcl.store.columns import entry_places
from graphcl.store.reader import Part
from graphcl.topology import Children, Drawn, Level, SampledDirection, Seeds, Traffic, Tree


class PartsTopology:
    """The edges of all parts, as far as this process reaches them, and a wire to the others.

    All processes of the group make one together.

    Args:
        prepared: this process's own part, checked.
        wire: to the others.
        fan_outs: children per node in each direction in which a type receives.
        replace: whether a neighbour can be drawn twice.
        topology: ``asked`` maps no part but the own one.
        cache_bytes: memory for rows of other parts between steps; the types share it by the size of
            their tables.

    Attributes:
        prepared: the own part.
        into: for each type, the directions in which it receives, with the edges of the own part.
        rows: the features of each type.
        wire: to the others.
        asks: whether any process has to ask for children.
        from_disk: whether memory may not hold what is mapped, so that rows are read from the disk.
        remembers: whether any process can keep rows between steps.
    """

    device = CPU

    def __init__(
        self,
        prepared: PreparedPart,
        wire: Wire,
        *,
        fan_outs: Mapping[Direction, int],
        replace: bool,
        topology: str = "auto",
        cache_bytes: int = 0,
    ) -> None:
        self.prepared, self.wire = prepared, wire
        self._types, self._own = prepared.part.store.types, prepared.part.number
        self._fan_outs, self._replace, self._steps = fan_outs, replace, 0
        self._parts: dict[Direction, dict[int, SampledDirection]] = {one: {} for one in fan_outs}
        self._mapped = [part.fields["x"] for part in prepared.nodes.values()]
        self._map(prepared.part, fan_outs)
        for number in range(len(prepared.part.store)) if topology == "auto" else ():
            if number != self._own:
                self._map_other(number)
        self.into: dict[str, list[SampledDirection]] = {}
        for direction, known in self._parts.items():
            self.into.setdefault(direction.receiver, []).append(known[self._own])
        arrays = [one for one in self._mapped if isinstance(one, np.memmap)]
        # The training will take memory, too: what is free now is not for maps alone.
        self.from_disk = sum(one.nbytes for one in arrays) > free_memory_bytes() // 2
        if self.from_disk:
            advise_random_reads(*arrays)
        every = len(prepared.part.store)
        self._asks = {
            one: bool(wire.most(int(len(self._parts[one]) < every))) for one in self._parts
        }
        self.asks = any(self._asks.values())
        tables = {
            name: one.type.num_nodes * one.type.num_features for name, one in prepared.nodes.items()
        }
        self.rows = {
            name: FeatureRows(
                one,
                wire,
                prepared.scaling_of(name),
                cache_bytes=cache_bytes * tables[name] // max(1, sum(tables.values())),
                from_disk=self.from_disk,
            )
            for name, one in prepared.nodes.items()
        }
        self.remembers = bool(wire.most(sum(one.capacity for one in self.rows.values())))

    def _map(self, part: Part, directions: Iterable[Direction]) -> None:
        """Makes the edges of a part ready to be sampled."""
        for direction in directions:
            edges = part.edges[direction.relation, direction.backwards]
            weights = EdgeWeights()
            if "edge_weight" in edges:
                arrays = edges["indptr"], edges["edge_weight"]
                weights = EdgeWeights.of(*arrays, replace=self._replace, device=CPU)
            vectors = edges.get("edge_features")
            scaling = self.prepared.scaling
            self._mapped.append(edges["indices"])
            self._parts[direction][part.number] = SampledDirection(
                direction,
                borrow(edges["indptr"]),
                borrow(edges["indices"]),
                self._fan_outs[direction],
                self._replace,
                part.store.relations[direction.relation].undirected,
                weights,
                edge_vectors(vectors, direction.relation, device=CPU, scaling=scaling),
                first=int(part.nodes[direction.receiver].nodes.start),
            )

    def _map_other(self, number: int) -> None:
        """Maps the edges of another part, if it can be read; else its owner is asked."""
        own = self.prepared.part.store
        simple = [
            one
            for one in self._fan_outs
            if not own.relations[one.relation].weighted
            and not own.relations[one.relation].num_edge_features
        ]
        try:
            other = open_any_part(own.path, number) if simple else None
        except StoreError:
            return  # not here, or damaged: its owner has it
        if other is not None and other.store.build == own.build:
            self._map(other, simple)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of nodes of each type, of all parts."""
        return {name: one.num_nodes for name, one in self._types.items()}

    def own_places(self, seeds: Seeds, share: Share) -> Tensor:
        """Returns the places of seed nodes of the own part first, as far as shares stay equal."""
        owners = [self._types[name].owner(nodes.numpy()) for name, nodes in seeds.items()]
        by_owner = torch.from_numpy(np.argsort(np.concatenate(owners), kind="stable"))
        return by_owner[share.rows(len(by_owner))]

    def draw(self, edges: SampledDirection, nodes: Tensor, ranks: Tensor, key: Keys) -> Drawn:
        """Draws children of nodes of any part; all processes call it together where one asks.

        Raises:
            StoreError: a part is damaged; it may have been written to since it was checked.
        """
        direction = edges.direction
        receivers, known = self._types[direction.receiver], self._parts[direction]
        owners = torch.from_numpy(receivers.owner(nodes.numpy()))
        places, found = list[Tensor](), list[Iterable[Tensor]]()
        for number, one in known.items():
            which = (owners == number).nonzero()[:, 0]
            if len(which) or not places:
                places.append(which)
                found.append(_packed(one, one.draw(nodes[which], ranks[which], key)))
        if self._asks[direction]:
            far = torch.tensor([number not in known for number in range(len(receivers))])
            which = far[owners].nonzero()[:, 0]
            which = which[torch.argsort(owners[which], stable=True)]
            counts = torch.bincount(owners[which], minlength=len(receivers)).tolist()
            wanted = torch.stack([nodes[which], ranks[which]], dim=1)
            places.append(which)
            found.append(self.wire.ask(wanted, counts, self._answer(edges, key)))
        order = torch.cat(places).argsort()
        table, *floats = (torch.cat(pieces)[order] for pieces in zip(*found, strict=True))
        relative = floats[0].reshape(-1) if edges.weights.relative is not None else None
        vectors = None if edges.vectors is None else floats[-1].reshape(-1, edges.width)
        children = table[:, :-1].reshape(-1).long()
        drawn = Drawn(children, table[:, -1].long().contiguous(), relative, vectors)
        limit = self._types[direction.sender].num_nodes
        ends = drawn.children.aminmax() if len(drawn.children) else (torch.tensor(0),) * 2
        demand(
            0 <= int(ends[0]) <= int(ends[1]) < limit,
            f"relation {':'.join(direction.relation)}: its edges are damaged",
            StoreError,
        )
        return drawn

    def _answer(self, edges: SampledDirection, key: Keys) -> Callable[[Tensor], tuple[Tensor, ...]]:
        part = self.prepared.nodes[edges.direction.receiver]
        entries = 2 * self.prepared.part.store.relations[edges.direction.relation].num_edges
        most = max(self._types[edges.direction.sender].num_nodes, entries)
        kind = torch.int32 if most < 1 << 31 else torch.int64

        def answer(asked: Tensor) -> tuple[Tensor, ...]:
            nodes, ranks = asked[:, 0].contiguous(), asked[:, 1].contiguous()
            require_own(part, nodes)
            table, *floats = _packed(edges, edges.draw(nodes, ranks, key))
            return table.to(kind), *floats

        return answer

    def features(self, tree: Tree) -> dict[str, StoredFeatures]:
        """Fetches the features of a tree's nodes, each row once; all processes call it together."""
        self._steps += 1
        found = {}
        for name, rows in self.rows.items():
            pieces = _nodes(tree, name)
            distinct, at = number_distinct(np.concatenate([_NONE, *pieces]))
            places = iter(torch.split(torch.from_numpy(at), list(map(len, pieces))))
            if name in tree[0]:
                tree[0][name].rows = next(places)
            for above, below in zip(tree, [*tree[1:], {}], strict=True):
                some = []
                for one in _children(above, name):
                    one.rows = next(places)
                    some.append(one.rows)
                if name in below:
                    below[name].rows = torch.cat(some)
            found[name] = rows.fetch(distinct)
        return found

    def expect(self, trees: Iterable[Tree]) -> None:
        """Fills the caches with the rows of other parts that coming steps need most."""
        needed = {name: Needed(part.nodes) for name, part in self.prepared.nodes.items()}
        for tree in trees:
            for name, one in needed.items():
                one.add(number_distinct(np.concatenate([_NONE, *_nodes(tree, name)]))[0])
        for name, rows in self.rows.items():
            rows.keep(needed[name].most(rows.capacity))

    def traffic(self) -> Traffic:
        """Returns what all processes sent since the last call; all call it together."""
        rows = self.rows.values()
        sums = [self.wire.sent, sum(one.needed for one in rows), sum(one.kept for one in rows)]
        sent, needed, kept = sum_over(torch.tensor(sums), current_share()).tolist()
        each = sent / max(1, self._steps)
        self.wire.sent = self._steps = 0
        for one in rows:
            one.needed = one.kept = 0
        return Traffic(each, kept / needed if needed else None)

    def neighbours(
        self, direction: Direction, nodes: Integers
    ) -> tuple[Integers, Integers, Floats | None]:
        """Returns all neighbours of some nodes: how many each has, who they are, their weights.

        All processes call it together, and the owner of a node answers. `nodes` must be ascending.
        """
        part = self.prepared.nodes[direction.receiver]
        edges: Any = self.prepared.edges(direction)

        def answer(asked: Tensor) -> tuple[Tensor, ...]:
            require_own(part, asked)
            starts = edges["indptr"][asked.numpy() - part.nodes.start]
            lengths = edges["indptr"][asked.numpy() - part.nodes.start + 1] - starts
            places = entry_places(starts, lengths)
            tables = [lengths, np.asarray(edges["indices"][places], np.int64)]
            if "edge_weight" in edges:
                tables.append(np.asarray(edges["edge_weight"][places]))
            return tuple(torch.from_numpy(np.ascontiguousarray(table)) for table in tables)

        counts = np.diff(np.searchsorted(nodes, part.type.starts)).tolist()
        wanted = torch.from_numpy(np.ascontiguousarray(nodes))
        lengths, found, *weights = self.wire.ask_lists(wanted, counts, answer)
        return lengths.numpy(), found.numpy(), weights[0].numpy() if weights else None


_NONE = np.empty(0, np.int64)


def _children(level: Level, sender: str) -> list[Children]:
    """Returns the children of a level that are of a type, as the level below holds them."""
    every = (one for table in level.values() for one in table.children)
    return [one for one in every if one.edges.direction.sender == sender]


def _nodes(tree: Tree, name: str) -> list[Integers]:
    """Returns the nodes of a type in a tree: the seed nodes, and children level by level."""
    found = [tree[0][name].nodes] if name in tree[0] else []
    found += [one.nodes for level in tree for one in _children(level, name)]
    return [one.numpy() for one in found]


def _packed(edges: SampledDirection, drawn: Drawn) -> list[Tensor]:
    """Returns tables with a row for each parent: children and degree, and what is beside them."""
    count, fan_out = len(drawn.degree), edges.fan_out
    tables = [torch.cat([drawn.children.view(count, fan_out), drawn.degree[:, None]], dim=1)]
    if drawn.relative is not None:
        tables.append(drawn.relative.view(count, fan_out))
    if drawn.vectors is not None:
        tables.append(drawn.vectors.reshape(count, fan_out * edges.width))
    return tables
