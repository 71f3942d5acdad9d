"""Inference: embeddings of every node of a graph, exact, without perturbation."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from graphcl.distributed import current_share, fill_rows
from graphcl.errors import require
from graphcl.graph import Graph
from graphcl.kernels.borrow import borrow
from graphcl.kernels.csr import Adjacency, Features, SparseFeatures, csr_matmul
from graphcl.tensors import feature_tensor, layer_weights

BLOCK_ROWS = 4096  # 2 MB a block at dim 128: nothing beside two layers of 10^6 rows


@torch.no_grad()
def embed(
    encoder: nn.Module, x: Features, adjacency: Adjacency, *, block_rows: int = 0
) -> npt.NDArray[np.float32]:
    """Returns ``encoder(x, adjacency)`` as a NumPy array, ``[num_nodes, dim]``.

    Args:
        encoder: any encoder.
        x: features.
        adjacency: the graph, on the device of `x`.
        block_rows: layer by layer in blocks of so many rows, for the encoders `mean` and
            `residual`: no more than two layers' activations are held at a time. 0 calls the
            encoder.
    """
    encoder.eval()
    if block_rows == 0:
        return encoder(x, adjacency).float().cpu().numpy()  # type: ignore[no-any-return]
    csr = (adjacency.indptr, adjacency.indices, adjacency.weight)
    return _layer_by_layer(encoder, x, csr, block_rows).float().cpu().numpy()


@torch.no_grad()
def embed_graph(
    encoder: nn.Module,
    graph: Graph,
    *,
    device: torch.device,
    feature_scaling: str = "none",
    block_rows: int = BLOCK_ROWS,
    out: Path | None = None,
) -> npt.NDArray[np.float32]:
    """Returns the exact embeddings of a graph that may be large, ``[num_nodes, dim]``.

    Beyond the graph it takes two layers' activations: twice the size of the result. On a CPU the
    graph is used where it lies. In a group of processes each computes its share of every layer's
    rows and sends them to the others, N · dim numbers a layer; rank 0 writes `out`.

    Args:
        encoder: `mean` or `residual`, on `device`.
        graph: any graph.
        device: where to compute.
        feature_scaling: as in training.
        block_rows: rows that are computed at a time.
        out: an `.npy` file to write the result into; the array returned is its memory map. The
            file appears whole, by rename.
    """
    encoder.eval()
    x = feature_tensor(graph, device=device, feature_scaling=feature_scaling)
    indices = borrow(graph.indices).to(device)
    csr = (borrow(graph.indptr).to(device), indices, None)
    if out is None or not current_share().first:
        return _layer_by_layer(encoder, x, csr, block_rows).float().cpu().numpy()
    partial = out.with_name(f".{out.name}.partial")
    shape = (graph.num_nodes, layer_weights(encoder)[0][-1].shape[1])
    try:
        table = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
        _layer_by_layer(encoder, x, csr, block_rows, result=torch.from_numpy(table))
        table.flush()
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return np.load(out, mmap_mode="r")  # type: ignore[no-any-return]


def _layer_by_layer(
    encoder: nn.Module,
    x: Features,
    csr: tuple[Tensor, Tensor, Tensor | None],
    block_rows: int,
    *,
    result: Tensor | None = None,
) -> Tensor:
    """Returns the encoder's output; the last layer's rows go into `result` where it is given."""
    require(block_rows >= 1, "embed", "block_rows", "at least 1", block_rows)
    weights, own_weights = layer_weights(encoder)
    num_nodes, last = len(csr[0]) - 1, len(weights) - 1
    share = current_share()
    h: Features = x
    for layer, weight in enumerate(weights):
        activated = layer < last or (last == 0 and not own_weights)
        below = h
        if layer == last and result is not None:
            h = result
        else:
            h = weight.new_empty(num_nodes, weight.shape[1])
        # Sparse rows have no mean that is worth making: there the product goes first.
        first = below if isinstance(below, Tensor) else _product(below, weight, block_rows)
        for rows in _blocks(share.rows(num_nodes), block_rows):
            block = _mean(first, csr, rows)
            if first is below:
                block = block @ weight
            if own_weights:
                block += _rows(below, rows, own_weights[layer])
            h[rows] = elu(block, inplace=True) if activated else block
        fill_rows(h, share)
        del first  # and with `below`, the layer before: two are held at a time
    assert isinstance(h, Tensor)
    return h


def _product(x: SparseFeatures, weight: Tensor, block_rows: int) -> Tensor:
    """Returns x @ weight."""
    product = weight.new_empty(x.shape[0], weight.shape[1])
    for rows in _blocks(slice(0, len(product)), block_rows):
        product[rows] = _rows(x, rows, weight)
    return product


def _mean(h: Tensor, csr: tuple[Tensor, Tensor, Tensor | None], rows: slice) -> Tensor:
    """Returns some rows of Â h."""
    indptr = csr[0][rows.start : rows.stop + 1]
    entries = slice(int(indptr[0]), int(indptr[-1]))
    indices = csr[1][entries]
    weight = h.new_ones(len(indices)) if csr[2] is None else csr[2][entries]
    indptr = indptr - entries.start
    degree = torch.segment_reduce(weight, "sum", offsets=indptr, axis=0)
    around = csr_matmul(indptr, indices, weight, h)
    return around.add_(h[rows]).div_((degree + 1)[:, None])


def _rows(x: Features, rows: slice, weight: Tensor) -> Tensor:
    """Returns some rows of x @ weight."""
    if isinstance(x, Tensor):
        return x[rows] @ weight
    indptr = x.indptr[rows.start : rows.stop + 1]
    entries = slice(int(indptr[0]), int(indptr[-1]))
    return csr_matmul(indptr - entries.start, x.indices[entries], x.values[entries], weight)


def _blocks(rows: slice, height: int) -> Iterator[slice]:
    for start in range(rows.start, rows.stop, height):
        yield slice(start, min(start + height, rows.stop))
