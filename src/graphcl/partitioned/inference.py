r"""Exact embeddings of a graph in parts: layer by layer, only rows at the boundaries travel.

Each process has one part. The boundary of a type of nodes are those of other parts that edges of
any relation lead to, in the direction in which the type sends. Before layer l a process receives
the rows of layer l − 1 of its boundaries, once each; then it computes layer l on its own nodes.
Rows have the type float32 and the width of the layer below; features that are sparse, or that have
an input map, are multiplied first, and their products travel.

The result is that of `graphcl.embedding` on the whole graph in the same numbering: the loop is the
same, and sums are over neighbours in the same order.

A process holds two tables of float32 for each type: (own + boundary nodes) × the width of the layer
below, and the next one. Beside them it holds its edges in the tables' numbering and the result.

With `scratch`, none of this has to fit into memory. Rows of own nodes, edges and the result are
unnamed files there, which are read and written in order. Rows of neighbours are read in no order,
so they are in memory, but a few columns at a time: a mean takes each column by itself. Bytes that
travel are the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graphcl.arrays import Floats
from graphcl.distributed import Share, max_over
from graphcl.encoders import LayeredEncoder
from graphcl.files.arrays import scratch_array
from graphcl.graphs.scaling import Scaling
from graphcl.graphs.schema import Direction
from graphcl.graphs.tensors import edge_vectors
from graphcl.kernels.adjacency import Adjacency, Pattern
from graphcl.kernels.buffers import borrow
from graphcl.kernels.features import Features
from graphcl.kernels.stored_features import StoredFeatures
from graphcl.layerwise import (
    BLOCK_ROWS,
    Incoming,
    OnRows,
    Table,
    Topology,
    blocks,
    directions_of,
    layer_by_layer,
)
from graphcl.partitioned.boundary import ENTRIES, Boundary
from graphcl.partitioned.features import CPU, PreparedPart, part_features
from graphcl.store.reader import Edges

SLAB_BYTES = 1 << 28  # of the columns that are in memory, with scratch files


def table_bytes(encoder: LayeredEncoder, prepared: PreparedPart) -> int:
    """Returns the most memory that `embed_part` takes beside the part.

    The boundary is not known before the edges are read; it has at most one node per entry.
    """
    first, *_ = levels = encoder.embedding_levels()
    edges = {one: prepared.edges(one) for one in directions_of(encoder)}
    lengths = {one: len(held["indices"]) for one, held in edges.items() if held is not None}
    total = 4 * sum(lengths.values())
    for name, part in prepared.nodes.items():
        own = part.nodes.stop - part.nodes.start
        sent = sum(count for one, count in lengths.items() if one.sender == name)
        rows = min(own + sent, part.type.num_nodes)
        inputs = part.type.num_features if encoder.input_map(name) is None else first[name].outputs
        widths = sorted([inputs, *(level[name].outputs for level in levels)])[-2:]
        total += 4 * (rows * sum(widths) + own * encoder.width)
    return int(total)


class _OfPart(Topology):
    """This process computes the rows of its own nodes, and receives those of its boundaries."""

    def __init__(
        self, boundaries: Mapping[str, Boundary], scratch: Path | None, slab_bytes: int
    ) -> None:
        super().__init__(scratch)
        self._boundaries, self._slab_bytes = boundaries, slab_bytes

    def rows(self, size: int) -> slice:
        return slice(0, size)

    def height(self, node_type: str, size: int) -> int:
        """Returns own rows, and those of the boundary unless tables are in files."""
        return self._boundaries[node_type].rows if self.scratch is None else size

    def start(self, node_type: str, x: Features | StoredFeatures) -> Features | StoredFeatures:
        """Returns the features with those of the boundary; sparse ones are multiplied first."""
        if not isinstance(x, StoredFeatures):
            return x
        height = self.height(node_type, x.shape[0])
        table = self.table((height, x.shape[1]), torch.empty(0))
        for some in blocks(slice(0, x.shape[0]), BLOCK_ROWS):
            table[some] = x.rows(some)
        self.complete(node_type, table)
        return table

    def complete(self, node_type: str, table: Tensor) -> None:
        if self.scratch is None:
            self._boundaries[node_type].fill(table)

    def gather(self, table: Tensor) -> None:
        """Gets nothing: the result is of own nodes alone."""

    def means(self, sender: str, h: Table, edges: Incoming) -> Callable[[Tensor], Tensor]:
        """Returns what gives means; with files, computes all of them, some columns at a time."""
        if self.scratch is None:
            return super().means(sender, h, edges)
        boundary, table = self._boundaries[sender], h.rows
        assert isinstance(table, Tensor)
        width, own = table.shape[1], len(edges.indptr) - 1
        fitting = torch.tensor([-max(1, self._slab_bytes // (4 * max(1, boundary.rows)))])
        columns = min(width, -int(max_over(fitting, boundary.share)))  # the same in all processes
        pooled = self.table((own, width), table)
        for these in blocks(slice(0, width), columns):
            slab = torch.empty(boundary.rows, these.stop - these.start)
            for some in blocks(slice(0, boundary.own), BLOCK_ROWS):
                slab[some] = table[some, these]
            boundary.fill(slab)
            for some in blocks(slice(0, own), BLOCK_ROWS):
                pooled[some, these] = edges.mean(Table(slab), torch.arange(some.start, some.stop))
            del slab  # before there is another
        return lambda nodes: pooled[nodes]


@torch.no_grad()
def embed_part(
    encoder: LayeredEncoder,
    prepared: PreparedPart,
    *,
    share: Share,
    scratch: Path | None = None,
    slab_bytes: int = SLAB_BYTES,
    on_rows: OnRows = lambda *_: None,
) -> dict[str, Floats]:
    """Returns the exact embeddings of a part's nodes, ``[nodes of the part, width]`` for each type.

    All processes of the group call it together, each with the part of its rank, on CPUs.

    Args:
        encoder: an encoder that states its layers; the same in all processes.
        prepared: this process's part, from `open_own_part`, which checks it.
        share: this process's place in the group, as large as there are parts.
        scratch: a folder for temporary files, in all processes or in none; None keeps tables in
            memory.
        slab_bytes: with `scratch`, about how much of a table may be in memory, at least one column.
        on_rows: called after each block with the number of rows done and the total of all layers.
    """
    encoder.eval()
    known = directions_of(encoder)
    edges = {one: held for one in known if (held := prepared.edges(one)) is not None}
    boundaries = {
        name: Boundary.of(
            part, share, [held["indices"] for one, held in edges.items() if one.sender == name]
        )
        for name, part in prepared.nodes.items()
    }
    found = layer_by_layer(
        encoder,
        {
            name: part_features(part, prepared.scaling_of(name))
            for name, part in prepared.nodes.items()
        },
        {
            one: _incoming(one, held, boundaries[one.sender], prepared.scaling, scratch)
            for one, held in edges.items()
        },
        topology=_OfPart(boundaries, scratch, slab_bytes),
        block_rows=BLOCK_ROWS,
        on_rows=on_rows,
    )
    return {name: table.numpy() for name, table in found.items()}


def _incoming(
    direction: Direction,
    edges: Edges,
    boundary: Boundary,
    scaling: Scaling,
    scratch: Path | None,
) -> Incoming:
    """Returns a part's edges of one direction, in the numbering of its tables."""
    given, within = edges["indices"], direction.sender == direction.receiver
    kind = np.int32 if boundary.rows < 1 << 31 else np.int64
    local = scratch_array((len(given),), kind, scratch)
    for block in blocks(slice(0, len(given)), ENTRIES):
        local[block] = boundary.local(np.asarray(given[block]))
    indptr, senders = borrow(edges["indptr"]), torch.from_numpy(local)
    given_weight = edges.get("edge_weight")
    weight = None if given_weight is None else borrow(given_weight)
    found = Incoming.from_csr(indptr, senders, weight, within=within)
    vectors = edge_vectors(
        edges.get("edge_features"), direction.relation, device=CPU, scaling=scaling
    )
    if vectors is None:
        return found
    own = found.self_weight
    pattern = Pattern(indptr, senders.long(), boundary.rows, within, own is not None)
    counted = torch.ones(len(given)) if found.weight is None else found.weight
    return replace(found, edge_mean=Adjacency(pattern, counted, None, own, vectors).edge_mean)
