"""Training on a typed graph in parts: as `fit_typed`, in as many processes as there are parts."""

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from graphcl.distributed import Share, current_share
from graphcl.encoders.typed import TypedEncoder
from graphcl.errors import TrainingWarning
from graphcl.estimator.health import typed_health
from graphcl.estimator.model import GraphCL
from graphcl.estimator.parted import MODE, PartedData, joined_rows, parts_of
from graphcl.estimator.typed import (
    TypedFitted,
    calibration_nodes,
    check_typed,
    new_encoder,
    own_fan_outs,
    set_sizes,
    train_typed,
    typed_perturbation,
)
from graphcl.graphs.typed import NodeType, Relation, TypedGraph
from graphcl.partitioned.boundary import open_own_typed_part
from graphcl.partitioned.rows import FeatureRows
from graphcl.partitioned.typed_features import PreparedPart, prepare_part
from graphcl.partitioned.typed_inference import embed_typed_part
from graphcl.partitioned.typed_topology import TypedTopology
from graphcl.partitioned.wire import Wire
from graphcl.recipes import Recipe
from graphcl.store.typed_parts import TypedParts
from graphcl.training import Checkpoints, EpochMetrics
from graphcl.training.modes import SAMPLED_BATCH_NODES
from graphcl.training.typed_parted import TypedPartedGraph
from graphcl.training.typed_sampled import divide_fan_out


def fit_typed_parts(
    model: GraphCL,
    data: PartedData,
    *,
    checkpoints: Checkpoints | None,
    resume: bool,
    on_epoch: Callable[[EpochMetrics], object],
) -> GraphCL:
    """Trains `model` on a typed graph in parts; see `graphcl.estimator.parted.fit_parts`.

    Raises:
        ParameterError: the recipe has a key that parts, or typed graphs, do not allow.
        StoreError: a part is missing, damaged or of another build.
    """
    share, seed = current_share(), int(model.seed)
    parts = parts_of(model, checkpoints if resume else None)
    part, recipe = open_own_typed_part(data.path, share), parts.recipe
    check_typed(model, parts, part.parts.name, part.parts.num_edges)
    trained = {**recipe.identity(), "seed": seed, "graph": part.parts.build}
    saved = checkpoints.latest(trained) if checkpoints and resume else None
    wire, outline = Wire(share, data.patience), _outline(part.parts)
    prepared = prepare_part(part, recipe.feature_scaling, share, wire)
    encoder = new_encoder(recipe, prepared.schema, seed=seed)
    source = _source(recipe, data, prepared, wire, outline)
    asked = "asked for" if source.topology.asks else "mapped"
    mode = MODE._replace(reason=f"{MODE.reason}; edges of other parts are {asked}")
    features = sum(prepared.schema.widths.values())
    fitted = TypedFitted(parts, encoder, features, seed, [], recipe.feature_scaling, mode=mode)
    fitted.schema, fitted.typed_scaling = prepared.schema, prepared.scaling
    train_typed(
        model,
        fitted,
        source,
        perturbation=typed_perturbation(parts, outline),
        trained=trained,
        saved=saved,
        checkpoints=checkpoints,
        on_epoch=on_epoch,
    )
    _calibrate(encoder, prepared, share, seed)
    quiet = replace(source, replays=False)
    fitted.health = typed_health(parts, encoder, quiet, fitted.history, seed=seed, share=share)
    for sign in fitted.health.warnings if share.first else ():
        warnings.warn(f"GraphCL: {sign}", TrainingWarning, stacklevel=3)
    return model


def _source(
    recipe: Recipe, data: PartedData, prepared: PreparedPart, wire: Wire, outline: TypedGraph
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


def _outline(parts: TypedParts) -> TypedGraph:
    """Returns types and relations without nodes' data and edges, to look names up in."""
    nodes = {name: NodeType(name, one.num_nodes) for name, one in parts.types.items()}
    none = np.zeros(0, np.int64)
    relations = {key: Relation(*key, none, none) for key in parts.relations}
    return TypedGraph(nodes, relations, parts.name)


def _calibrate(encoder: TypedEncoder, prepared: PreparedPart, share: Share, seed: int) -> None:
    """Brings what stands side by side in embeddings to one size, by the nodes of a whole graph."""
    if encoder.beside is None:
        return
    parts, found = prepared.part.parts, {}
    z = embed_typed_part(encoder, prepared, share=share)
    sizes = {name: one.num_nodes for name, one in parts.types.items()}
    for name, nodes in calibration_nodes(sizes, seed).items():
        own = prepared.nodes[name].nodes
        mine = nodes[(nodes >= own.start) & (nodes < own.stop)] - own.start
        found[name] = joined_rows(torch.from_numpy(z[name][mine]), share)
    set_sizes(encoder, found)
