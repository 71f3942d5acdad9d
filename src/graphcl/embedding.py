"""Inference: embeddings of the nodes of a graph, exact, without perturbation.

A small graph is encoded at once. A large one goes layer by layer: layer l is computed for all the
nodes it is needed on, block of rows by block of rows, before layer l + 1 begins. A block needs the
rows of its nodes' neighbours in the layer below, and nothing else, so two layers are held at a
time and the result is the same as that of the whole encoder.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch
from torch import Tensor, nn

from graphcl.devices import available_memory_bytes
from graphcl.distributed import current_share, fill_rows
from graphcl.encoders import stated_layers
from graphcl.errors import require
from graphcl.files.npy import advise_random_reads
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import feature_tensor, stored_features
from graphcl.kernels.adjacency import Adjacency, csr_matmul, self_weights
from graphcl.kernels.blocks import block_height, retry_smaller
from graphcl.kernels.buffers import borrow
from graphcl.kernels.features import Features, SparseFeatures
from graphcl.kernels.stored import StoredFeatures, mean_of_neighbourhoods

BLOCK_ROWS = 4096  # 2 MB a block at dim 128: nothing beside two layers of 10^6 rows
IN_MEMORY = 0.5  # of the free memory: layers that take more go to a scratch file
Table = Features | StoredFeatures


class Csr(NamedTuple):
    """A graph's structure as tensors.

    `weight` is None where every edge has weight 1, `own` where every node's self-weight is 1.
    """

    indptr: Tensor
    indices: Tensor
    weight: Tensor | None = None
    own: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1


@torch.no_grad()
def embed(
    encoder: nn.Module, x: Features, adjacency: Adjacency, *, block_rows: int = 0
) -> npt.NDArray[np.float32]:
    """Returns ``encoder(x, adjacency)`` as a NumPy array, ``[num_nodes, dim]``.

    Args:
        encoder: any encoder.
        x: features.
        adjacency: the graph, on the device of `x`.
        block_rows: layer by layer in blocks of so many rows, for encoders that state their layers;
            0 calls the encoder.
    """
    encoder.eval()
    if block_rows == 0:
        return encoder(x, adjacency).float().cpu().numpy()  # type: ignore[no-any-return]
    csr = Csr(adjacency.indptr, adjacency.indices, adjacency.weight, adjacency.own)
    return _layer_by_layer(encoder, x, csr, block_rows=block_rows).float().cpu().numpy()


@torch.no_grad()
def embed_graph(
    encoder: nn.Module,
    graph: Graph,
    *,
    device: torch.device,
    feature_scaling: str = "none",
    nodes: slice | None = None,
    block_rows: int = BLOCK_ROWS,
    out: Path | None = None,
    scratch: Path | None = None,
    on_rows: Callable[[int, int], None] = lambda *_: None,
) -> npt.NDArray[np.float32]:
    r"""Returns the exact embeddings of a graph that may be large, ``[num_nodes, dim]``.

    Layer by layer, each in blocks of rows: on a CPU the graph is used where it lies, in memory or
    in a store, and beyond it two layers' activations are held. Where `scratch` is given and they
    would take more than half of the free memory, they lie in nameless temporary files there, and
    so does the result.

    Of some `nodes` alone, layer l is computed on the nodes that are L − l hops away or less. That
    saves much in one or two layers, and little in three: with 20 neighbours each, 10^6 of 10^7
    nodes touch nine tenths of the graph in one hop and all of it in two, so that all layers but
    the last cost what they cost for every node. Ask for one large range, not for many small ones:
    each walks its own neighbourhood again.

    In a group of processes each computes its share of every layer's rows and sends them to the
    others, N · dim numbers a layer; rank 0 writes `out`.

    Args:
        encoder: one that states its layers, on `device`.
        graph: any graph.
        device: where to compute.
        feature_scaling: as in training.
        nodes: a range of nodes; None is all of them.
        block_rows: rows that are computed at a time.
        out: an `.npy` file to write the result into; the array returned is its memory map. The
            file appears whole, by rename.
        scratch: a folder for temporary files: 4 · dim bytes per node and layer, two at a time.
        on_rows: called after each block with the rows done and the rows to do, of all layers.
    """
    encoder.eval()
    graph.check()
    csr = Csr(borrow(graph.indptr).to(device), borrow(graph.indices).to(device))
    # Weights of one are no weights: the plain loop gives those bits.
    if graph.edge_weight is not None and not bool((graph.edge_weight == 1).all()):
        weight = borrow(graph.edge_weight).to(device)
        csr = Csr(csr.indptr, csr.indices, weight, self_weights(csr.indptr, weight))
    x: Table
    if device.type == "cpu" and not scipy.sparse.issparse(graph.x) and csr.weight is None:
        x = stored_features(graph, feature_scaling=feature_scaling)
    else:
        x = feature_tensor(graph, device=device, feature_scaling=feature_scaling)
    start, stop, step = (nodes or slice(None)).indices(graph.num_nodes)
    require(step == 1 and start < stop, "embed_graph", "nodes", "a range of nodes", nodes)
    widths = [layer.outputs for layer in stated_layers(encoder, "embed_graph")]
    if device.type == "cpu" and scratch is not None:
        held = 4 * graph.num_nodes * sum(sorted(widths)[-2:])
        scratch = scratch if held > IN_MEMORY * available_memory_bytes(device) else None
    options: dict[str, Any] = {
        "block_rows": block_rows,
        "wanted": torch.arange(start, stop, device=device) if nodes else None,
        "scratch": scratch if device.type == "cpu" else None,
        "on_rows": on_rows,
    }
    if out is None or not current_share().first:
        rows = retry_smaller(lambda: _layer_by_layer(encoder, x, csr, **options))
        return rows.float().cpu().numpy()
    partial = out.with_name(f".{out.name}.partial")
    try:
        table = np.lib.format.open_memmap(
            partial, mode="w+", dtype=np.float32, shape=(stop - start, widths[-1])
        )
        _reserve(partial)
        options["result"] = torch.from_numpy(table)
        retry_smaller(lambda: _layer_by_layer(encoder, x, csr, **options))
        table.flush()
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
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
    """Returns the encoder's output; the last layer's rows go into `result` where it is given."""
    require(block_rows >= 1, "embed", "block_rows", "at least 1", block_rows)
    layers = stated_layers(encoder, "embed")
    last, block_rows = len(layers) - 1, block_height(block_rows)
    needed = _needed(csr, wanted, len(layers), block_rows)
    sizes = [csr.num_nodes if nodes is None else len(nodes) for nodes in needed]
    h, place, done = x, None, 0
    share = current_share()
    to_do = sum(part.stop - part.start for part in map(share.rows, sizes))
    for number, layer in enumerate(layers):
        below, below_place, weight = h, place, layer.pooled
        shape = (sizes[number], layer.outputs)
        h = result if number == last and result is not None else _table(shape, weight, scratch)
        # Sparse rows have no mean that is worth making: there the product goes first.
        first = _product(below, weight, block_rows) if isinstance(below, SparseFeatures) else below
        for rows in _blocks(share.rows(sizes[number]), block_rows):
            nodes = _nodes(needed[number], rows, csr)
            block = _mean(first, csr, nodes, below_place)
            if first is below:
                block = block @ weight
            if layer.own is not None:
                block += _rows(below, nodes, below_place, layer.own)
            h[rows] = layer.finish(block, inplace=True)
            done += rows.stop - rows.start
            on_rows(done, to_do)
        fill_rows(h, share)
        place = _places(needed[number], csr.num_nodes)
        del first  # and with `below`, the layer before: two are held at a time
    assert isinstance(h, Tensor)
    return h


def _needed(csr: Csr, wanted: Tensor | None, layers: int, block_rows: int) -> list[Tensor | None]:
    """Returns the nodes that each layer is needed on, None for all: those the next one pools."""
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
    """Returns the row of each node in a table of some of them."""
    if needed is None:
        return None
    kind = torch.int32 if num_nodes < 1 << 31 else torch.int64
    place = torch.zeros(num_nodes, dtype=kind, device=needed.device)
    place[needed] = torch.arange(len(needed), dtype=kind, device=needed.device)
    return place


def _table(shape: tuple[int, int], like: Tensor, scratch: Path | None) -> Tensor:
    """Returns room for a layer, in memory or in a nameless file that goes when the table goes."""
    if scratch is None:
        return like.new_empty(shape)
    with tempfile.TemporaryFile(dir=scratch) as file:
        os.posix_fallocate(file.fileno(), 0, 4 * shape[0] * shape[1])  # or a full disk is a crash
        table = np.memmap(file, dtype=np.float32, mode="r+", shape=shape)
    advise_random_reads(table)  # neighbours' rows lie anywhere
    return torch.from_numpy(table)


def _reserve(path: Path) -> None:
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


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
    if csr.own is None:
        return around.add_(h[own]).div_((degree + 1)[:, None])
    of_self = csr.own[nodes]
    return around.addcmul_(h[own], of_self[:, None]).div_((degree + of_self)[:, None])


def _entries(csr: Csr, nodes: Tensor) -> Csr:
    """Returns the rows of some nodes, which ascend; those of a range are a slice."""
    first, last = int(nodes[0]), int(nodes[-1])
    if last - first + 1 == len(nodes):
        indptr = csr.indptr[first : last + 2]
        entries = slice(int(indptr[0]), int(indptr[-1]))
        weight = None if csr.weight is None else csr.weight[entries]
        return Csr(indptr - entries.start, csr.indices[entries], weight)
    start = csr.indptr[nodes]
    counts = csr.indptr[nodes + 1] - start
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    places = torch.arange(int(indptr[-1]), device=nodes.device)
    places += torch.repeat_interleave(start - indptr[:-1], counts, output_size=len(places))
    weight = None if csr.weight is None else csr.weight[places]
    return Csr(indptr, csr.indices[places], weight)


def _rows(x: Table, nodes: Tensor, place: Tensor | None, weight: Tensor) -> Tensor:
    """Returns some rows of x @ weight."""
    if isinstance(x, SparseFeatures):
        return _sparse_rows(x, nodes, weight)
    own = nodes if place is None else place[nodes].long()
    return (x.rows(own) if isinstance(x, StoredFeatures) else x[own]) @ weight


def _sparse_rows(x: SparseFeatures, nodes: Tensor, weight: Tensor) -> Tensor:
    csr = _entries(Csr(x.indptr, x.indices, x.values), nodes.to(x.indptr.device))
    assert csr.weight is not None
    return csr_matmul(csr.indptr, csr.indices, csr.weight, weight)


def _blocks(rows: slice, height: int) -> Iterator[slice]:
    for start in range(rows.start, rows.stop, height):
        yield slice(start, min(start + height, rows.stop))
