"""The estimator on typed graphs: what `GraphCL.fit` and `transform` do with them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.devices import resolve_device
from graphcl.encoders import LayeredEncoder, stated_layers
from graphcl.errors import GraphError, ParameterError
from graphcl.estimator.fitted import Fitted
from graphcl.estimator.inference import chosen_nodes, embed_types
from graphcl.estimator.parts import Parts
from graphcl.estimator.transformer import as_table
from graphcl.graphs.graph import Graph
from graphcl.graphs.schema import Schema

ENCODER = "residual"  # the paper's encoder that a typed one extends


def as_typed(graph: Any) -> Graph | None:
    """Returns a typed graph from a `Graph` or an object like PyG's `HeteroData`; else None."""
    if hasattr(graph, "node_types") and hasattr(graph, "edge_types"):
        graph = Graph.from_pyg(graph)
    return graph if isinstance(graph, Graph) and not graph.is_plain else None


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
