"""The features of a graph in parts: how they are scaled, and those of types without any.

It is what `graphcl.graphs.typed_tensors.prepare` and `graphcl.graphs.filling` do with a whole
graph. The rows of neighbours that a mean needs are fetched in blocks; they may be in any part.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from graphcl.distributed import Share
from graphcl.graphs.column_facts import Rows
from graphcl.graphs.filling import filling_order
from graphcl.graphs.relation import NODE, Key
from graphcl.graphs.scaling import Scaling, scale_columns
from graphcl.graphs.schema import Direction, RelationSchema, Schema, TypeSchema
from graphcl.graphs.typed_tensors import TypedScaling
from graphcl.kernels.adjacency import csr_matmul
from graphcl.kernels.buffers import borrow
from graphcl.partitioned.rows import FeatureRows, fit_parts_scaling
from graphcl.partitioned.wire import Wire
from graphcl.store.header import Store
from graphcl.store.moving import entries_of, row_blocks
from graphcl.store.reader import Edges, Part, PartNodes


@dataclass(frozen=True, eq=False)
class PreparedPart:
    """A part of a graph whose types all have features.

    Attributes:
        part: as it is on disk.
        nodes: the part's rows of each type; types without features have got some.
        schema: of the whole graph, and which features were not given.
        scaling: how features are to be scaled; they are not yet, but for those that were filled in
            from neighbours, which stay as they are.
    """

    part: Part
    nodes: Mapping[str, PartNodes]
    schema: Schema
    scaling: TypedScaling

    @classmethod
    def plain(cls, part: Part, scaling: Scaling) -> Self:
        """Prepares a part of a plain graph, whose features are scaled as in a training."""
        return cls(part, part.nodes, schema_of(part.parts), TypedScaling({NODE: scaling}))

    def scaling_of(self, name: str) -> Scaling:
        """Returns how the features of a type are scaled."""
        return self.scaling.nodes.get(name, "none")

    def edges(self, channel: Direction) -> Edges | None:
        """Returns the part's edges in one direction of a relation; None if the graph has none."""
        return self.part.edges.get((channel.relation, channel.backwards))


def schema_of(parts: Store) -> Schema:
    """Returns what a graph in parts is made of; a type without features has 0 of them."""
    types = tuple(TypeSchema(name, one.num_features) for name, one in parts.types.items())
    relations = tuple(
        RelationSchema(*one.key, one.undirected, one.num_edge_features, one.num_edges)
        for one in parts.relations.values()
    )
    return Schema(types, relations)


def prepare_part(part: Part, feature_scaling: str, share: Share, wire: Wire) -> PreparedPart:
    """Decides how the features of a graph to train on are scaled, and fills in what is missing.

    All processes of the group call it together, each with its part.
    """
    schema, scaling = schema_of(part.parts), {}
    edges: dict[Key, Scaling] = {}
    for name, own in part.nodes.items():  # in one order: all processes look at a type together
        if own.parts.num_features:
            scaling[name] = fit_parts_scaling(feature_scaling, own, share)
    if feature_scaling == "auto":
        for key, relation in part.parts.relations.items():
            if relation.num_edge_features and relation.num_edges:
                vectors = part.edges[key, False]["edge_features"]
                edges[key] = scale_columns([Rows(vectors)], share)
    filling = _Filling(PreparedPart(part, part.nodes, schema, TypedScaling(scaling, edges)), wire)
    return filling.fill(lambda own: fit_parts_scaling(feature_scaling, own, share))


def prepare_part_like(
    part: Part, schema: Schema, scaling: TypedScaling, wire: Wire
) -> PreparedPart:
    """Prepares a part as the graph that was trained on.

    Raises:
        GraphError: it has types, relations or features that the other one had not.
    """
    schema.check_like(part.parts.name, schema_of(part.parts))
    filling = _Filling(PreparedPart(part, part.nodes, schema, scaling), wire)
    return filling.fill(None)


class _Filling:
    """Gives features to types without any, one type after the other."""

    def __init__(self, prepared: PreparedPart, wire: Wire) -> None:
        self.now, self.wire = prepared, wire
        self.widths = prepared.schema.widths

    def fill(self, fit: Any) -> PreparedPart:
        """Returns the part with features; `fit` decides how those of structure are scaled."""
        filled: dict[str, str] = {}
        for name, how, channels in filling_order(self.now.schema):
            filled[name] = how
            if name not in self.now.nodes:
                continue
            means = how == "neighbours"
            x = self._means(name, channels) if means else self._structure(name, channels)
            self._put(name, x)
            if fit is not None and not means:
                scaling = {**self.now.scaling.nodes, name: fit(self.now.nodes[name])}
                self.now = replace(self.now, scaling=replace(self.now.scaling, nodes=scaling))
        if fit is None:
            return self.now
        types = tuple(
            TypeSchema(name, self.widths[name], filled.get(name, "given")) for name in self.widths
        )
        return replace(self.now, schema=Schema(types, self.now.schema.relations))

    def _put(self, name: str, x: Any) -> None:
        self.widths[name] = int(x.shape[1])
        own = with_features(self.now.nodes[name], x)
        self.now = replace(self.now, nodes={**self.now.nodes, name: own})

    def _means(self, name: str, channels: list[Direction]) -> Any:
        """Returns the mean of the neighbours' features in each direction, side by side."""
        count, found = _count(self.now.nodes[name]), []
        for channel in channels:
            edges, sender = self.now.edges(channel), channel.sender
            if edges is None:
                found.append(scipy.sparse.csr_array((count, self.widths[sender]), dtype=np.float32))
                continue
            table = FeatureRows(self.now.nodes[sender], self.wire, self.now.scaling_of(sender))
            found.append(_mean(edges, table, self.wire, weight=edges.get("edge_weight")))
        if all(scipy.sparse.issparse(one) for one in found):
            return scipy.sparse.hstack(found, format="csr")
        dense = [one.toarray() if scipy.sparse.issparse(one) else one for one in found]
        return np.concatenate(dense, axis=1)

    def _structure(self, name: str, channels: list[Direction]) -> Any:
        """Returns two columns for each direction; a column of ones for a type without relations."""
        count = _count(self.now.nodes[name])
        columns: list[Any] = []
        for channel in channels:
            edges = self.now.edges(channel)
            if edges is None:
                columns += [np.zeros(count)] * 2
                continue
            relation = self.now.part.parts.relations[channel.relation]
            backwards = channel.backwards if relation.undirected else not channel.backwards
            sent = np.diff(self.now.part.edges[channel.relation, backwards]["indptr"])
            degrees = sent.astype(np.float32)[:, None]
            own = with_features(self.now.part.nodes[channel.sender], degrees)
            table = FeatureRows(own, self.wire, "none")
            around = _mean(edges, table, self.wire, of=lambda x: x.double().log1p())
            columns += [np.log1p(np.diff(edges["indptr"])), np.asarray(around)[:, 0]]
        return np.stack(columns or [np.ones(count)], axis=1).astype(np.float32)


def with_features(part: PartNodes, x: Any) -> PartNodes:
    """Returns a part with other features."""
    parts = replace(part.parts, num_features=int(x.shape[1]))
    return replace(part, parts=parts, fields={**part.fields, "x": x})


def _count(part: PartNodes) -> int:
    return int(part.nodes.stop - part.nodes.start)


def _mean(
    edges: Edges,
    table: FeatureRows,
    wire: Wire,
    *,
    weight: Any = None,
    of: Callable[[Tensor], Tensor] = lambda x: x,
) -> Any:
    """Returns the mean of a table over the neighbours of the part's nodes; 0 without neighbours.

    It is sparse if the table is. All processes call it together. `of` is taken of rows first.
    """
    blocks = list(row_blocks(edges["indptr"], table.row_bytes))
    found: list[Any] = []
    for place in range(wire.most(max(1, len(blocks)))):
        rows = blocks[place] if place < len(blocks) else slice(0, 0)
        local, span = entries_of(edges["indptr"], rows)
        senders, at = np.unique(np.asarray(edges["indices"][span]), return_inverse=True)
        x = of(table.fetch(senders).rows(slice(None)))
        pointers, places = torch.from_numpy(local), torch.from_numpy(at)
        values = x.new_ones(len(at)) if weight is None else borrow(weight)[span]
        sums = torch.segment_reduce(values, "sum", offsets=pointers, axis=0)[:, None]
        mean = csr_matmul(pointers, places, values, x)
        mean *= torch.where(sums > 0, 1 / torch.where(sums > 0, sums, 1), 0)
        found.append(scipy.sparse.csr_array(mean.numpy()) if table.sparse else mean.numpy())
    return scipy.sparse.vstack(found, format="csr") if table.sparse else np.concatenate(found)
