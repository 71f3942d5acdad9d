"""The estimator on typed graphs: what `GraphCL.fit` and `transform` do with them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphcl.devices import available_memory_bytes, resolve_device
from graphcl.distributed import current_share, from_rank
from graphcl.embedding import embed_typed
from graphcl.encoders import LayeredEncoder, stated_layers
from graphcl.errors import GraphError, ParameterError, TrainingError
from graphcl.estimator.calibration import drawn_nodes
from graphcl.estimator.choice import AUTO, Choice, choose_recipe
from graphcl.estimator.fitted import Fitted
from graphcl.estimator.fitting import Task
from graphcl.estimator.inference import chosen_nodes
from graphcl.estimator.parts import Parts
from graphcl.estimator.transformer import as_table
from graphcl.graphs.collection import fingerprint
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import Key
from graphcl.graphs.schema import Schema
from graphcl.graphs.typed_tensors import (
    Prepared,
    prepare,
    prepare_like,
    typed_tensors,
)
from graphcl.recipes import Recipe
from graphcl.recipes.recipe import parse_exceptions
from graphcl.training import Checkpoints
from graphcl.training.checkpoints import Saved
from graphcl.training.full_graph import FullGraph
from graphcl.training.modes import CPU_NODES, USABLE, Mode
from graphcl.training.typed_sampled import TypedSampledGraph, fan_outs_of
from graphcl.views import Drop

ENCODER = "residual"  # the paper's encoder that a typed one extends


def as_typed(graph: Any) -> Graph | None:
    """Returns a typed graph from a `Graph` or an object like PyG's `HeteroData`; else None."""
    if hasattr(graph, "node_types") and hasattr(graph, "edge_types"):
        graph = Graph.from_pyg(graph)
    return graph if isinstance(graph, Graph) and not graph.is_plain else None


def typed_task(
    model: Any,
    parts: Parts,
    graph: Graph,
    *,
    device: torch.device,
    checkpoints: Checkpoints | None,
    resume: bool,
) -> tuple[Task, Saved | None]:
    """Returns what is trained on a typed graph, and the checkpoint to go on from.

    Raises:
        ParameterError: the recipe asks for what typed graphs cannot have.
        TrainingError: it would not fit into memory.
    """
    choice: Choice | None = None
    if model.recipe == AUTO:  # the search knows one relation
        flat = graph.flatten()
        choice, chosen = choose_recipe(model, parts.recipe, flat, checkpoints, resume=resume)
        parts = replace(parts, recipe=chosen)
    recipe, seed = parts.recipe, int(model.seed)
    check_typed(parts, graph.name, graph.num_edges)
    prepared = prepare(graph, recipe.feature_scaling)
    trained = {**recipe.identity(), "seed": seed, "graph": fingerprint((graph,))}
    saved = checkpoints.latest(trained) if checkpoints and resume else None
    encoder = encoder_of(parts, prepared.schema, seed=seed)
    begun = saved.about["trained"]["modes"][0] if saved else ""
    mode = _mode(begun or recipe.mode, prepared.graph, encoder, device, model.ignore_memory)
    mode = _agreed(mode._replace(reason="as begun") if saved else mode)
    fitted = Fitted.begun(parts, encoder.to(device), seed, mode, prepared.schema, prepared.scaling)
    fitted.choice = choice
    source = _source(recipe, mode, prepared, device)

    def sample() -> dict[str, Tensor]:
        sizes = {name: one.num_nodes for name, one in prepared.graph.nodes.items()}
        nodes: Mapping[str, Any] = drawn_nodes(sizes, seed)
        options: Any = {"device": device, "scaling": prepared.scaling}
        z = embed_typed(encoder, prepared.graph, nodes=nodes, **options)
        return {name: torch.from_numpy(rows) for name, rows in z.items()}

    drawn = typed_perturbation(parts, prepared.graph)
    return Task(fitted, source, trained, sample, drawn, said=fitted.describe()), saved


def embed_typed_fitted(
    model: Any, fitted: Fitted, graph: Graph, node_type: str | None, nodes: Any
) -> Any:
    """Returns the embeddings of all types, or of one, or of some of its nodes.

    Raises:
        GraphError: the model was trained on other types and relations.
    """
    schema, scaling = fitted.schema, fitted.typed_scaling
    assert schema is not None
    if nodes is not None and node_type is None:
        raise GraphError(f"{graph.name}: of which type are these nodes? Give node_type")
    device = resolve_device(model.device)
    encoder = fitted.encoder.to(device)
    assert isinstance(encoder, LayeredEncoder)
    chosen: Any = None
    wanted: dict[str, npt.NDArray[np.int64] | None] = dict.fromkeys(graph.nodes)
    if node_type is not None:
        graph.type(node_type)
        chosen = chosen_nodes(graph.nodes[node_type], nodes)
        numbers = chosen
        if isinstance(chosen, slice):
            numbers = np.arange(graph.nodes[node_type].num_nodes)[chosen]
        wanted = {node_type: numbers}
    prepared = prepare_like(graph, schema, scaling)
    z = embed_typed(encoder, prepared, device=device, scaling=scaling, nodes=wanted)
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


def _agreed(mode: Mode) -> Mode:
    """Returns the mode of the first of several processes, whose memory the others may not have."""
    name = from_rank(mode.name.encode(), current_share()).decode()
    if name == mode.name:
        return mode
    return Mode("full" if name == "full" else "sampled", "as the first process decided")


def typed_perturbation(parts: Parts, graph: Graph) -> Any:
    """Returns what views are drawn from; relations and types are looked up in the graph."""
    if parts.own_perturbation is not None:
        return parts.own_perturbation
    recipe, different = parts.recipe, parse_exceptions(parts.recipe.exceptions)
    relations = {graph.relation(name).key: v for name, v in different["edge_drop"].items()}
    types = {graph.type(name).name: v for name, v in different["feature_drop"].items()}
    return Drop(recipe.edge_drop, recipe.feature_drop, relations, types)


def _source(
    recipe: Recipe, mode: Mode, prepared: Prepared, device: torch.device
) -> FullGraph | TypedSampledGraph:
    graph = prepared.graph
    if mode.name == "full":
        x, relations = typed_tensors(graph, device=device, scaling=prepared.scaling)
        return FullGraph(x, relations, recipe.batch_nodes, recipe.contrast)
    own = own_fan_outs(recipe, graph)
    return TypedSampledGraph.of(
        prepared,
        device=device,
        batch_nodes=recipe.batch_nodes,
        fan_outs=fan_outs_of(graph, prepared.schema, recipe.fan_out, own),
        layers=recipe.layers,
        replace=recipe.sample_with_replacement,
        contrast=recipe.contrast,
    )


def own_fan_outs(recipe: Recipe, graph: Graph) -> dict[Key, int]:
    """Returns the fan-outs that the recipe gives to some relations."""
    named = parse_exceptions(recipe.exceptions)["fan_out"]
    return {graph.relation(name).key: count for name, count in named.items()}


def _mode(
    mode: str, graph: Graph, encoder: LayeredEncoder, device: torch.device, ignore_memory: bool
) -> Mode:
    """Returns how the graph is trained, and why."""
    stored = sum(
        3 * one.x.nnz if hasattr(one.x, "nnz") else one.x.size
        for one in graph.nodes.values()
        if one.x is not None
    )
    widths = [next(iter(level.values())).outputs for level in encoder.levels()]
    rows = 2 * graph.num_nodes * (3 * sum(widths) + 3 * widths[0] + 4 * widths[-1])
    entries = sum(len(one.indices) for one in graph.relations.values())
    weights = sum(one.numel() for one in encoder.parameters())
    needed = 4 * (3 * stored + rows + 4 * weights) + 60 * entries
    available = available_memory_bytes(device)
    figures = f"about {needed / 1e9:.1f} GB of the {available / 1e9:.1f} GB that are free"
    if mode == "sampled":
        return Mode("sampled", "as asked")
    if mode == "full":
        if needed > available and not ignore_memory:
            raise TrainingError(f"mode full needs {figures}; set mode=sampled, or a smaller dim")
        return Mode("full", "as asked")
    if needed > USABLE * available:
        return Mode("sampled", f"the whole graph would take {figures}")
    if device.type == "cpu" and graph.num_nodes > CPU_NODES:
        return Mode("sampled", f"{graph.num_nodes:,} nodes are many for a CPU to encode per step")
    return Mode("full", f"the whole graph takes {figures}")
