"""Embeds a graph with what a training left; knows nothing of scikit-learn, which takes a second."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from graphcl.devices import resolve_device
from graphcl.distributed import apart
from graphcl.embedding import embed, embed_graph, embed_typed
from graphcl.encoders import LayeredEncoder, stated_layers
from graphcl.errors import GraphError, ParameterError
from graphcl.estimator.fitted import Fitted, say_clipped
from graphcl.estimator.parts import Parts
from graphcl.estimator.transformer import as_table
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.scaling import ColumnScaling
from graphcl.graphs.schema import Schema
from graphcl.graphs.tensors import graph_tensors
from graphcl.graphs.typed_tensors import prepare_like
from graphcl.store.ids import rows_of
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


ENCODER = "residual"  # the paper's encoder that a typed one extends


def embed_typed_fitted(
    model: Any, fitted: Fitted, graph: Graph, node_type: str | None, nodes: Any
) -> Any:
    """Returns the embeddings of all types, or of one, or of some of its nodes.

    Raises:
        GraphError: the model was trained on other types and relations.
    """
    if nodes is not None and node_type is None:
        raise GraphError(f"{graph.name}: of which type are these nodes? Give node_type")
    chosen: Any = None
    wanted: dict[str, npt.NDArray[np.int64] | None] = dict.fromkeys(graph.nodes)
    if node_type is not None:
        graph.type(node_type)
        chosen = chosen_nodes(graph.nodes[node_type], nodes)
        numbers = chosen
        if isinstance(chosen, slice):
            numbers = np.arange(graph.nodes[node_type].num_nodes)[chosen]
        wanted = {node_type: numbers}
    z = embed_types(fitted, graph, wanted, device=resolve_device(model.device))
    tables = {name: as_table(model, rows, graph.nodes[name], chosen) for name, rows in z.items()}
    return tables if node_type is None else tables[node_type]


def encoder_of(parts: Parts, schema: Schema, *, seed: int) -> LayeredEncoder:
    """Returns a fresh encoder on the CPU, which states its layers for each type.

    Raises:
        ParameterError: an encoder of the caller's own does not.
    """
    encoder = parts.new_encoder(schema, seed=seed)
    stated_layers(encoder, "a graph with types")
    assert isinstance(encoder, LayeredEncoder)
    for number, level in enumerate(encoder.levels()):
        if set(level) != set(schema.widths):
            raise ParameterError(
                f"encoder: layer {number} is stated for the types {', '.join(level)}; the graph's "
                f"are {', '.join(schema.widths)}"
            )
    return encoder


def check_typed(parts: Parts, name: str, num_edges: int) -> None:
    """Refuses what cannot be trained on the typed graph of this name.

    Raises:
        ParameterError: the recipe asks for it.
        GraphError: the graph has no edges.
    """
    recipe = parts.recipe
    if recipe.encoder != ENCODER and parts.own_encoder is None:
        raise ParameterError(
            f"encoder: a typed graph is encoded by {ENCODER!r}, once per relation; "
            f"got {recipe.encoder!r}"
        )
    if recipe.inductive:
        raise ParameterError("inductive: a typed graph is trained with all its nodes; leave it out")
    if recipe.perturbation != "drop" and parts.own_perturbation is None:
        raise ParameterError(f"perturbation: typed graphs know 'drop'; got {recipe.perturbation!r}")
    if not num_edges:
        raise GraphError(f"{name}: no relation has edges")
