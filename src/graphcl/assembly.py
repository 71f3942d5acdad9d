"""From a recipe to the method's parts."""

import torch
from torch import nn

from graphcl.encoders import build_encoder
from graphcl.graph import Graph
from graphcl.recipes import Recipe
from graphcl.seeding import generator
from graphcl.tensors import graph_tensors
from graphcl.training import FullGraph, SampledGraph
from graphcl.training.inductive import training_subgraph
from graphcl.training.modes import SAMPLED_BATCH_NODES, Mode, choose_mode
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


def recipe_source(
    recipe: Recipe, graph: Graph, *, device: torch.device
) -> tuple[FullGraph | SampledGraph, Mode]:
    """Returns the batches of one graph, whole or sampled, and which and why."""
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
    if mode.name == "full":
        tensors = graph_tensors(graph, device=device, feature_scaling=recipe.feature_scaling)
        return FullGraph(*tensors, recipe.batch_nodes), mode
    sampled = SampledGraph.of(
        graph,
        recipe_perturbation(recipe),
        device=device,
        feature_scaling=recipe.feature_scaling,
        batch_nodes=recipe.batch_nodes or SAMPLED_BATCH_NODES,
        fan_outs=(recipe.fan_out,) * recipe.layers,
        replace=recipe.sample_with_replacement,
        own_features=recipe.encoder == "residual",
    )
    return sampled, mode
