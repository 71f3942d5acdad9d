r"""Exact embeddings of a typed graph in parts: layer by layer, only rows at the boundaries travel.

As in `graphcl.partitioned.inference`, each process has one part and computes each layer on its own
nodes. The boundary of a type are the nodes of other parts that edges of any relation lead to, in
the direction in which the type sends. Before layer l each process receives the rows of layer l − 1
of its boundaries, once each, whatever the number of relations that need them. Features do not
travel, but their products with the input map of their type.

The result is that of `graphcl.typed_embedding.embed_typed` on the whole graph in the same
numbering, to the order of sums.

A process holds two tables for each type, (own + boundary nodes) × the width of a layer; its edges
in the tables' numbering, 20 bytes for each entry; and the result.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphcl.distributed import Share
from graphcl.encoders.typed import TypedEncoder
from graphcl.encoders.typed_rows import Found, Table, blocks, computed, product
from graphcl.graphs.schema import Channel
from graphcl.graphs.typed_tensors import TypedScaling, edge_vectors
from graphcl.kernels.adjacency import self_weights
from graphcl.kernels.buffers import borrow
from graphcl.kernels.relation import Csr, RelationAdjacency
from graphcl.partitioned.boundary import Boundary
from graphcl.partitioned.inference import BLOCK_ROWS, CPU, part_features
from graphcl.partitioned.typed_features import PreparedPart
from graphcl.store.typed_parts import Edges


@torch.no_grad()
def embed_typed_part(
    encoder: TypedEncoder,
    prepared: PreparedPart,
    *,
    share: Share,
    on_rows: Callable[[int, int], None] = lambda *_: None,
) -> dict[str, npt.NDArray[np.float32]]:
    """Returns the exact embeddings of a part's nodes, ``[nodes of the part, width]`` for each type.

    All processes of the group call it together, each with the part of its rank, on CPUs.

    Args:
        encoder: the same in all processes.
        prepared: this process's part.
        share: this process's place in the group, as large as there are parts.
        on_rows: called after each block with the number of rows done and the total of all layers.
    """
    encoder.eval()
    layers = encoder.statement()
    known = {one.channel for layer in layers for one in layer.messages}
    edges = {one: held for one in sorted(known) if (held := prepared.edges(one)) is not None}
    boundaries = {
        name: Boundary.of(
            part, share, [held["indices"] for one, held in edges.items() if one.sender == name]
        )
        for name, part in prepared.nodes.items()
    }
    relations = {
        one: local_relation(
            held,
            one,
            prepared.scaling,
            torch.from_numpy(boundaries[one.sender].local(held["indices"])),
        )
        for one, held in edges.items()
    }
    x = {
        name: part_features(part, prepared.scaling_of(name))
        for name, part in prepared.nodes.items()
    }
    own = {name: torch.arange(one.own) for name, one in boundaries.items()}
    done, total = 0, (len(layers) + 1) * sum(map(len, own.values()))

    def step(rows: slice) -> None:
        nonlocal done
        done += rows.stop - rows.start
        on_rows(done, total)

    h: dict[str, Table] = {}
    for name, nodes in own.items():
        weight = encoder.input_map(name)
        table = weight.new_empty(boundaries[name].rows, weight.shape[1])
        for rows in blocks(len(nodes), BLOCK_ROWS):
            table[rows] = product(x[name], nodes[rows], weight)
            step(rows)
        h[name] = Table(table)
    found = Found(encoder, own)
    found.put_own(x, BLOCK_ROWS)
    for number, layer in enumerate(layers):
        last = number + 1 == len(layers)
        for name, one in h.items():
            boundaries[name].fill(one.rows)
        above: dict[str, Table] = {}
        for name, nodes in own.items():
            height = len(nodes) if last else boundaries[name].rows
            table = h[name].rows.new_empty(height, layer.outputs)
            for rows in blocks(len(nodes), BLOCK_ROWS):
                table[rows] = computed(layer, name, nodes[rows], rows, h, relations)
                step(rows)
            above[name] = Table(table)
        h = above
        found.put(number, h)
    return {name: table.numpy() for name, table in found.tables.items()}


def local_relation(
    edges: Edges,
    channel: Channel,
    scaling: TypedScaling,
    senders: Tensor,
    *,
    counted: bool = True,
) -> RelationAdjacency:
    """Returns one direction of a relation, of a part's nodes, for a mean or to be sampled.

    Both directions of the result are this one, as of an undirected relation.

    Args:
        edges: of the part, in this direction.
        channel: which one.
        scaling: of the vectors of edges.
        senders: where the sender of each entry is in a table, or its number.
        counted: whether means are taken of it; draws need no weights where edges have none.
    """
    csr = Csr(borrow(edges["indptr"]), senders)
    within, own = channel.sender == channel.receiver, None
    weight = torch.ones(len(senders)) if counted else torch.ones(1).expand(len(senders))
    if "edge_weight" in edges:
        weight = borrow(edges["edge_weight"])
        own = self_weights(csr.indptr, weight) if within else None
    vectors = edge_vectors(
        edges.get("edge_features"), channel.relation, device=CPU, scaling=scaling
    )
    both = None if own is None else (own, own)
    ids = borrow(edges["edge_ids"])
    return RelationAdjacency(csr, csr, weight, len(senders), ids, within, both, vectors)
