"""Embeds a graph with what a training left; knows nothing of scikit-learn, which takes a second."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from graphcl.distributed import apart
from graphcl.embedding import embed, embed_graph, embed_typed
from graphcl.encoders import LayeredEncoder
from graphcl.errors import GraphError
from graphcl.estimator.fitted import Fitted, say_clipped
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.scaling import ColumnScaling
from graphcl.graphs.tensors import graph_tensors
from graphcl.graphs.typed_tensors import prepare_like
from graphcl.store.columns import rows_of
from graphcl.training.progress import RowProgress

LAYERWISE_NODES = 50_000  # above, inference on a GPU goes layer by layer in blocks of rows

IntArray = npt.NDArray[np.int64]
Chosen = slice | IntArray | None
Rows = npt.NDArray[np.float32]


def embed_fitted(
    fitted: Fitted,
    graph: Graph,
    nodes: Chosen = None,
    *,
    device: torch.device,
    scratch: Path | None = None,
    verbose: bool = False,
) -> Rows:
    """Returns the embeddings of all nodes, or of some.

    Args:
        fitted: what the training left.
        graph: any graph with the features that it was trained on.
        nodes: a range or row numbers, as `chosen_nodes` returns them; None is all.
        device: where to compute.
        scratch: a folder for temporary files; see `embed_graph`.
        verbose: show on stderr how far it is.

    Raises:
        GraphError: the graph has another number of features.
    """
    name, found, wanted = graph.name, graph.num_features, fitted.num_features
    if found != wanted:
        raise GraphError(f"{name}: has {found} features; the model was trained on {wanted}")
    encoder, scaling = fitted.encoder.to(device), fitted.scaling
    if verbose and isinstance(scaling, ColumnScaling):
        say_clipped(scaling, graph)
    # Layer by layer, an embedding does not depend on the size of the graph, bit for bit.
    aligned = fitted.alignment.apply if fitted.alignment is not None else lambda z: z
    by_layer = device.type == "cpu" or nodes is not None or graph.num_nodes > LAYERWISE_NODES
    if by_layer and isinstance(encoder, LayeredEncoder):
        # Processes of a group share the rows of a large graph; of a small one, each has them all.
        with nullcontext() if graph.num_nodes > LAYERWISE_NODES else apart():
            rows = embed_graph(
                encoder,
                graph,
                device=device,
                feature_scaling=scaling,
                nodes=nodes,
                scratch=scratch,
                on_rows=RowProgress() if verbose else lambda *_: None,
            )
        return aligned(rows)
    x, adjacency = graph_tensors(graph, device=device, feature_scaling=scaling)
    z = embed(encoder, x, adjacency)
    return aligned(z if nodes is None else z[nodes])


def embed_types(
    fitted: Fitted,
    graph: Graph,
    nodes: Mapping[str, IntArray | None] | None = None,
    *,
    device: torch.device,
) -> dict[str, Rows]:
    """Returns embeddings of a graph with types, for each type that is wanted.

    Args:
        fitted: what the training left.
        graph: types and relations among those of the training.
        nodes: rows by type, or None for all of a type; None means all types.
        device: where to compute.

    Raises:
        GraphError: the model was trained on other types and relations.
    """
    schema, scaling, encoder = fitted.schema, fitted.typed_scaling, fitted.encoder.to(device)
    assert schema is not None
    assert isinstance(encoder, LayeredEncoder)
    prepared = prepare_like(graph, schema, scaling)
    wanted = dict.fromkeys(graph.nodes) if nodes is None else nodes
    found = {name: np.zeros((0, encoder.width), np.float32) for name in wanted}
    some = {name: rows for name, rows in wanted.items() if rows is None or len(rows)}
    if some:
        found |= embed_typed(encoder, prepared, device=device, scaling=scaling, nodes=some)
    if fitted.alignment is not None:
        found = {name: fitted.alignment.apply(rows) for name, rows in found.items()}
    return found


def chosen_nodes(graph: Graph | Nodes, nodes: Any) -> Chosen:
    """Returns which nodes are meant: a range as it is, or row numbers.

    Whole numbers are row numbers, booleans a mask, texts ids of the graph.

    Raises:
        GraphError: a number is out of range, an id is unknown, or no node is chosen.
    """
    if nodes is None or isinstance(nodes, slice):
        return nodes
    given = np.atleast_1d(np.asarray(nodes))
    if given.ndim != 1 or not len(given):
        raise GraphError(f"transform: nodes must be one or more nodes; got shape {given.shape}")
    if given.dtype.kind == "b":
        if len(given) != graph.num_nodes or not given.any():
            raise GraphError(f"transform: a mask of {len(given)} for {graph.num_nodes} nodes")
        return np.flatnonzero(given)
    if given.dtype.kind in "iu":
        wrong = given[(given < 0) | (given >= graph.num_nodes)]
        if len(wrong):
            raise GraphError(f"transform: node {wrong[0]} of a graph of {graph.num_nodes} nodes")
        return given.astype(np.int64)
    own: Any = graph.num_nodes if graph.node_ids is None else graph.node_ids
    return rows_of(given.tolist(), own, graph.name, GraphError)
