"""Inference: the exact embeddings of the nodes of a graph, without perturbation.

A small graph is encoded at once, a large one layer by layer (`graphcl.layerwise`), so that two
layers are held at a time. Of some nodes, their neighbourhood is looked at.

On a CPU an embedding has the same bits whatever other nodes the graph has, as long as they are more
than L hops away: see `stable_product` and `Layer.finish_rows`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch
from torch import Tensor, nn

from graphcl.devices import available_memory_bytes
from graphcl.distributed import current_share
from graphcl.encoders import LayeredEncoder, stated_layers
from graphcl.errors import require
from graphcl.files.atomic import reserve, whole_file
from graphcl.graphs.graph import Graph
from graphcl.graphs.neighbourhood import neighbourhood
from graphcl.graphs.relation import NODE
from graphcl.graphs.scaling import Scaling
from graphcl.graphs.schema import EDGES
from graphcl.graphs.tensors import feature_tensor, stored_features
from graphcl.graphs.typed_tensors import TypedScaling, typed_tensors
from graphcl.kernels.adjacency import Adjacency, self_weights
from graphcl.kernels.buffers import borrow, retry_smaller
from graphcl.kernels.features import Features
from graphcl.kernels.stored_features import StoredFeatures
from graphcl.layerwise import (
    BLOCK_ROWS,
    Incoming,
    OnRows,
    Topology,
    directions_of,
    layer_by_layer,
)
from graphcl.registry import answerable

IN_MEMORY = 0.5  # fraction of the free memory; larger layers are kept in scratch files
Array = npt.NDArray[np.float32]


@torch.no_grad()
def embed(encoder: nn.Module, x: Features, adjacency: Adjacency, *, block_rows: int = 0) -> Array:
    """Returns the embeddings of all nodes as a NumPy array, ``[num_nodes, dim]``.

    With `block_rows` the layers are computed one by one, in blocks of this many rows; the encoder
    must state its layers then.
    """
    encoder.eval()
    if block_rows == 0:
        encode = encoder.embedding if isinstance(encoder, LayeredEncoder) else encoder
        encode = answerable("encoder", encoder, encode)
        return np.asarray(encode(x, adjacency).float().cpu())
    weight = adjacency.weight
    edges = Incoming(adjacency.indptr, adjacency.indices, weight, adjacency.self_weight)
    found = layer_by_layer(encoder, {NODE: x}, {EDGES: edges}, block_rows=block_rows)
    return found[NODE].float().cpu().numpy()


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
    on_rows: OnRows = lambda *_: None,
) -> Array:
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
        graph = graph.replace(edge_weight=None)
    layers = stated_layers(encoder, "embed_graph")
    # One layer of many rows reads its table where it is: a part of it would be a copy.
    plain = device.type == "cpu" and isinstance(graph.x, np.ndarray) and feature_scaling == "none"
    many = len(layers) == 1 and isinstance(nodes, np.ndarray) and len(nodes) > BLOCK_ROWS
    if nodes is not None and out is None and not (plain and many and graph.edge_weight is None):
        graph, nodes = neighbourhood(graph, nodes, len(layers))
    edges = Incoming(borrow(graph.indptr).to(device), borrow(graph.indices).to(device))
    if graph.edge_weight is not None:
        weight = borrow(graph.edge_weight).to(device)
        edges = replace(edges, weight=weight, self_weight=self_weights(edges.indptr, weight))
    x: Features | StoredFeatures
    if device.type == "cpu" and not scipy.sparse.issparse(graph.x) and edges.weight is None:
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
    assert isinstance(encoder, LayeredEncoder)
    width, widths = encoder.width, [layer.outputs for layer in layers]
    if device.type == "cpu" and scratch is not None:
        beside = 0 if width == widths[-1] else width
        held = 4 * graph.num_nodes * (sum(sorted(widths)[-2:]) + beside)
        scratch = scratch if held > IN_MEMORY * available_memory_bytes(device) else None
    compute = partial(
        layer_by_layer,
        encoder,
        {NODE: x},
        {EDGES: edges},
        wanted={NODE: wanted},
        block_rows=block_rows,
        topology=Topology(scratch if device.type == "cpu" else None),
        on_rows=on_rows,
    )
    if out is None or not current_share().first:
        found = retry_smaller(compute)[NODE].float().cpu()
        return found.numpy()[order]  # type: ignore[no-any-return]
    with whole_file(out) as staging:
        table = np.lib.format.open_memmap(
            staging, mode="w+", dtype=np.float32, shape=(stop - start, width)
        )
        reserve(staging)
        retry_smaller(partial(compute, results={NODE: torch.from_numpy(table)}))
        table.flush()
    return np.load(out, mmap_mode="r")  # type: ignore[no-any-return]


@torch.no_grad()
def embed_typed(
    encoder: LayeredEncoder,
    graph: Graph,
    *,
    device: torch.device,
    scaling: TypedScaling,
    nodes: Mapping[str, npt.NDArray[np.int64] | None] | None = None,
    block_rows: int = BLOCK_ROWS,
    on_rows: OnRows = lambda *_: None,
) -> dict[str, Array]:
    """Returns exact embeddings of a typed graph, ``[nodes, width]`` for each type.

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
    encoder.eval()
    x, tensors = typed_tensors(graph, device=device, scaling=scaling)
    edges = {
        one: Incoming.of(tensors[one.relation].toward(one.backwards))
        for one in directions_of(encoder)
        if one.relation in tensors
    }
    wanted: dict[str, Tensor | None] = {}
    order: dict[str, Any] = {}
    for name, some in (dict.fromkeys(graph.nodes) if nodes is None else nodes).items():
        distinct, order[name] = None, slice(None)
        if some is not None:
            numbers, order[name] = np.unique(some, return_inverse=True)
            distinct = torch.from_numpy(numbers).to(device)
        wanted[name] = distinct
    compute = partial(
        layer_by_layer, encoder, x, edges, wanted=wanted, block_rows=block_rows, on_rows=on_rows
    )
    found = retry_smaller(compute)
    return {name: rows.float().cpu().numpy()[order[name]] for name, rows in found.items()}
