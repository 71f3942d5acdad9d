"""Embeddings of nodes that a change of the graph reaches, from layers that were kept.

A layer of a node differs from what it was only near a change (`graphcl.graphs.changing`). Where the
results of the layers below are kept, each layer is computed on these rows alone, and reads all
others. Without them, two hops from a few nodes may be most of a graph.

Layers are computed by `graphcl.embedding`, so the rows have the bits that embedding the whole graph
gives them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from graphcl.embedding import embed_graph
from graphcl.encoders import Layer, LayeredEncoder
from graphcl.estimator.fitted import Fitted
from graphcl.graphs.graph import Graph
from graphcl.graphs.neighbourhood import table_rows

Rows = npt.NDArray[np.float32]
Nodes = npt.NDArray[np.int64] | None


class _Alone(LayeredEncoder):
    """One layer as an encoder."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self._layer = layer

    def statement(self) -> tuple[Layer, ...]:
        """Returns the layer."""
        return (self._layer,)


def hidden_widths(fitted: Fitted) -> list[int] | None:
    """Returns the width of each layer below the last; None if the encoder does not state them."""
    encoder = fitted.encoder
    if not isinstance(encoder, LayeredEncoder):
        return None
    return [layer.outputs for layer in encoder.statement()[:-1]]


def embed_layer(
    fitted: Fitted,
    graph: Graph,
    number: int,
    below: Any = None,
    nodes: Nodes = None,
    *,
    device: torch.device,
    out: Path | None = None,
    scratch: Path | None = None,
) -> Rows:
    """Returns the result of one layer, ``[nodes, width]``.

    Args:
        fitted: what the training left; its encoder states its layers.
        graph: the graph.
        number: which layer, from 0.
        below: the result of the layer before on all nodes of the graph; None for the first layer.
        nodes: rows, ascending; None is all.
        device: where to compute.
        out: an `.npy` file for the result of all nodes.
        scratch: a folder for temporary files.
    """
    encoder = fitted.encoder.to(device)
    assert isinstance(encoder, LayeredEncoder)
    first = below is None
    return embed_graph(
        _Alone(encoder.statement()[number]),
        graph if first else graph.replace(x=below),
        device=device,
        feature_scaling=fitted.scaling if first else "none",
        nodes=nodes,
        out=out,
        scratch=scratch,
    )


def join_layers(
    fitted: Fitted,
    graph: Graph,
    below: Sequence[Any],
    last: Rows,
    nodes: Nodes = None,
    *,
    device: torch.device,
) -> Rows:
    """Returns embeddings from the results of the layers.

    Args:
        fitted: what the training left; its encoder states its layers.
        graph: the graph.
        below: for each layer but the last, its result on all nodes.
        last: the result of the last layer on `nodes`.
        nodes: rows, ascending; None is all.
        device: where to compute.
    """
    encoder = fitted.encoder
    assert isinstance(encoder, LayeredEncoder)
    beside, z = encoder.beside, last
    if beside is not None:
        rows = np.arange(graph.num_nodes) if nodes is None else nodes
        z = np.empty((len(rows), encoder.width), np.float32)
        if (columns := beside.columns(None)) is not None:
            # Of a node without edges, the mean over its neighbourhood is its own row.
            alone = Graph.from_csr(
                indptr=np.zeros(len(rows) + 1, np.int64),
                indices=np.zeros(0, np.int64),
                x=graph.x if nodes is None else table_rows(graph.x, rows),
            )
            own = _Alone(Layer(beside.projection, activation=None))
            found = embed_graph(own, alone, device=device, feature_scaling=fitted.scaling)
            z[:, columns] = beside.finish(torch.from_numpy(found).to(device), columns).cpu()
        for number, table in enumerate([*below, None]):
            if (columns := beside.columns(number)) is not None:
                part = last if table is None else np.array(table[rows], np.float32)
                z[:, columns] = beside.finish(torch.from_numpy(part).to(device), columns).cpu()
    return z if fitted.alignment is None else fitted.alignment.apply(z)
