"""An encoder computed layer by layer, on graphs of any types, relations and size.

Layer l is computed on all nodes where it is needed, in blocks of rows, before layer l + 1 begins.
So two layers are held at a time, and the result is that of the whole encoder.

There is one loop for one process or several. It asks a `Topology` which rows this process computes
and where the others come from: here every process has the whole graph; in
`graphcl.partitioned.inference` each has a part of it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from graphcl.distributed import current_share, fill_rows
from graphcl.encoders import Layer, LayeredEncoder, layered
from graphcl.errors import require
from graphcl.files.arrays import advise_random_reads, scratch_array
from graphcl.graphs.schema import Direction
from graphcl.kernels.adjacency import Adjacency, Csr, csr_matmul, self_weights
from graphcl.kernels.buffers import block_height
from graphcl.kernels.features import Features, SparseFeatures, stable_product
from graphcl.kernels.stored_features import StoredFeatures, mean_of_neighbourhoods

BLOCK_ROWS = 4096  # a block takes 2 MB at dim 128, little beside two layers of 10^6 rows
OnRows = Callable[[int, int], None]
Wanted = Mapping[str, Tensor | None]  # nodes by type, ascending; None: all of them


@dataclass(frozen=True)
class Table:
    """Features, or the result of a layer, for some nodes of a type.

    Attributes:
        rows: ``[nodes, width]``.
        place: the row of each node of the type; None if all nodes are there, in order.
    """

    rows: Features | StoredFeatures
    place: Tensor | None = None

    def places(self, nodes: Tensor) -> Tensor:
        """Returns where the rows of some nodes are."""
        return nodes if self.place is None else self.place[nodes].long()

    def of(self, nodes: Tensor) -> Tensor:
        """Returns the rows of some nodes, dense."""
        where = self.places(nodes)
        assert not isinstance(self.rows, SparseFeatures)
        return self.rows.rows(where) if isinstance(self.rows, StoredFeatures) else self.rows[where]

    def times(self, nodes: Tensor, weight: Tensor) -> Tensor:
        """Returns the rows of some nodes times a matrix."""
        if not isinstance(self.rows, SparseFeatures):
            return stable_product(self.of(nodes), weight)
        csr, entries = _entries(self.rows.indptr, self.rows.indices, self.places(nodes))
        return csr_matmul(csr.indptr, csr.indices, self.rows.values[entries], weight)


@dataclass(frozen=True, eq=False)
class Incoming:
    """The edges of one direction of a relation, by receiver.

    Attributes:
        indptr: row pointers, ``[receivers + 1]``.
        indices: the sender of each entry.
        weight: of each entry; None if all are 1.
        self_weight: of each receiver; None if all are 1, or 0 between two types.
        within: whether receivers and senders are of one type.
        edge_mean: returns the means of edges' vectors of some nodes; None if there are none.
    """

    indptr: Tensor
    indices: Tensor
    weight: Tensor | None = None
    self_weight: Tensor | None = None
    within: bool = True
    edge_mean: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def from_csr(
        cls, indptr: Tensor, indices: Tensor, weight: Tensor | None, *, within: bool = True
    ) -> "Incoming":
        """Returns edges without vectors; if every weight is 1, they have none.

        The result must then have the bits of an unweighted graph: same loop.
        """
        if weight is None or bool((weight == 1).all()):
            return cls(indptr, indices, within=within)
        own = self_weights(indptr, weight) if within else None
        return cls(indptr, indices, weight, own, within)

    @classmethod
    def of(cls, adjacency: Adjacency) -> "Incoming":
        """Returns the edges of an adjacency."""
        same = adjacency.self_weight is None and bool((adjacency.weight == 1).all())
        return cls(
            adjacency.indptr,
            adjacency.indices,
            None if same else adjacency.weight,
            adjacency.self_weight,
            adjacency.within,
            None if adjacency.features is None else adjacency.edge_mean,
        )

    def senders(self, nodes: Tensor | None) -> Tensor:
        """Returns the senders of some nodes, or of all."""
        return self.indices if nodes is None else _entries(self.indptr, self.indices, nodes)[0][1]

    def mean(self, h: Table, nodes: Tensor) -> Tensor:
        """Returns the means of some nodes over their senders and, within a type, themselves."""
        if not nodes.is_cuda and self.weight is None and not isinstance(h.rows, SparseFeatures):
            stored = h.rows if isinstance(h.rows, StoredFeatures) else StoredFeatures(h.rows)
            return mean_of_neighbourhoods(
                stored, self.indptr, self.indices, nodes, place=h.place, within=self.within
            )
        assert isinstance(h.rows, Tensor)
        csr, entries = _entries(self.indptr, self.indices, nodes)
        weight = h.rows.new_ones(len(csr.indices)) if self.weight is None else self.weight[entries]
        degree = torch.segment_reduce(weight, "sum", offsets=csr.indptr, axis=0)
        around = csr_matmul(csr.indptr, h.places(csr.indices.long()), weight, h.rows)
        if not self.within:
            return around.div_(torch.where(degree > 0, degree, 1)[:, None])
        own = h.rows[h.places(nodes)]
        if self.self_weight is None:
            return around.add_(own).div_((degree + 1)[:, None])
        of_self = self.self_weight[nodes]
        return around.addcmul_(own, of_self[:, None]).div_((degree + of_self)[:, None])


def _entries(indptr: Tensor, indices: Tensor, nodes: Tensor) -> tuple[Csr, slice | Tensor]:
    """Returns the CSR rows of some nodes, which must ascend, and which entries these are."""
    if not len(nodes):
        return Csr(nodes.new_zeros(1), indices[:0]), slice(0, 0)
    first, last = int(nodes[0]), int(nodes[-1])
    if last - first + 1 == len(nodes):  # a range of nodes: slices, without a copy of the entries
        return Csr(indptr, indices).block(slice(first, last + 1))
    csr, _ = Csr(indptr, indices).rows(nodes)
    assert csr.entries is not None
    return Csr(csr.indptr, csr.indices), csr.entries


class Topology:
    """Which rows this process computes, and how it gets the others: here, all have the graph.

    In a group of processes, each process computes its share of every layer's rows and sends them to
    the others.
    """

    def __init__(self, scratch: Path | None = None) -> None:
        self.scratch, self._share = scratch, current_share()

    def rows(self, size: int) -> slice:
        """Returns the rows of a table that this process computes."""
        return self._share.rows(size)

    def height(self, node_type: str, size: int) -> int:  # noqa: ARG002 (the same for all types)
        """Returns the rows of a table that the next layer pools."""
        return size

    def start(self, node_type: str, x: Features | StoredFeatures) -> Features | StoredFeatures:  # noqa: ARG002
        """Returns the features that the first layer pools."""
        return x

    def complete(self, node_type: str, table: Tensor) -> None:  # noqa: ARG002
        """Gets the rows of a table that this process has not computed."""
        fill_rows(table, self._share)

    def gather(self, table: Tensor) -> None:
        """Gets the rows of the result that this process is to have, and has not computed."""
        fill_rows(table, self._share)

    def means(self, sender: str, h: Table, edges: Incoming) -> Callable[[Tensor], Tensor]:  # noqa: ARG002
        """Returns what gives the means of some nodes."""
        return partial(edges.mean, h)

    def table(self, shape: tuple[int, int], like: Tensor) -> Tensor:
        """Returns an empty table, in memory or in an unnamed file that is deleted with it."""
        if self.scratch is None:
            return like.new_empty(shape)
        table = scratch_array(shape, np.float32, self.scratch)
        if isinstance(table, np.memmap):
            advise_random_reads(table)  # rows of neighbours are scattered
        return torch.from_numpy(table)


def directions_of(encoder: LayeredEncoder) -> list[Direction]:
    """Returns the directions of relations that an encoder uses, in one order."""
    layers = [layer for level in encoder.levels() for layer in level.values()]
    return sorted({message.direction for layer in layers for message in layer.received})


def layer_by_layer(
    encoder: nn.Module,
    x: Mapping[str, Features | StoredFeatures],
    edges: Mapping[Direction, Incoming],
    *,
    wanted: Wanted | None = None,
    block_rows: int = BLOCK_ROWS,
    topology: Topology | None = None,
    results: Mapping[str, Tensor] | None = None,
    on_rows: OnRows = lambda *_: None,
) -> dict[str, Tensor]:
    """Returns the encoder's embeddings by type, written into `results` if these are given.

    The table of a layer only has the rows of the nodes on which the layer is needed.

    Args:
        encoder: states its layers.
        x: the features of each type.
        edges: of each direction in which messages travel; where a graph lacks one, none do.
        wanted: the nodes to embed, by type; None: all.
        block_rows: how many rows are computed at a time.
        topology: where rows come from.
        results: tables for the embeddings.
        on_rows: called after each block with the number of rows done and the total of all layers.
    """
    require(block_rows >= 1, "embed", "block_rows", "at least 1", block_rows)
    encoder = layered(encoder, "embed")
    levels, block_rows = encoder.embedding_levels(), block_height(block_rows)
    topology = Topology() if topology is None else topology
    sizes = {name: table.shape[0] for name, table in x.items()}
    like = next(iter(levels[0].values())).received[0].pooled
    wanted = dict.fromkeys(x) if wanted is None else wanted
    maps = {name: encoder.embedding_map(name) for name in x}
    mapped = any(one is not None for one in maps.values())  # else the features are there
    needed = _needed(levels[not mapped :], edges, sizes, wanted, like.device)
    needed = needed if mapped else [{}, *needed]
    counts = [_counted(level, sizes) for level in needed]
    done = 0
    parts = [topology.rows(size) for level in counts for size in level.values()]
    total = sum(part.stop - part.start for part in parts)

    def computed(size: int, nodes: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
        """Yields rows of a table, and their nodes; says how far it is."""
        nonlocal done
        for rows in blocks(topology.rows(size), block_rows):
            yield rows, _nodes(nodes, rows, like.device)
            done += rows.stop - rows.start
            on_rows(done, total)

    parts_of = {name: part for name in wanted if (part := encoder.part(name)) is not None}
    given = results or {}
    beside = {
        name: given[name] if name in given else topology.table((counts[-1][name], part.width), like)
        for name, part in parts_of.items()
    }

    def put(layer: int | None, h: Mapping[str, Table]) -> None:
        """Writes own rows of a layer's result (None: own features) where results stand beside."""
        for name, part in parts_of.items():
            columns = part.columns(layer)
            if columns is None:
                continue
            for rows in blocks(topology.rows(counts[-1][name]), block_rows):
                some = _nodes(wanted[name], rows, like.device)
                own = (
                    h[name].of(some) if layer is not None else h[name].times(some, part.projection)
                )
                beside[name][rows, columns] = part.finish(own, columns)

    put(None, {name: Table(rows) for name, rows in x.items()})
    h: dict[str, Table] = {}
    for name, weight in maps.items():
        if weight is None:
            h[name] = Table(topology.start(name, x[name]))
        elif name in needed[0]:
            size, nodes, source = counts[0][name], needed[0][name], Table(x[name])
            table = topology.table((topology.height(name, size), weight.shape[1]), like)
            for rows, some in computed(size, nodes):
                table[rows] = source.times(some, weight)
            topology.complete(name, table)
            h[name] = _table(table, nodes, sizes[name])
    for number, level in enumerate(levels):
        last, above = number + 1 == len(levels), {}
        for name, nodes in needed[number + 1].items():
            layer, size = level[name], counts[number + 1][name]
            height = size if last else topology.height(name, size)
            direct = last and name in given and name not in beside
            table = given[name] if direct else topology.table((height, layer.outputs), like)
            terms = _terms(layer, name, h, edges, topology, sizes, block_rows)
            for rows, some in computed(size, nodes):
                table[rows] = _computed(layer, [term(some) for term in terms], len(some))
            del terms  # they would keep the layer below alive while the next table is made
            if last:
                topology.gather(table)
            else:
                topology.complete(name, table)
            above[name] = _table(table, nodes, sizes[name])
        h = above
        put(number, h)
    for table in beside.values():
        topology.gather(table)
    return {name: cast("Tensor", h[name].rows) for name in wanted} | beside


def _computed(layer: Layer, terms: list[Tensor], rows: int) -> Tensor:
    if not terms:
        return layer.finish_rows(layer.received[0].pooled.new_zeros(rows, layer.outputs))
    total, *others = terms
    for one in others:
        total += one
    return layer.finish_rows(total)


def _terms(
    layer: Layer,
    name: str,
    h: Mapping[str, Table],
    edges: Mapping[Direction, Incoming],
    topology: Topology,
    sizes: Mapping[str, int],
    block_rows: int,
) -> list[Callable[[Tensor], Tensor]]:
    """Returns what gives the parts of a layer's sum for some nodes: their own rows, and messages.

    The mean of sparse rows would be dense and as wide as the input: they are multiplied first.
    """
    terms: list[Callable[[Tensor], Tensor]] = []
    if layer.own is not None:
        terms.append(partial(h[name].times, weight=layer.own))
    for message in layer.received:
        along, sender = edges.get(message.direction), message.direction.sender
        if along is None or sender not in h:
            continue
        weight, table = message.pooled, h[sender]
        if isinstance(table.rows, SparseFeatures):
            size = sizes[sender]
            moved = topology.table((topology.height(sender, size), weight.shape[1]), weight)
            for rows in blocks(topology.rows(size), block_rows):
                moved[rows] = table.times(_nodes(None, rows, weight.device), weight)
            topology.complete(sender, moved)
            terms.append(topology.means(sender, Table(moved), along))
        else:
            terms.append(partial(_product, topology.means(sender, table, along), weight))
        if message.edges is not None and along.edge_mean is not None:
            terms.append(partial(_product, along.edge_mean, message.edges @ weight))
    return terms


def _product(mean: Callable[[Tensor], Tensor], weight: Tensor, nodes: Tensor) -> Tensor:
    return stable_product(mean(nodes), weight)


def _needed(
    levels: tuple[Mapping[str, Layer], ...],
    edges: Mapping[Direction, Incoming],
    sizes: Mapping[str, int],
    wanted: Wanted,
    device: torch.device,
) -> list[dict[str, Tensor | None]]:
    """Returns the nodes on which the input, and then each layer, is needed (None: all of a type).

    These are those that the layer above is needed on, and those that send to them.
    """
    needed: list[dict[str, Tensor | None]] = [dict(wanted)]
    if wanted.keys() == sizes.keys() and all(nodes is None for nodes in wanted.values()):
        return needed * (len(levels) + 1)
    for level in reversed(levels):
        reached: dict[str, Tensor | None] = {}
        for name, nodes in needed[0].items():
            _reach(reached, name, nodes, sizes, device)
            for message in level[name].received:
                along, sender = edges.get(message.direction), message.direction.sender
                if along is None or (along.within and nodes is None) or sender not in sizes:
                    continue
                for some in [None] if nodes is None else torch.split(nodes, 16 * BLOCK_ROWS):
                    _reach(reached, sender, along.senders(some).long(), sizes, device)
        for name, mask in reached.items():
            if mask is not None:
                reached[name] = None if bool(mask.all()) else mask.nonzero()[:, 0]
        needed.insert(0, reached)
    return needed


def _reach(
    reached: dict[str, Tensor | None],
    name: str,
    nodes: Tensor | None,
    sizes: Mapping[str, int],
    device: torch.device,
) -> None:
    """Marks nodes of a type; None stands for all."""
    if nodes is None:
        reached[name] = None
        return
    if name not in reached:
        reached[name] = torch.zeros(sizes[name], dtype=torch.bool, device=device)
    mask = reached[name]
    if mask is not None:
        mask[nodes] = True


def _counted(level: Wanted, sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: sizes[name] if some is None else len(some) for name, some in level.items()}


def _nodes(needed: Tensor | None, rows: slice, device: torch.device) -> Tensor:
    if needed is not None:
        return needed[rows]
    return torch.arange(rows.start, rows.stop, device=device)


def _table(rows: Tensor, nodes: Tensor | None, size: int) -> Table:
    """Returns the table of some nodes (None: all) of a type that has `size` of them."""
    if nodes is None:
        return Table(rows)
    kind = torch.int32 if size < 1 << 31 else torch.int64
    place = torch.zeros(size, dtype=kind, device=nodes.device)
    place[nodes] = torch.arange(len(nodes), dtype=kind, device=nodes.device)
    return Table(rows, place)


def blocks(rows: slice, height: int) -> Iterator[slice]:
    """Yields ranges of at most `height` rows that make up `rows`."""
    for start in range(rows.start, rows.stop, height):
        yield slice(start, min(start + height, rows.stop))
