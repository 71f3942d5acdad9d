r"""Exact embeddings of a graph in parts: layer by layer, only rows at the boundaries travel.

Each process has one part. Before layer l it receives the rows of layer l − 1 of its boundary, once
each; then it computes layer l on its own nodes. Rows have the type float32 and the width of the
layer below; features that are sparse are multiplied first, and their products travel. A process
sends and receives, per layer, as many rows as its boundary has.

The result is that of `graphcl.embedding.embed_graph` on the whole graph in the same numbering.
Means are sums over neighbours in the same order, so dense float32 features give the same bits up to
the rounding of products, whose blocks begin elsewhere: the difference is that of the order of sums.

A process holds two tables of float32: (own + boundary nodes) × the width of the layer below, and
the next one. Beside them it holds its edges in the table's numbering, 4 bytes per entry (8 from
2^31 rows on), and the result.

With `scratch`, none of this has to fit into memory. Rows of own nodes, edges and the result are
unnamed files there, which are read and written in order. Rows of neighbours are read in no order,
so they are in memory, but a few columns at a time: a mean takes each column by itself. Bytes that
travel are the same.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphcl.distributed import Share, max_over
from graphcl.encoders import Layer, LayeredEncoder, stated_layers
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import Scaling
from graphcl.graphs.tensors import feature_tensor, stored_features
from graphcl.kernels.adjacency import csr_matmul, self_weights
from graphcl.kernels.buffers import borrow
from graphcl.kernels.features import SparseFeatures
from graphcl.kernels.stored_features import StoredFeatures, mean_of_neighbourhoods
from graphcl.partitioned.boundary import ENTRIES, Boundary, scratch_array
from graphcl.store.parts import Part

BLOCK_ROWS = 4096  # computed at a time
SLAB_BYTES = 1 << 28  # of the columns that are in memory, with scratch files
CPU = torch.device("cpu")
OnRows = Callable[[int, int], None]


def table_bytes(encoder: torch.nn.Module, part: Part) -> int:
    """Returns the most memory that `embed_part` takes beside the part.

    The boundary is not known before the edges are read; it has at most one node per entry.
    """
    layers = stated_layers(encoder, "embed_part")
    assert isinstance(encoder, LayeredEncoder)
    entries, own = len(part.fields["indices"]), part.nodes.stop - part.nodes.start
    rows = min(own + entries, part.parts.num_nodes)
    widths = sorted([part.parts.num_features, *(layer.outputs for layer in layers)])[-2:]
    return int(4 * (rows * sum(widths) + own * encoder.width + entries))


class _Rows:
    """The edges of a part's nodes, in the numbering of its tables."""

    def __init__(self, part: Part, boundary: Boundary, scratch: Path | None) -> None:
        indices = part.fields["indices"]
        kind = np.int32 if boundary.rows < 1 << 31 else np.int64
        local = scratch_array((len(indices),), kind, scratch)
        for start in range(0, len(indices), ENTRIES):
            block = slice(start, start + ENTRIES)
            local[block] = boundary.local(np.asarray(indices[block]))
        self.indptr, self.indices = borrow(part.fields["indptr"]), torch.from_numpy(local)
        weight = part.fields.get("edge_weight")
        self.weight = None if weight is None or bool((weight == 1).all()) else borrow(weight)

    def mean(self, table: Tensor, rows: slice) -> Tensor:
        """Returns the means of a table over some nodes and their neighbours."""
        if self.weight is None:
            nodes = torch.arange(rows.start, rows.stop)
            return mean_of_neighbourhoods(StoredFeatures(table), self.indptr, self.indices, nodes)
        indptr = self.indptr[rows.start : rows.stop + 1]
        entries = slice(int(indptr[0]), int(indptr[-1]))
        indptr, weight = indptr - indptr[0], self.weight[entries]
        of_self = self_weights(indptr, weight)
        degree = torch.segment_reduce(weight, "sum", offsets=indptr, axis=0)
        around = csr_matmul(indptr, self.indices[entries].long(), weight, table)
        own = table[rows] * of_self[:, None]
        return around.add_(own).div_((degree + of_self)[:, None])


@torch.no_grad()
def embed_part(
    encoder: torch.nn.Module,
    part: Part,
    *,
    share: Share,
    feature_scaling: Scaling = "none",
    scratch: Path | None = None,
    slab_bytes: int = SLAB_BYTES,
    on_rows: OnRows = lambda *_: None,
) -> npt.NDArray[np.float32]:
    """Returns the exact embeddings of a part's nodes, ``[nodes of the part, dim]``.

    All processes of the group call it together, each with the part of its rank, on CPUs.

    Args:
        encoder: an encoder that states its layers; the same in all processes.
        part: this process's part, from `open_own_part`, which checks it.
        share: this process's place in the group, as large as there are parts.
        feature_scaling: as in training.
        scratch: a folder for temporary files, in all processes or in none; None keeps tables in
            memory.
        slab_bytes: with `scratch`, about how much of a table may be in memory, at least one column.
        on_rows: called after each block with the number of rows done and the total of all layers.
    """
    encoder.eval()
    layers = stated_layers(encoder, "embed_part")
    assert isinstance(encoder, LayeredEncoder)
    boundary = Boundary.of(part, share)
    rows = _Rows(part, boundary, scratch)
    features = part_features(part, feature_scaling)
    z = torch.from_numpy(scratch_array((boundary.own, encoder.width), np.float32, scratch))
    beside = encoder.beside
    if beside is not None and (columns := beside.columns(None)) is not None:
        for some in _blocks(boundary.own):
            z[some, columns] = beside.finish(_times(features, some, beside.projection), columns)
    height = boundary.rows if scratch is None else boundary.own
    table = _table(features, layers[0], boundary.own, height, scratch)
    done, total = 0, boundary.own * len(layers)
    for number, layer in enumerate(layers):
        last = number + 1 == len(layers)
        means = _means(table, rows, boundary, scratch, slab_bytes)
        shape = (boundary.own if last else height, layer.outputs)
        above = torch.from_numpy(scratch_array(shape, np.float32, scratch))
        multiplied = number == 0 and isinstance(features, SparseFeatures)
        for some in _blocks(boundary.own):
            block = means(some)
            if not multiplied:
                block = block @ layer.pooled
            if layer.own is not None:
                block = block + _times(features if multiplied else table, some, layer.own)
            above[some] = layer.finish(block, inplace=True)
            if beside is None:
                if last:
                    z[some] = above[some]
            elif (columns := beside.columns(number)) is not None:
                z[some, columns] = beside.finish(above[some], columns)
            done += some.stop - some.start
            on_rows(done, total)
        table = above
    found: npt.NDArray[np.float32] = z.numpy()
    return found


def _means(
    table: Tensor, rows: _Rows, boundary: Boundary, scratch: Path | None, slab_bytes: int
) -> Callable[[slice], Tensor]:
    """Receives the boundary, and returns what gives the means over some nodes and neighbours.

    Without scratch files, `table` has room for the boundary. With them it has own rows alone, and
    the means of all nodes are computed column by column, as many at a time as fit in memory.
    """
    if scratch is None:
        boundary.fill(table)
        return lambda some: rows.mean(table, some)
    width = table.shape[1]
    fitting = torch.tensor([-max(1, slab_bytes // (4 * max(1, boundary.rows)))])
    columns = min(width, -int(max_over(fitting, boundary.share)))  # the same in all processes
    pooled = torch.from_numpy(scratch_array((boundary.own, width), np.float32, scratch))
    for start in range(0, width, columns):
        these = slice(start, min(start + columns, width))
        slab = torch.empty(boundary.rows, these.stop - these.start)
        for some in _blocks(boundary.own):
            slab[some] = table[some, these]
        boundary.fill(slab)
        for some in _blocks(boundary.own):
            pooled[some, these] = rows.mean(slab, some)
        del slab  # before there is another
    return lambda some: pooled[some].clone()


def part_features(part: Part, feature_scaling: Scaling) -> StoredFeatures | SparseFeatures | Tensor:
    """Returns the features of a part's nodes, scaled as they are read or sparse."""
    fields = part.fields
    own = Graph(fields["indptr"], fields["indices"], fields["x"], name=fields["name"])
    if hasattr(fields["x"], "indptr"):
        return feature_tensor(own, device=CPU, feature_scaling=feature_scaling)
    return stored_features(own, feature_scaling=feature_scaling)


def _table(features: Any, layer: Layer, own: int, height: int, scratch: Path | None) -> Tensor:
    """Returns the table that the first layer pools, with own rows filled in."""
    sparse = isinstance(features, SparseFeatures)
    width = layer.outputs if sparse else features.shape[1]
    table = torch.from_numpy(scratch_array((height, width), np.float32, scratch))
    for some in _blocks(own):
        if sparse:
            table[some] = _times(features, some, layer.pooled)
        else:
            table[some] = features.rows(some) if hasattr(features, "rows") else features[some]
    return table


def _times(features: Any, some: slice, weight: Tensor) -> Tensor:
    """Returns some rows of features @ weight."""
    if isinstance(features, SparseFeatures):
        indptr = features.indptr[some.start : some.stop + 1]
        entries = slice(int(indptr[0]), int(indptr[-1]))
        values = features.values[entries]
        return csr_matmul(indptr - indptr[0], features.indices[entries], values, weight)
    rows = features.rows(some) if isinstance(features, StoredFeatures) else features[some]
    return rows @ weight


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, count))
