"""Training on a typed graph in parts: as on a whole one, in one process for each part."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from graphcl.distributed import Share, current_share
from graphcl.encoders import LayeredEncoder
from graphcl.estimator.calibration import drawn_nodes
from graphcl.estimator.fitted import Fitted
from graphcl.estimator.fitting import Task
from graphcl.estimator.model import GraphCL
from graphcl.estimator.parted import PartedData, joined_rows, mapped_or_asked
from graphcl.estimator.parts import Parts
from graphcl.estimator.typed import (
    check_typed,
    encoder_of,
    own_fan_outs,
    typed_perturbation,
)
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import Relation
from graphcl.partitioned.boundary import open_own_typed_part
from graphcl.partitioned.inference import embed_typed_part
from graphcl.partitioned.rows import FeatureRows
from graphcl.partitioned.typed_features import PreparedPart, prepare_part
from graphcl.partitioned.typed_topology import TypedTopology
from graphcl.partitioned.wire import Wire
from graphcl.recipes import Recipe
from graphcl.store.typed_parts import TypedParts
from graphcl.training.modes import SAMPLED_BATCH_NODES
from graphcl.training.typed_parted import TypedPartedGraph
from graphcl.training.typed_sampled import divide_fan_out


def typed_task(model: GraphCL, parts: Parts, data: PartedData) -> Task:
    """Returns what is trained on a typed graph in parts.

    Raises:
        ParameterError: the recipe has a key that parts, or typed graphs, do not allow.
        StoreError: a part is missing, damaged or of another build.
    """
    share, seed = current_share(), int(model.seed)
    part, recipe = open_own_typed_part(data.path, share), parts.recipe
    check_typed(parts, part.parts.name, part.parts.num_edges)
    trained = {**recipe.identity(), "seed": seed, "graph": part.parts.build}
    wire, outline = Wire(share, data.patience), _outline(part.parts)
    prepared = prepare_part(part, recipe.feature_scaling, share, wire)
    encoder = encoder_of(parts, prepared.schema, seed=seed)
    source = _source(recipe, data, prepared, wire, outline)
    mode = mapped_or_asked(source.topology)
    fitted = Fitted.begun(parts, encoder, seed, mode, prepared.schema, prepared.scaling)
    return Task(
        fitted,
        source,
        trained,
        lambda: _sample(encoder, prepared, share, seed),
        typed_perturbation(parts, outline),
        said=fitted.describe(),
        measured=replace(source, replays=False),
    )


def _source(
    recipe: Recipe, data: PartedData, prepared: PreparedPart, wire: Wire, outline: Graph
) -> TypedPartedGraph:
    parts = prepared.part.parts
    sizes = {name: one.num_nodes for name, one in parts.types.items()}
    entries = {
        key: one.num_edges * (2 if one.undirected else 1) for key, one in parts.relations.items()
    }
    own = own_fan_outs(recipe, outline)
    topology = TypedTopology(
        prepared,
        wire,
        fan_outs=divide_fan_out(sizes, entries, prepared.schema, recipe.fan_out, own),
        replace=recipe.sample_with_replacement,
        topology=data.topology,
    )
    return TypedPartedGraph(
        prepared.part,
        topology,
        _rows(prepared, wire, data.cache_bytes),
        wire,
        batch_nodes=recipe.batch_nodes or SAMPLED_BATCH_NODES,
        layers=recipe.layers,
        contrast=recipe.contrast,
    )


def _rows(prepared: PreparedPart, wire: Wire, cache_bytes: int) -> dict[str, FeatureRows]:
    """Returns the features of each type; the types share the cache by the size of their tables."""
    parts = prepared.nodes
    tables = {name: one.parts.num_nodes * one.parts.num_features for name, one in parts.items()}
    total = max(1, sum(tables.values()))
    return {
        name: FeatureRows(
            one,
            wire,
            prepared.scaling_of(name),
            cache_bytes=cache_bytes * tables[name] // total,
        )
        for name, one in parts.items()
    }


def _outline(parts: TypedParts) -> Graph:
    """Returns types and relations without nodes' data and edges, to look names up in."""
    nodes = {name: Nodes(name, one.num_nodes) for name, one in parts.types.items()}
    none = np.zeros(0, np.int64)
    relations = {key: Relation(*key, none, none) for key in parts.relations}
    return Graph(nodes, relations, parts.name)


def _sample(
    encoder: LayeredEncoder, prepared: PreparedPart, share: Share, seed: int
) -> dict[str, Tensor]:
    """Returns embeddings of some nodes: those that would be taken of the whole graph."""
    parts, found = prepared.part.parts, {}
    z = embed_typed_part(encoder, prepared, share=share)
    sizes = {name: one.num_nodes for name, one in parts.types.items()}
    for name, nodes in drawn_nodes(sizes, seed).items():
        own = prepared.nodes[name].nodes
        mine = nodes[(nodes >= own.start) & (nodes < own.stop)] - own.start
        found[name] = joined_rows(torch.from_numpy(z[name][mine]), share)
    return found
