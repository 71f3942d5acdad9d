"""A layer of a typed encoder on some rows, from tables of the layer below."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from graphcl.encoders.typed import Message, TypedEncoder, TypedLayer
from graphcl.graphs.schema import Channel
from graphcl.kernels.adjacency import csr_matmul
from graphcl.kernels.features import Features
from graphcl.kernels.relation import Csr, RelationAdjacency
from graphcl.kernels.stored_features import StoredFeatures

Relations = Mapping[Channel, RelationAdjacency]


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


class Found:
    """The embeddings of the wanted nodes, filled part by part."""

    def __init__(self, encoder: TypedEncoder, wanted: Mapping[str, Tensor]) -> None:
        self.encoder, self.wanted = encoder, wanted
        self.last = len(encoder.layer_widths) - 1
        like = encoder.input_map(next(iter(wanted)))
        self.tables = {
            name: like.new_empty(len(nodes), encoder.width) for name, nodes in wanted.items()
        }

    def put_own(self, x: Mapping[str, Features | StoredFeatures], block_rows: int) -> None:
        """Writes the columns of the nodes' own features."""
        for name, nodes in self.wanted.items():
            part = self.encoder.part(name)
            columns = None if part is None else part.columns(None)
            if part is not None and columns is not None:
                for rows in blocks(len(nodes), block_rows):
                    own = product(x[name], nodes[rows], part.projection)
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


def computed(
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
        relation = relations.get(message.channel)
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


def product(x: Features | StoredFeatures, nodes: Tensor, weight: Tensor) -> Tensor:
    """Returns the features of some nodes times a matrix."""
    if isinstance(x, StoredFeatures):
        return x.rows(nodes) @ weight
    if isinstance(x, Tensor):
        return x[nodes] @ weight
    csr, _ = Csr(x.indptr, x.indices).rows(nodes)
    assert csr.entries is not None
    return csr_matmul(csr.indptr, csr.indices, x.values[csr.entries], weight)


def blocks(size: int, height: int) -> Iterator[slice]:
    """Yields ranges of at most `height` rows that make up `size`."""
    for start in range(0, size, height):
        yield slice(start, min(start + height, size))
