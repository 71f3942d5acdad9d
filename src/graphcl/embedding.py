"""Inference: the exact embeddings of the nodes of a graph, without perturbation.

A small graph is encoded at once. A large one is encoded layer by layer: layer l is computed on all
nodes where it is needed, in blocks of rows, before layer l + 1 begins. So two layers are held at a
time, and the result is that of the whole encoder. Of some nodes, their neighbourhood is looked at.

On a CPU an embedding has the same bits whatever other nodes the graph has, as long as they are more
than L hops away: see `_stable` and `_finish`.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from graphcl.devices import available_memory_bytes
from graphcl.distributed import current_share, fill_rows
from graphcl.encoders import Layer, LayeredEncoder, SideBySide, stated_layers
from graphcl.errors import require
from graphcl.files.atomic import reserve, whole_file
from graphcl.files.npy import advise_random_reads
from graphcl.graphs.graph import Graph
from graphcl.graphs.neighbourhood import neighbourhood
from graphcl.graphs.scaling import Scaling
from graphcl.graphs.tensors import feature_tensor, stored_features
from graphcl.kernels.adjacency import Adjacency, csr_matmul, self_weights
from graphcl.kernels.buffers import block_height, borrow, retry_smaller
from graphcl.kernels.features import Features, SparseFeatures
from graphcl.kernels.stored_features import StoredFeatures, mean_of_neighbourhoods

UNIT = 64  # rows of a product on a CPU are a multiple of it
GRAIN = 32768  # elements that PyTorch gives to a thread at least (at::internal::GRAIN_SIZE)
BLOCK_ROWS = 4096  # a block takes 2 MB at dim 128, little beside two layers of 10^6 rows
IN_MEMORY = 0.5  # fraction of the free memory; larger layers are kept in scratch files
Table = Features | StoredFeatures


class Csr(NamedTuple):
    """A graph's structure as tensors.

    `weight` is None if every edge has weight 1, and `self_weight` if every node's self-weight is 1.
    """

    indptr: Tensor
    indices: Tensor
    weight: Tensor | None = None
    self_weight: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1


@torch.no_grad()
def embed(
    encoder: nn.Module, x: Features, adjacency: Adjacency, *, block_rows: int = 0
) -> npt.NDArray[np.float32]:
    """Returns the embeddings of all nodes as a NumPy array, ``[num_nodes, dim]``.

    With `block_rows` the layers are computed one by one, in blocks of this many rows; the encoder
    must state its layers then.
    """
    encoder.eval()
    if block_rows == 0:
        encode = encoder.embedding if isinstance(encoder, LayeredEncoder) else encoder
        return np.asarray(encode(x, adjacency).float().cpu())
    csr = Csr(adjacency.indptr, adjacency.indices, adjacency.weight, adjacency.self_weight)
    return _layer_by_layer(encoder, x, csr, block_rows=block_rows).float().cpu().numpy()


@torch.no_grad()
def embed_graph(
    encoder: nn.Module,
    graph: Graph,
    *,
    device: torch.device,
    feature_scaling: Scaling = "none",
    nodes: slice | npt.NDArray[np.int64] | None = None,
    block_rows: int = BLOCK_ROWS,
    out: Path | None = None,
    scratch: Path | None = None,
    on_rows: Callable[[int, int], None] = lambda *_: None,
) -> npt.NDArray[np.float32]:
    r"""Returns the exact embeddings of a graph that may be large, ``[num_nodes, dim]``.

    The layers are computed one by one, in blocks of rows. On a CPU the graph is read where it is,
    in memory or in a store, and two layers of activations are held beside it. If `scratch` is given
    and these would take more than half of the free memory, they and the result are kept in unnamed
    temporary files there.

    With `nodes`, layer l is only computed on the nodes that are at most L − l hops away. A few take
    milliseconds. Of many, this saves much with one or two layers and little with three: with 20
    neighbours each, 10^6 of 10^7 nodes reach nine tenths of the graph in one hop.

    In a group of processes, each process computes its share of every layer's rows and sends them to
    the others, N · dim numbers per layer. Rank 0 writes `out`.

    Args:
        encoder: an encoder that states its layers, on `device`.
        graph: any graph.
        device: where to compute.
        feature_scaling: as in training.
        nodes: a range of nodes, or their numbers in any order; None means all nodes.
        block_rows: how many rows are computed at a time.
        out: an `.npy` file for the result, which appears whole or not at all. The returned array is
            its memory map.
        scratch: a folder for temporary files: 4 · dim bytes per node and layer, for two layers.
        on_rows: called after each block with the number of rows done and the total of all layers.
    """
    encoder.eval()
    graph.check()
    # If every weight is 1, the result must have the bits of an unweighted graph: same loop.
    if graph.edge_weight is not None and bool((graph.edge_weight == 1).all()):
        graph = replace(graph, edge_weight=None)
    layers = stated_layers(encoder, "embed_graph")
    # One layer of many rows reads its table where it is: a part of it would be a copy.
    plain = device.type == "cpu" and isinstance(graph.x, np.ndarray) and feature_scaling == "none"
    many = len(layers) == 1 and isinstance(nodes, np.ndarray) and len(nodes) > BLOCK_ROWS
    if nodes is not None and out is None and not (plain and many and graph.edge_weight is None):
        graph, nodes = neighbourhood(graph, nodes, len(layers))
    csr = Csr(borrow(graph.indptr).to(device), borrow(graph.indices).to(device))
    if graph.edge_weight is not None:
        weight = borrow(graph.edge_weight).to(device)
        csr = Csr(csr.indptr, csr.indices, weight, self_weights(csr.indptr, weight))
    x: Table
    if device.type == "cpu" and not scipy.sparse.issparse(graph.x) and csr.weight is None:
        x = stored_features(graph, feature_scaling=feature_scaling)
    else:
        x = feature_tensor(graph, device=device, feature_scaling=feature_scaling)
    order: Any = slice(None)
    wanted: Tensor | None = None
    if isinstance(nodes, np.ndarray):
        require(out is None, "embed_graph", "nodes", "a range if there is an out", nodes)
        some, order = np.unique(nodes, return_inverse=True)  # rows are computed in ascending order
        start, stop, wanted = 0, len(some), torch.from_numpy(some).to(device)
    else:
        start, stop, step = (nodes or slice(None)).indices(graph.num_nodes)
        require(step == 1 and start < stop, "embed_graph", "nodes", "a range of nodes", nodes)
        wanted = torch.arange(start, stop, device=device) if nodes else None
    widths = [layer.outputs for layer in layers]
    assert isinstance(encoder, LayeredEncoder)
    width = encoder.width
    if device.type == "cpu" and scratch is not None:
        beside = 0 if width == widths[-1] else width
        held = 4 * graph.num_nodes * (sum(sorted(widths)[-2:]) + beside)
        scratch = scratch if held > IN_MEMORY * available_memory_bytes(device) else None
    options: dict[str, Any] = {
        "block_rows": block_rows,
        "wanted": wanted,
        "scratch": scratch if device.type == "cpu" else None,
        "on_rows": on_rows,
    }
    if out is None or not current_share().first:
        found = retry_smaller(lambda: _layer_by_layer(encoder, x, csr, **options)).float().cpu()
        return found.numpy()[order]  # type: ignore[no-any-return]
    with whole_file(out) as staging:
        table = np.lib.format.open_memmap(
            staging, mode="w+", dtype=np.float32, shape=(stop - start, width)
        )
        reserve(staging)
        options["result"] = torch.from_numpy(table)
        retry_smaller(lambda: _layer_by_layer(encoder, x, csr, **options))
        table.flush()
    return np.load(out, mmap_mode="r")  # type: ignore[no-any-return]


def _layer_by_layer(
    encoder: nn.Module,
    x: Table,
    csr: Csr,
    *,
    block_rows: int,
    wanted: Tensor | None = None,
    result: Tensor | None = None,
    scratch: Path | None = None,
    on_rows: Callable[[int, int], None] = lambda *_: None,
) -> Tensor:
    """Returns the encoder's output, written into `result` if that is given.

    The table of a layer only has the rows of the nodes on which the layer is needed. `place` gives
    the row of each node in it; None means that all nodes are there, in order.
    """
    require(block_rows >= 1, "embed", "block_rows", "at least 1", block_rows)
    layers = stated_layers(encoder, "embed")
    last, block_rows = len(layers) - 1, block_height(block_rows)
    needed = _needed(csr, wanted, len(layers), block_rows)
    sizes = [csr.num_nodes if nodes is None else len(nodes) for nodes in needed]
    h, place, done = x, None, 0
    share = current_share()
    beside = getattr(encoder, "beside", None)
    joined = None
    if beside is not None:
        whole = (sizes[last], beside.width)
        table = _table(whole, beside.projection, scratch) if result is None else result
        joined = _Joined(beside, table, lambda rows: _nodes(needed[last], rows, csr), block_rows)
        joined.put(None, lambda nodes: _rows(x, nodes, None, beside.projection))
    to_do = sum(part.stop - part.start for part in map(share.rows, sizes))
    for number, layer in enumerate(layers):
        below, below_place, weight = h, place, layer.pooled
        shape = (sizes[number], layer.outputs)
        into = result if number == last and joined is None else None
        h = _table(shape, weight, scratch) if into is None else into
        # The mean of sparse rows would be dense and as wide as the input: multiply them first.
        source = _product(below, weight, block_rows) if isinstance(below, SparseFeatures) else below
        for rows in _blocks(share.rows(sizes[number]), block_rows):
            nodes = _nodes(needed[number], rows, csr)
            block = _mean(source, csr, nodes, below_place)
            if source is below:
                block = _stable(block, weight)
            if layer.own is not None:
                block += _rows(below, nodes, below_place, layer.own)
            h[rows] = _finish(layer, block)
            done += rows.stop - rows.start
            on_rows(done, to_do)
        fill_rows(h, share)
        place = _places(needed[number], csr.num_nodes)
        del source  # it would keep the layer below alive while the next table is made
        if joined is not None:
            joined.put(number, partial(_held, h, place))
    assert isinstance(h, Tensor)
    if joined is None:
        return h
    fill_rows(joined.table, share)
    return joined.table


class _Joined(NamedTuple):
    """A table of embeddings that hold several results side by side; it is filled part by part.

    Attributes:
        beside: says which columns each result has.
        table: ``[wanted nodes, width]``.
        nodes: returns the nodes of some rows.
        block_rows: how many rows are written at a time.
    """

    beside: SideBySide
    table: Tensor
    nodes: Callable[[slice], Tensor]
    block_rows: int

    def put(self, layer: int | None, part: Callable[[Tensor], Tensor]) -> None:
        """Writes this process's rows of a layer's result (None: own features) for its columns."""
        columns = self.beside.columns(layer)
        if columns is None:
            return
        for rows in _blocks(current_share().rows(len(self.table)), self.block_rows):
            self.table[rows, columns] = self.beside.finish(part(self.nodes(rows)), columns)


def _held(h: Tensor, place: Tensor | None, nodes: Tensor) -> Tensor:
    """Returns the rows of some nodes in the table of a layer."""
    return h[nodes if place is None else place[nodes].long()]


def _needed(csr: Csr, wanted: Tensor | None, layers: int, block_rows: int) -> list[Tensor | None]:
    """Returns the nodes on which each layer is needed (None: all): those the next one pools."""
    needed = [wanted]
    while len(needed) < layers:
        above = needed[0]
        if above is not None:
            reached = torch.zeros(csr.num_nodes, dtype=torch.bool, device=csr.indptr.device)
            reached[above] = True
            for rows in _blocks(slice(0, len(above)), 16 * block_rows):
                reached[_entries(csr, above[rows])[1].long()] = True
            above = None if bool(reached.all()) else reached.nonzero()[:, 0]
        needed.insert(0, above)
    return needed


def _nodes(needed: Tensor | None, rows: slice, csr: Csr) -> Tensor:
    if needed is not None:
        return needed[rows]
    return torch.arange(rows.start, rows.stop, device=csr.indptr.device)


def _places(needed: Tensor | None, num_nodes: int) -> Tensor | None:
    """Returns the row of each node in a table of the `needed` nodes."""
    if needed is None:
        return None
    kind = torch.int32 if num_nodes < 1 << 31 else torch.int64
    place = torch.zeros(num_nodes, dtype=kind, device=needed.device)
    place[needed] = torch.arange(len(needed), dtype=kind, device=needed.device)
    return place


def _table(shape: tuple[int, int], like: Tensor, scratch: Path | None) -> Tensor:
    """Returns an empty table, in memory or in an unnamed file that is deleted with the table."""
    if scratch is None:
        return like.new_empty(shape)
    with tempfile.TemporaryFile(dir=scratch) as file:
        os.posix_fallocate(file.fileno(), 0, 4 * shape[0] * shape[1])  # a full disk would crash it
        table = np.memmap(file, dtype=np.float32, mode="r+", shape=shape)
    advise_random_reads(table)  # rows of neighbours are scattered
    return torch.from_numpy(table)


def _product(x: SparseFeatures, weight: Tensor, block_rows: int) -> Tensor:
    """Returns x @ weight."""
    product = weight.new_empty(x.shape[0], weight.shape[1])
    for rows in _blocks(slice(0, len(product)), block_rows):
        product[rows] = _sparse_rows(x, torch.arange(rows.start, rows.stop), weight)
    return product


def _mean(h: Table, csr: Csr, nodes: Tensor, place: Tensor | None) -> Tensor:
    """Returns some rows of Â h."""
    if not nodes.is_cuda and csr.weight is None:
        table = StoredFeatures(h) if isinstance(h, Tensor) else h
        assert isinstance(table, StoredFeatures)
        return mean_of_neighbourhoods(table, csr.indptr, csr.indices, nodes, place=place)
    assert isinstance(h, Tensor)
    indptr, indices, weight, _ = _entries(csr, nodes)
    weight = h.new_ones(len(indices)) if weight is None else weight
    own = nodes if place is None else place[nodes].long()
    columns = indices.long() if place is None else place[indices.long()].long()
    degree = torch.segment_reduce(weight, "sum", offsets=indptr, axis=0)
    around = csr_matmul(indptr, columns, weight, h)
    if csr.self_weight is None:
        return around.add_(h[own]).div_((degree + 1)[:, None])
    of_self = csr.self_weight[nodes]
    return around.addcmul_(h[own], of_self[:, None]).div_((degree + of_self)[:, None])


def _entries(csr: Csr, nodes: Tensor) -> Csr:
    """Returns the CSR rows of some nodes, which must be in ascending order."""
    first, last = int(nodes[0]), int(nodes[-1])
    if last - first + 1 == len(nodes):  # a range of nodes: slices, without a copy of the entries
        indptr = csr.indptr[first : last + 2]
        entries = slice(int(indptr[0]), int(indptr[-1]))
        weight = None if csr.weight is None else csr.weight[entries]
        return Csr(indptr - entries.start, csr.indices[entries], weight)
    start = csr.indptr[nodes]
    counts = csr.indptr[nodes + 1] - start
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    # Entry k of the result is entry places[k] of `csr`: its place in its row, plus the row's start.
    places = torch.arange(int(indptr[-1]), device=nodes.device)
    places += torch.repeat_interleave(start - indptr[:-1], counts, output_size=len(places))
    weight = None if csr.weight is None else csr.weight[places]
    return Csr(indptr, csr.indices[places], weight)


def _rows(x: Table, nodes: Tensor, place: Tensor | None, weight: Tensor) -> Tensor:
    """Returns some rows of x @ weight."""
    if isinstance(x, SparseFeatures):
        return _sparse_rows(x, nodes, weight)
    own = nodes if place is None else place[nodes].long()
    return _stable(x.rows(own) if isinstance(x, StoredFeatures) else x[own], weight)


def _stable(rows: Tensor, weight: Tensor) -> Tensor:
    """Returns rows @ weight; on a CPU the bits of a row do not depend on the number of rows.

    BLAS has other loops for a single row and for the last rows of a table.
    """
    missing = 0 if rows.is_cuda else -len(rows) % UNIT
    if not missing:
        return rows @ weight
    padded = torch.cat([rows, rows.new_zeros(missing, rows.shape[1])])
    return (padded @ weight)[: len(rows)]


def _finish(layer: Layer, block: Tensor) -> Tensor:
    """Returns `layer.finish` of a block; on a CPU ELU has the same bits wherever a row stands.

    PyTorch computes exponentials eight at a time, and what is left over at the end of a thread's
    share one by one, with other bits. So the shares are made whole.
    """
    shares, threads = -(-block.numel() // GRAIN), torch.get_num_threads()
    if shares > threads:
        shares = -(-shares // threads) * threads
    whole = shares * GRAIN
    if block.is_cuda or layer.activation is not elu or whole == block.numel():
        return layer.finish(block, inplace=True)
    before = replace(layer, activation=None).finish(block)
    flat = block.new_zeros(whole)
    flat[: block.numel()] = before.reshape(-1)
    return elu(flat, inplace=True)[: block.numel()].view(block.shape)


def _sparse_rows(x: SparseFeatures, nodes: Tensor, weight: Tensor) -> Tensor:
    csr = _entries(Csr(x.indptr, x.indices, x.values), nodes.to(x.indptr.device))
    assert csr.weight is not None
    return csr_matmul(csr.indptr, csr.indices, csr.weight, weight)


def _blocks(rows: slice, height: int) -> Iterator[slice]:
    for start in range(rows.start, rows.stop, height):
        yield slice(start, min(start + height, rows.stop))
