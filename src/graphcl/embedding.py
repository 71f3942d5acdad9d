"""Inference: the exact embeddings of the nodes of a graph, without perturbation.

A small graph is encoded at once, a large one layer by layer (`graphcl.layerwise`), so that two
layers are held at a time. Of some nodes, their neighbourhood is looked at.

On a CPU an embedding has the same bits whatever other nodes the graph has, as long as they are more
than L hops away: see `stable_product` and `Layer.finish_rows`.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import nn

from graphcl.arrays import Floats, Integers
from graphcl.devices import available_memory_bytes
from graphcl.distributed import current_share
from graphcl.encoders import LayeredEncoder, layered
from graphcl.errors import PartError, demand, require
from graphcl.files.arrays import create_npy
from graphcl.files.atomic import whole_file
from graphcl.graphs.graph import Graph
from graphcl.graphs.neighbourhood import Surroundings
from graphcl.graphs.scaling import Scaling, TableScaling
from graphcl.graphs.schema import Direction
from graphcl.graphs.tensors import (
    feature_tensor,
    relation_adjacency,
    stored_features,
    table_scaling,
)
from graphcl.kernels.adjacency import Adjacency
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
Chosen = slice | Integers | None  # nodes of a type: a range, or their numbers, or all


@torch.no_grad()
def embed(encoder: nn.Module, x: Features, adjacency: Adjacency) -> Floats:
    """Returns the embeddings of all nodes of a plain graph at once, ``[num_nodes, dim]``.

    Raises:
        PartError: the encoder fails, or returns other rows or numbers than embeddings have.
    """
    encoder.eval()
    encode = encoder.embedding if isinstance(encoder, LayeredEncoder) else encoder
    encode = answerable("encoder", encoder, encode)
    if not isinstance(encoder, LayeredEncoder) and isinstance(x, torch.Tensor):
        x = x.clone()  # an encoder of the user's own may write to what may be the graph's memory
    found = np.asarray(encode(x, adjacency).float().cpu())
    name, nodes = type(encoder).__name__, x.shape[0]
    demand(
        len(found) == nodes,
        f"the encoder {name} returned {len(found):,} rows for {nodes:,} nodes",
        PartError,
    )
    finite = bool(np.isfinite(found).all())
    demand(finite, f"the encoder {name} returned a number that is not finite", PartError)
    return found


@torch.no_grad()
def embed_graph(
    encoder: nn.Module,
    graph: Graph,
    *,
    device: torch.device,
    feature_scaling: TableScaling | Scaling = "none",
    nodes: Chosen | Mapping[str, Chosen] = None,
    around: Surroundings | None = None,
    block_rows: int = BLOCK_ROWS,
    out: Path | None = None,
    scratch: Path | None = None,
    on_rows: OnRows = lambda *_: None,
) -> dict[str, Floats]:
    r"""Returns exact embeddings of a graph that may be large, ``[nodes, width]`` for each type.

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
        graph: all its types have features.
        device: where to compute.
        feature_scaling: as in training.
        nodes: for each type that is wanted, a range of its nodes, or their numbers in any order, or
            None for all of them; of a graph of one type, that alone.
        around: finds the neighbours of `nodes`; pass it where there are many calls.
        block_rows: how many rows are computed at a time.
        out: of one type: an `.npy` file for the result, which appears whole or not at all. The
            returned array is its memory map.
        scratch: a folder for temporary files: 4 · dim bytes per node and layer, for two layers.
        on_rows: called after each block with the number of rows done and the total of all layers.
    """
    encoder.eval()
    graph.check()
    encoder = layered(encoder, "embed_graph")
    levels, width = encoder.embedding_levels(), encoder.width
    asked = nodes if isinstance(nodes, Mapping) else dict.fromkeys(graph.nodes, nodes)
    listed = any(isinstance(some, np.ndarray) for some in asked.values())
    require(out is None or not listed, "embed_graph", "nodes", "a range if there is an out", nodes)
    found = {name: np.zeros((0, width), np.float32) for name in asked}
    order: dict[str, Any] = {}
    wanted: dict[str, Integers | None] = {}
    for name, some in asked.items():
        distinct, order[name] = _ascending(some, graph.nodes[name].num_nodes)
        if distinct is None or len(distinct):
            wanted[name] = distinct
    if not wanted:
        return found
    scalings = {name: table_scaling(feature_scaling, name) for name in graph.nodes}
    if out is None and not _stays(graph, scalings, wanted, len(levels), device):
        graph, wanted = _part(around or Surroundings(graph), wanted, len(levels))
    edges = {
        one: _incoming(graph, one, device, feature_scaling)
        for one in directions_of(encoder)
        if one.relation in graph.relations
    }
    # Means with weights are products of matrices, which take a table in float32.
    stored = device.type == "cpu" and all(one.weight is None for one in edges.values())
    x: dict[str, Features | StoredFeatures] = {}
    for name, one in graph.nodes.items():
        if stored and not scipy.sparse.issparse(one.x):
            x[name] = stored_features(one.x, feature_scaling=scalings[name])
        else:
            x[name] = feature_tensor(one.x, device=device, feature_scaling=scalings[name])
    if device.type == "cpu" and scratch is not None:
        widths = [max(layer.outputs for layer in level.values()) for level in levels]
        beside = 0 if width == widths[-1] else width
        held = 4 * graph.num_nodes * (sum(sorted(widths)[-2:]) + beside)
        scratch = scratch if held > IN_MEMORY * available_memory_bytes(device) else None
    compute = partial(
        layer_by_layer,
        encoder,
        x,
        edges,
        wanted={
            name: None if some is None else torch.from_numpy(some).to(device)
            for name, some in wanted.items()
        },
        block_rows=block_rows,
        topology=Topology(scratch if device.type == "cpu" else None),
        on_rows=on_rows,
    )
    if out is None or not current_share().first:
        for name, rows in retry_smaller(compute).items():
            found[name] = rows.float().cpu().numpy()[order[name]]
        return found
    ((name, some),) = wanted.items()
    count = graph.nodes[name].num_nodes if some is None else len(some)
    with whole_file(out) as staging:
        table = create_npy(staging, (count, width), np.float32)
        retry_smaller(partial(compute, results={name: torch.from_numpy(table)}))
        table.flush()
        del table  # Windows renames no file that is mapped
    return {name: np.load(out, mmap_mode="r")}


def _ascending(nodes: Chosen, size: int) -> tuple[Integers | None, Any]:
    """Returns the rows to compute, each once and ascending (None: all), and what was asked."""
    if nodes is None:
        return None, slice(None)
    if not isinstance(nodes, slice):
        return np.unique(nodes, return_inverse=True)
    start, stop, step = nodes.indices(size)
    require(step == 1 and start < stop, "embed_graph", "nodes", "a range of nodes", nodes)
    return np.arange(start, stop), slice(None)


def _stays(
    graph: Graph,
    scalings: Mapping[str, TableScaling],
    wanted: Mapping[str, Integers | None],
    layers: int,
    device: torch.device,
) -> bool:
    """Returns whether the graph is read where it is: all of it, or one layer of many rows.

    A part of what one layer of many rows reads would be a copy of most of it.
    """
    if all(some is None for some in wanted.values()):
        return True
    many = any(some is None or len(some) > BLOCK_ROWS for some in wanted.values())
    weighted = any(one.edge_weight is not None for one in graph.relations.values())
    as_it_is = all(
        isinstance(one.x, np.ndarray) and scalings[name] == "none"
        for name, one in graph.nodes.items()
    )
    return layers == 1 and many and device.type == "cpu" and as_it_is and not weighted


def _part(
    around: Surroundings, wanted: Mapping[str, Integers | None], hops: int
) -> tuple[Graph, dict[str, Integers | None]]:
    """Returns the part of a graph that the embeddings of some nodes depend on, and their rows."""
    graph = around.graph
    every = {
        name: np.arange(graph.nodes[name].num_nodes) if some is None else some
        for name, some in wanted.items()
    }
    part, rows = around.within(every, hops)
    if part is graph:
        return graph, dict(wanted)
    return part, {name: np.searchsorted(rows[name], some) for name, some in every.items()}


def _incoming(
    graph: Graph,
    direction: Direction,
    device: torch.device,
    feature_scaling: TableScaling | Scaling,
) -> Incoming:
    """Returns the edges of one direction; undirected ones are read where they are."""
    relation = graph.relations[direction.relation]
    if not relation.undirected or relation.edge_features is not None:
        adjacency = relation_adjacency(graph, relation, device=device, scaling=feature_scaling)
        return Incoming.of(adjacency.toward(direction.backwards))
    indptr, indices = (borrow(one).to(device) for one in (relation.indptr, relation.indices))
    given = relation.edge_weight
    return Incoming.from_csr(indptr, indices, None if given is None else borrow(given).to(device))
