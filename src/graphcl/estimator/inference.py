"""Embeds a graph with what a training left; knows nothing of scikit-learn, which takes a second."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from graphcl.distributed import apart
from graphcl.embedding import embed, embed_graph
from graphcl.encoders import LayeredEncoder
from graphcl.errors import GraphError, suggestion
from graphcl.estimator.fitted import Fitted, say_clipped
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.scaling import ColumnScaling
from graphcl.graphs.tensors import graph_tensors
from graphcl.training.progress import RowProgress

LAYERWISE_NODES = 50_000  # above, inference on a GPU goes layer by layer in blocks of rows
FEW = 16  # ids that are looked up one by one

Chosen = slice | npt.NDArray[np.int64] | None
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
    texts = [str(name) for name in given.tolist()]
    ids = np.arange(graph.num_nodes) if graph.node_ids is None else graph.node_ids[:]
    if len(texts) <= FEW and ids.dtype.kind in "iuU":
        found = [_row(ids, name) for name in texts]
        if min(found) >= 0:
            return np.array(found, dtype=np.int64)
    place: dict[str, int] = {}
    for row, name in enumerate(ids.tolist()):
        place.setdefault(str(name), row)
    for name in texts:
        if name not in place:
            raise GraphError(f"{graph.name}: no node has the id {name!r}{suggestion(name, place)}")
    return np.array([place[name] for name in texts], dtype=np.int64)


def _row(ids: npt.NDArray[Any], name: str) -> int:
    """Returns the first row with an id, or −1."""
    wanted: Any = name
    if ids.dtype.kind != "U":
        if not name.removeprefix("-").isdecimal() or str(int(name)) != name:
            return -1
        wanted = int(name)
    found = np.flatnonzero(ids == wanted)
    return int(found[0]) if len(found) else -1
