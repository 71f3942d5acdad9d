"""Inference on typed graphs: exact embeddings, layer by layer, in blocks of rows.

As in `graphcl.embedding`, layer l is computed on all nodes where it is needed before layer l + 1
begins, so two layers are held at a time. Of some nodes, only their neighbourhood is looked at.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphcl.encoders.typed import Message, TypedEncoder, TypedLayer
from graphcl.errors import require
from graphcl.graphs.typed import Key, TypedGraph
from graphcl.graphs.typed_tensors import TypedScaling, typed_tensors
from graphcl.kernels.adjacency import csr_matmul
from graphcl.kernels.buffers import block_height, retry_smaller
from graphcl.kernels.features import Features
from graphcl.kernels.relation import Csr, RelationAdjacency

BLOCK_ROWS = 4096
Rows = npt.NDArray[np.float32]
Relations = Mapping[Key, RelationAdjacency]


@dataclass(frozen=True)
class Table:
    """Rows of a layer for some nodes of a type.

    Attributes:
        rows: ``[nodes, width]``.
        place: the row of each node of the type; None if all nodes are there, in order.
    """

    rows: Tensor
    place: Tensor | None = None

    def of(self, nodes: Tensor) -> Tensor:
        """Returns the rows of some nodes."""
        return self.rows[self.places(nodes)]

    def places(self, nodes: Tensor) -> Tensor:
        """Returns where the rows of some nodes are."""
        return nodes if self.place is None else self.place[nodes]


@torch.no_grad()
def embed_typed(
    encoder: TypedEncoder,
    graph: TypedGraph,
    *,
    device: torch.device,
    scaling: TypedScaling,
    nodes: Mapping[str, npt.NDArray[np.int64] | None] | None = None,
    block_rows: int = BLOCK_ROWS,
    on_rows: Callable[[int, int], None] = lambda *_: None,
) -> dict[str, Rows]:
    """Returns exact embeddings, ``[nodes, width]`` for each type.

    Args:
        encoder: on `device`.
        graph: all its types have features, scaled as in training (`typed_tensors.prepare_like`).
        device: where to compute.
        scaling: of the vectors of edges, as in training.
        nodes: for each type that is wanted, the numbers of its nodes, or None for all of them; None
            means all types.
        block_rows: how many rows are computed at a time.
        on_rows: called after each block with the number of rows done and the total of all layers.
    """
    require(block_rows >= 1, "embed_typed", "block_rows", "at least 1", block_rows)
    encoder.eval()
    x, relations = typed_tensors(graph, device=device, scaling=scaling)
    sizes = {name: one.num_nodes for name, one in graph.nodes.items()}
    wanted = dict.fromkeys(sizes) if nodes is None else nodes
    top: dict[str, Tensor] = {}
    order: dict[str, npt.NDArray[np.int64]] = {}
    for name, some in wanted.items():
        if some is None:
            top[name] = torch.arange(sizes[name], device=device)
        else:
            distinct, order[name] = np.unique(some, return_inverse=True)
            top[name] = torch.from_numpy(distinct).to(device)
    found = retry_smaller(
        lambda: _layer_by_layer(
            encoder, x, relations, sizes, top, block_height(block_rows), on_rows
        )
    )
    arrays = {name: rows.float().cpu().numpy() for name, rows in found.items()}
    return {name: rows[order[name]] if name in order else rows for name, rows in arrays.items()}


def _layer_by_layer(
    encoder: TypedEncoder,
    x: Mapping[str, Features],
    relations: Relations,
    sizes: Mapping[str, int],
    wanted: Mapping[str, Tensor],
    block_rows: int,
    on_rows: Callable[[int, int], None],
) -> dict[str, Tensor]:
    layers = encoder.statement()
    needed = _needed(layers, relations, sizes, wanted)
    total = sum(len(nodes) for level in needed for nodes in level.values())
    done = 0
    h: dict[str, Table] = {}
    for name, nodes in needed[0].items():
        table = next(iter(layers[0].own.values())).new_empty(
            len(nodes), encoder.input_map(name).shape[1]
        )
        for rows in _blocks(len(nodes), block_rows):
            table[rows] = _product(x[name], nodes[rows], encoder.input_map(name))
            done += rows.stop - rows.start
            on_rows(done, total)
        h[name] = _table(table, nodes, sizes[name])
    found = _Found(encoder, wanted)
    found.put_own(x, block_rows)
    for number, layer in enumerate(layers):
        above: dict[str, Table] = {}
        for name, nodes in needed[number + 1].items():
            table = h[name].rows.new_empty(len(nodes), layer.outputs)
            for rows in _blocks(len(nodes), block_rows):
                span = rows if len(nodes) == sizes[name] else None
                table[rows] = _computed(layer, name, nodes[rows], span, h, relations)
                done += rows.stop - rows.start
                on_rows(done, total)
            above[name] = _table(table, nodes, sizes[name])
        h = above
        found.put(number, h)
    return found.tables


class _Found:
    """The embeddings of the wanted nodes, filled part by part."""

    def __init__(self, encoder: TypedEncoder, wanted: Mapping[str, Tensor]) -> None:
        self.encoder, self.wanted = encoder, wanted
        self.last = len(encoder.layer_widths) - 1
        like = encoder.input_map(next(iter(wanted)))
        self.tables = {
            name: like.new_empty(len(nodes), encoder.width) for name, nodes in wanted.items()
        }

    def put_own(self, x: Mapping[str, Features], block_rows: int) -> None:
        """Writes the columns of the nodes' own features."""
        for name, nodes in self.wanted.items():
            part = self.encoder.part(name)
            columns = None if part is None else part.columns(None)
            if part is not None and columns is not None:
                for rows in _blocks(len(nodes), block_rows):
                    own = _product(x[name], nodes[rows], part.projection)
                    self.tables[name][rows, columns] = part.finish(own, columns)

    def put(self, layer: int, h: Mapping[str, Table]) -> None:
        """Writes the columns of a layer."""
        for name, nodes in self.wanted.items():
            part = self.encoder.part(name)
            if part is None:
                if layer == self.last:
                    self.tables[name] = h[name].of(nodes)
                continue
            columns = part.columns(layer)
            if columns is not None:
                self.tables[name][:, columns] = part.finish(h[name].of(nodes), columns)


def _needed(
    layers: tuple[TypedLayer, ...],
    relations: Relations,
    sizes: Mapping[str, int],
    wanted: Mapping[str, Tensor],
) -> list[dict[str, Tensor]]:
    """Returns the nodes on which the input maps, and then each layer, are needed."""
    needed = [dict(wanted)]
    for layer in reversed(layers):
        reached: dict[str, Tensor] = {}
        for name, nodes in needed[0].items():
            _reach(reached, name, nodes, sizes)
            for message in layer.into(name):
                relation = relations.get(message.channel.relation)
                if relation is not None:
                    csr = relation.csr(message.channel.backwards)
                    whole = len(nodes) == sizes[name]
                    senders = csr.indices if whole else csr.rows(nodes)[0].indices
                    _reach(reached, message.channel.sender, senders, sizes)
        needed.insert(0, {name: mask.nonzero()[:, 0] for name, mask in reached.items()})
    return needed


def _reach(reached: dict[str, Tensor], name: str, nodes: Tensor, sizes: Mapping[str, int]) -> None:
    if name not in reached:
        reached[name] = torch.zeros(sizes[name], dtype=torch.bool, device=nodes.device)
    reached[name][nodes] = True


def _computed(
    layer: TypedLayer,
    name: str,
    nodes: Tensor,
    span: slice | None,
    h: Mapping[str, Table],
    relations: Relations,
) -> Tensor:
    """Returns a layer on some nodes of a type; `span` is their range, if they are one."""
    total = h[name].of(nodes) @ layer.own[name]
    for message in layer.into(name):
        relation = relations.get(message.channel.relation)
        if relation is not None and message.channel.sender in h:
            total += _received(message, relation, nodes, span, h)
    return layer.finish(name, total)


def _received(
    message: Message,
    relation: RelationAdjacency,
    nodes: Tensor,
    span: slice | None,
    h: Mapping[str, Table],
) -> Tensor:
    backwards, senders = message.channel.backwards, h[message.channel.sender]
    whole = relation.csr(backwards)
    if span is not None:
        csr, entries = whole.block(span)
        weight = relation.values(backwards)[entries]
    else:
        csr, _ = whole.rows(nodes)
        assert csr.entries is not None
        weight = relation.weight[csr.entries]
    mean = csr_matmul(csr.indptr, senders.places(csr.indices), weight, senders.rows)
    if relation.within:
        own = relation.own_weight(backwards)
        mean += senders.of(nodes) * (own[nodes] if isinstance(own, Tensor) else own)
    mean *= relation.inverse(backwards)[nodes]
    if message.edges is not None and relation.features is not None:
        mean += relation.edge_mean(backwards, nodes) @ message.edges
    return mean @ message.pooled


def _product(x: Features, nodes: Tensor, weight: Tensor) -> Tensor:
    """Returns the features of some nodes times a matrix."""
    if isinstance(x, Tensor):
        return x[nodes] @ weight
    csr, _ = Csr(x.indptr, x.indices).rows(nodes)
    assert csr.entries is not None
    return csr_matmul(csr.indptr, csr.indices, x.values[csr.entries], weight)


def _table(rows: Tensor, nodes: Tensor, size: int) -> Table:
    if len(nodes) == size:
        return Table(rows)
    place = torch.zeros(size, dtype=torch.int64, device=nodes.device)
    place[nodes] = torch.arange(len(nodes), device=nodes.device)
    return Table(rows, place)


def _blocks(size: int, height: int) -> Iterator[slice]:
    for start in range(0, size, height):
        yield slice(start, min(start + height, size))
