"""Inference on typed graphs: exact embeddings, layer by layer, in blocks of rows.

As in `graphcl.embedding`, layer l is computed on all nodes where it is needed before layer l + 1
begins, so two layers are held at a time. Of some nodes, only their neighbourhood is looked at.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphcl.encoders.typed import TypedEncoder, TypedLayer
from graphcl.encoders.typed_rows import Found, Relations, Table, blocks, computed, product
from graphcl.errors import require
from graphcl.graphs.typed import TypedGraph
from graphcl.graphs.typed_tensors import TypedScaling, typed_tensors
from graphcl.kernels.buffers import block_height, retry_smaller
from graphcl.kernels.features import Features

BLOCK_ROWS = 4096
Rows = npt.NDArray[np.float32]


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
    x, tensors = typed_tensors(graph, device=device, scaling=scaling)
    known = {one.channel for layer in encoder.statement() for one in layer.messages}
    relations = {one: tensors[one.relation] for one in known if one.relation in tensors}
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
        for rows in blocks(len(nodes), block_rows):
            table[rows] = product(x[name], nodes[rows], encoder.input_map(name))
            done += rows.stop - rows.start
            on_rows(done, total)
        h[name] = _table(table, nodes, sizes[name])
    found = Found(encoder, wanted)
    found.put_own(x, block_rows)
    for number, layer in enumerate(layers):
        above: dict[str, Table] = {}
        for name, nodes in needed[number + 1].items():
            table = h[name].rows.new_empty(len(nodes), layer.outputs)
            for rows in blocks(len(nodes), block_rows):
                span = rows if len(nodes) == sizes[name] else None
                table[rows] = computed(layer, name, nodes[rows], span, h, relations)
                done += rows.stop - rows.start
                on_rows(done, total)
            above[name] = _table(table, nodes, sizes[name])
        h = above
        found.put(number, h)
    return found.tables


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
                relation = relations.get(message.channel)
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


def _table(rows: Tensor, nodes: Tensor, size: int) -> Table:
    if len(nodes) == size:
        return Table(rows)
    place = torch.zeros(size, dtype=torch.int64, device=nodes.device)
    place[nodes] = torch.arange(len(nodes), device=nodes.device)
    return Table(rows, place)
