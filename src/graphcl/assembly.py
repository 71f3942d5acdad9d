"""From a recipe to the method's parts."""

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from graphcl.distributed import current_share, from_rank
from graphcl.encoders import build_encoder
from graphcl.graphs.graph import Graph
from graphcl.graphs.subgraph import training_subgraph
from graphcl.graphs.tensors import graph_tensors
from graphcl.recipes import Recipe
from graphcl.seeding import generator
from graphcl.training import FullGraph, ManyGraphs, SampledGraph
from graphcl.training.modes import SAMPLED_BATCH_NODES, Mode, check_memory, choose_mode
from graphcl.views import DropEdges, DropFeatures, Perturbation


def recipe_encoder(recipe: Recipe, num_features: int, *, seed: int) -> nn.Module:
    """Returns the recipe's encoder with fresh weights, on the CPU."""
    return build_encoder(
        recipe.encoder,
        num_features,
        dim=recipe.dim,
        layers=recipe.layers,
        generator=generator(seed, "weights"),
    )


def recipe_perturbation(recipe: Recipe) -> Perturbation:
    """Returns the distribution that the recipe's views are drawn from."""
    return Perturbation(DropEdges(recipe.edge_drop), DropFeatures(recipe.feature_drop))


def recipe_training(recipe: Recipe) -> dict[str, Any]:
    """Returns what `train` takes of a recipe."""
    names = ("temperature", "epochs", "learning_rate", "weight_decay", "precision")
    chosen = {name: getattr(recipe, name) for name in names}
    return {"perturbation": recipe_perturbation(recipe), **chosen}


def recipe_source(
    recipe: Recipe, graph: Graph, *, device: torch.device, ignore_memory: bool = False
) -> tuple[FullGraph | SampledGraph, Mode]:
    """Returns the batches of one graph, whole or sampled, and which and why.

    Raises:
        TrainingError: they would not fit in memory, and `ignore_memory` is false.
    """
    if recipe.inductive:
        graph = training_subgraph(graph)
    mode = choose_mode(
        graph,
        recipe.mode,
        encoder=recipe.encoder,
        dim=recipe.dim,
        layers=recipe.layers,
        device=device,
    )
    batch_nodes = recipe.batch_nodes or SAMPLED_BATCH_NODES
    if not ignore_memory:
        check_memory(
            graph,
            mode,
            encoder=recipe.encoder,
            dim=recipe.dim,
            layers=recipe.layers,
            batch_nodes=batch_nodes,
            fan_out=recipe.fan_out,
            feature_scaling=recipe.feature_scaling,
            precision=recipe.precision,
            device=device,
        )
    if mode.name == "full":
        tensors = graph_tensors(graph, device=device, feature_scaling=recipe.feature_scaling)
        return FullGraph(*tensors, recipe.batch_nodes), mode
    sampled = SampledGraph.of(
        graph,
        recipe_perturbation(recipe),
        device=device,
        feature_scaling=recipe.feature_scaling,
        batch_nodes=batch_nodes,
        fan_outs=(recipe.fan_out,) * recipe.layers,
        replace=recipe.sample_with_replacement,
        own_features=recipe.encoder == "residual",
        precision=recipe.precision,
    )
    return sampled, mode


def recipe_batches(
    recipe: Recipe,
    graphs: Sequence[Graph],
    *,
    device: torch.device,
    modes: Sequence[str] = (),
    ignore_memory: bool = False,
) -> tuple[FullGraph | SampledGraph | ManyGraphs, list[Mode]]:
    """Returns the batches of one graph or several, and how each graph is trained and why.

    Args:
        recipe: complete.
        graphs: what to train on.
        device: where.
        modes: one per graph, where they are decided already, as by a checkpoint. Else the recipe
            decides, and of several processes the first, whose memory the others may not have.
        ignore_memory: start even where memory may not suffice.
    """
    asked = [recipe.with_values(mode=mode) for mode in modes] or [recipe] * len(graphs)
    pairs = zip(asked, graphs, strict=True)
    built = [
        recipe_source(one, graph, device=device, ignore_memory=ignore_memory)
        for one, graph in pairs
    ]
    chosen = [mode.name for _, mode in built]
    agreed = json.loads(from_rank(json.dumps(chosen).encode(), current_share()))
    if agreed != chosen:
        return recipe_batches(
            recipe, graphs, device=device, modes=agreed, ignore_memory=ignore_memory
        )
    sources = tuple(source for source, _ in built)
    return sources[0] if len(sources) == 1 else ManyGraphs(sources), [mode for _, mode in built]
