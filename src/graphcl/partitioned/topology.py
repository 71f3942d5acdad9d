"""The edges of a graph in parts, and the neighbours that are drawn from them.

A process has the edges of its own part. Those of the other parts are mapped where their folders can
be read, and asked for where they cannot: the owner then draws the neighbours, and sends these
alone. A draw depends on the key and on the place of the parent in the level of the whole batch, so
it does not matter who makes it. The neighbours of a weighted graph are always drawn by the owner,
which has prepared its weights.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphcl.errors import StoreError
from graphcl.files.arrays import advise_random_reads
from graphcl.kernels.adjacency import self_weights
from graphcl.kernels.buffers import borrow
from graphcl.kernels.counter import Key
from graphcl.kernels.neighbours import draw_entries, thresholds
from graphcl.memory import free_memory_bytes
from graphcl.partitioned.wire import Wire
from graphcl.store.parts import Part, Parts, open_part

TOPOLOGIES = ("auto", "asked")
IntArray = npt.NDArray[np.int64]


class Drawn(NamedTuple):
    """Neighbours that were drawn for some nodes.

    Attributes:
        children: their numbers, ``[n · fan_out]`` int64, those of a node side by side.
        degree: of each node, ``[n]`` int64.
        relative: of a weighted graph without replacement, the weight of each child relative to the
            mean of its parent's edges; else None.
    """

    children: Tensor
    degree: Tensor
    relative: Tensor | None = None


@dataclass(frozen=True, eq=False)
class _Edges:
    """The edges of one part: its first node, its arrays, and its weights prepared for drawing."""

    name: str
    first: int
    num_nodes: int
    indptr: Tensor
    indices: Tensor
    limits: Tensor | None = None
    relative: Tensor | None = None

    @classmethod
    def of(cls, part: Part, *, replace: bool) -> Self:
        fields, limits, relative = part.fields, None, None
        weight = fields.get("edge_weight")
        if weight is not None and replace:
            limits = thresholds(fields["indptr"], weight)
        elif weight is not None:
            pointers, weights = borrow(fields["indptr"]), borrow(weight)
            means = torch.repeat_interleave(self_weights(pointers, weights), pointers.diff())
            relative = weights / means
        arrays = borrow(fields["indptr"]), borrow(fields["indices"])
        name = str(part.parts.folder(part.number))
        return cls(name, part.nodes.start, part.parts.num_nodes, *arrays, limits, relative)

    def draw(self, nodes: Tensor, places: Tensor, fan_out: int, replace: bool, key: Key) -> Drawn:
        """Draws for nodes of this part.

        Raises:
            StoreError: the part is damaged; it may have been written to since it was checked.
        """
        rows = nodes - self.first
        drawn = draw_entries(
            self.indptr,
            len(self.indices),
            rows,
            places,
            fan_out=fan_out,
            replace=replace,
            key=key,
            limits=self.limits,
        )
        empty = drawn < 0
        at = drawn.clamp(min=0)
        parents = nodes.repeat_interleave(fan_out)
        found = self.indices[at].long() if len(self.indices) else parents
        children = torch.where(empty, parents, found)
        fits = not len(drawn) or int(drawn.min()) >= -1
        if not fits or (
            len(found) and not 0 <= int(children.min()) <= int(children.max()) < self.num_nodes
        ):
            raise StoreError(f"{self.name}: its edges are damaged")
        degree = self.indptr[rows + 1] - self.indptr[rows]
        if self.relative is None or not len(self.relative):
            return Drawn(children, degree)
        return Drawn(children, degree, self.relative[at])


class Topology:
    """The edges of all parts, as far as this process reaches them, and a wire to the others.

    All processes of the group make one together.

    Args:
        part: this process's own part, checked.
        wire: to the others.
        replace: whether neighbours are drawn with replacement.
        topology: ``asked`` maps no part but the own one.

    Attributes:
        part: the own part.
        parts: what is known of all.
        mapped: how many parts are mapped, the own one included.
        asks: whether any process has to ask for neighbours.
        from_disk: whether memory may not hold what is mapped, so that rows are read from the disk.
    """

    def __init__(self, part: Part, wire: Wire, *, replace: bool, topology: str = "auto") -> None:
        self.parts: Parts = part.parts
        self._own, self._wire, self._replace = part.number, wire, replace
        self._edges = {part.number: _Edges.of(part, replace=replace)}
        self._weighted = "edge_weight" in part.fields
        self.part = part
        mapped = [part.fields["x"], part.fields["indices"]]
        for number in range(len(self.parts)):
            if topology == "asked" or self._weighted or number == part.number:
                continue
            try:
                other = open_part(self.parts.path, number)
            except StoreError:
                continue  # not here, or not that of this build: its owner has it
            self._edges[number] = _Edges.of(other, replace=replace)
            mapped.append(other.fields["indices"])
        arrays = [one for one in mapped if isinstance(one, np.memmap)]
        # The training will take memory, too: what is free now is not for maps alone.
        self.from_disk = sum(one.nbytes for one in arrays) > free_memory_bytes() // 2
        if self.from_disk:
            advise_random_reads(*arrays)
        self.mapped = len(self._edges)
        self.asks = bool(wire.most(int(self.mapped < len(self.parts))))

    def draw(self, nodes: Tensor, places: Tensor, *, fan_out: int, key: Key) -> Drawn:
        """Draws `fan_out` neighbours of each node, as `sample_neighbours` does on the whole graph.

        All processes call it together where one has to ask.

        Args:
            nodes: any nodes, ``[n]`` int64, which may repeat.
            places: the place of each of them in its level of the whole batch, ``[n]`` int64.
            fan_out: how many.
            key: the stream of draws of that level.
        """
        owners = torch.from_numpy(self.parts.owner(nodes.numpy()))
        children = torch.empty(len(nodes) * fan_out, dtype=torch.int64)
        degree = torch.empty(len(nodes), dtype=torch.int64)
        weighted = self._weighted and not self._replace
        relative = torch.ones(len(children)) if weighted else None

        def put(which: Tensor, found: Drawn) -> None:
            children.view(-1, fan_out)[which] = found.children.view(-1, fan_out)
            degree[which] = found.degree
            if relative is not None and found.relative is not None:
                relative.view(-1, fan_out)[which] = found.relative.view(-1, fan_out)

        for number, edges in self._edges.items():
            which = (owners == number).nonzero()[:, 0]
            if len(which):
                put(which, edges.draw(nodes[which], places[which], fan_out, self._replace, key))
        if self.asks:
            far = torch.tensor([n not in self._edges for n in range(len(self.parts))])
            which = far[owners].nonzero()[:, 0]
            which = which[torch.argsort(owners[which], stable=True)]
            counts = torch.bincount(owners[which], minlength=len(self.parts)).tolist()
            wanted = torch.stack([nodes[which], places[which]], dim=1)
            answer = self._answer(fan_out, key)
            put(which, _unpacked(self._wire.ask(wanted, counts, answer), weighted))
        return Drawn(children, degree, relative)

    def _answer(self, fan_out: int, key: Key):  # type: ignore[no-untyped-def]
        own = self._edges[self._own]
        weighted = self._weighted and not self._replace
        kind = torch.int32 if self.parts.num_nodes < 1 << 31 else torch.int64

        def answer(asked: Tensor) -> tuple[Tensor, ...]:
            nodes, places = asked[:, 0].contiguous(), asked[:, 1].contiguous()
            require_own(self.part, nodes)
            found = own.draw(nodes, places, fan_out, self._replace, key)
            children = found.children.view(-1, fan_out)
            table = torch.cat([children, found.degree[:, None]], dim=1).to(kind)
            if not weighted:
                return (table,)
            ones = torch.ones(children.shape)
            relative = ones if found.relative is None else found.relative.view(-1, fan_out)
            return table, relative.contiguous()

        return answer

    def rows(self, nodes: IntArray) -> tuple[IntArray, IntArray, npt.NDArray[np.float32] | None]:
        """Returns all neighbours of some nodes: how many each has, who they are, their weights.

        All processes call it together, and the owner of a node answers. `nodes` must be ascending.
        """
        fields, first = self.part.fields, self.part.nodes.start

        def answer(asked: Tensor) -> tuple[Tensor, ...]:
            require_own(self.part, asked)
            starts = fields["indptr"][asked.numpy() - first]
            lengths = fields["indptr"][asked.numpy() - first + 1] - starts
            places = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
            places += np.arange(len(places))
            tables = [lengths, np.asarray(fields["indices"][places], np.int64)]
            if self._weighted:
                tables.append(np.asarray(fields["edge_weight"][places]))
            return tuple(torch.from_numpy(np.ascontiguousarray(table)) for table in tables)

        counts = np.diff(np.searchsorted(nodes, self.parts.starts)).tolist()
        wanted = torch.from_numpy(np.ascontiguousarray(nodes))
        lengths, found, *weights = self._wire.ask_lists(wanted, counts, answer)
        return lengths.numpy(), found.numpy(), weights[0].numpy() if weights else None


def require_own(part: Part, nodes: Tensor) -> None:
    """Refuses to answer for nodes that a part does not have.

    Raises:
        StoreError: another process has asked for some; its parts are not these.
    """
    start, stop = part.nodes.start, part.nodes.stop
    if len(nodes) and not start <= int(nodes.min()) <= int(nodes.max()) < stop:
        raise StoreError(f"part {part.number}: is asked for nodes that it lacks")


def _unpacked(tables: tuple[Tensor, ...], weighted: bool) -> Drawn:
    table = tables[0].long()
    relative = tables[1].reshape(-1) if weighted else None
    return Drawn(table[:, :-1].reshape(-1), table[:, -1].contiguous(), relative)
