"""Training on a graph in parts: as `GraphCL.fit`, in as many processes as there are parts."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphcl.devices import available_memory_bytes
from graphcl.distributed import Share, apart, beside, current_share, gather_tables, max_over
from graphcl.embedding import embed_graph
from graphcl.encoders import LayeredEncoder
from graphcl.errors import ParameterError, TrainingError, require
from graphcl.estimator.calibration import NODES, WHOLE, drawn_ranges
from graphcl.estimator.choice import AUTO
from graphcl.estimator.fitted import Fitted
from graphcl.estimator.fitting import Task, fit
from graphcl.estimator.health import rank_of_features
from graphcl.estimator.model import GraphCL
from graphcl.estimator.parts import Parts
from graphcl.graphs.relation import NODE
from graphcl.graphs.scaling import ColumnScaling, Scaling
from graphcl.partitioned.around import neighbourhood_in_parts
from graphcl.partitioned.boundary import open_own_part
from graphcl.partitioned.inference import embed_part
from graphcl.partitioned.rows import FeatureRows, fit_parts_scaling, part_graph
from graphcl.partitioned.topology import TOPOLOGIES, Topology
from graphcl.partitioned.wire import Wire
from graphcl.recipes.recipe import recipe_keys
from graphcl.store import parts as store
from graphcl.store.typed_parts import TypedParts, is_typed_parts, read_typed_parts
from graphcl.training import Checkpoints, EpochMetrics
from graphcl.training.modes import SAMPLED_BATCH_NODES, Footprint, Mode, sampled_bytes
from graphcl.training.parted import PartedGraph

CPU = torch.device("cpu")
MODE = Mode("sampled", "a graph in parts")


@dataclass(frozen=True)
class PartedData:
    """A graph in parts, and how processes reach what is not theirs.

    Attributes:
        path: the folder; every process needs its own part there, and `parts.json`.
        cache_bytes: memory of a process for rows of other parts, between steps.
        topology: ``auto`` maps the edges of other parts where they can be read; ``asked`` asks.
        patience: how long a process waits for another; None is PyTorch's default.
    """

    path: Path
    cache_bytes: int = 0
    topology: str = "auto"
    patience: timedelta | None = None

    def __post_init__(self) -> None:
        require(self.cache_bytes >= 0, "train", "--cache", "0 or more", self.cache_bytes)
        known = f"one of {', '.join(TOPOLOGIES)}"
        require(self.topology in TOPOLOGIES, "train", "--topology", known, self.topology)

    @cached_property
    def parts(self) -> store.Parts | TypedParts:
        """What `parts.json` or `typed-parts.json` says."""
        return read_typed_parts(self.path) if self.typed else store.read_parts(self.path)

    @property
    def typed(self) -> bool:
        """Whether the graph is typed."""
        return is_typed_parts(self.path)

    @property
    def name(self) -> str:
        """The graph's name."""
        return self.parts.name

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all parts."""
        return self.parts.num_nodes

    @property
    def num_edges(self) -> int:
        """Number of undirected edges of all parts."""
        return self.parts.num_edges

    @property
    def num_features(self) -> int:
        """Number of features."""
        return self.parts.num_features


def fit_parts(
    model: GraphCL,
    data: PartedData,
    *,
    checkpoints: Checkpoints | None = None,
    resume: bool = False,
    on_epoch: Callable[[EpochMetrics], object] = lambda _: None,
) -> GraphCL:
    """Trains `model` on a graph in parts; every process of the group calls it.

    Weights are those of one process that trains in mode ``sampled`` on the whole graph in the
    numbering of the parts, to the order of sums.

    Args:
        model: not yet fitted, of a recipe that can be trained on parts.
        data: the graph.
        checkpoints: where to save; a `PartCheckpoints` if there are several hosts.
        resume: go on from the newest checkpoint.
        on_epoch: called after each epoch.

    Raises:
        ParameterError: the recipe has a key that parts do not allow; the message names it.
        StoreError: a part is missing, damaged or of another build.
    """
    begun = parts_of(model, checkpoints if resume else None)
    make = _task
    if data.typed:
        from graphcl.estimator.typed_parted import typed_task  # a second more, for types alone

        make = typed_task
    task = make(model, begun, data)
    saved = checkpoints.latest(task.trained) if checkpoints and resume else None
    fit(model, task, saved=saved, checkpoints=checkpoints, on_epoch=on_epoch)
    return model


def mapped_or_asked(topology: Any) -> Mode:
    """Returns how parts are trained, and how their edges are reached."""
    asked = "asked for" if topology.asks else "mapped"
    return MODE._replace(reason=f"{MODE.reason}; edges of other parts are {asked}")


def _task(model: GraphCL, parts: Parts, data: PartedData) -> Task:
    """Returns what is trained on a plain graph in parts."""
    share, seed = current_share(), int(model.seed)
    part = open_own_part(data.path, share)
    num_features = part.parts.num_features
    trained = {**parts.recipe.identity(), "seed": seed, "graph": part.parts.build}
    source, scaling = parted_source(parts, data, part, ignore_memory=model.ignore_memory)
    encoder = parts.new_encoder(num_features, seed=seed)
    mode = mapped_or_asked(source.topology)
    return Task(
        Fitted(parts, encoder, num_features, seed, [], scaling, mode=mode),
        source,
        trained,
        lambda: {NODE: _sample(encoder, source, scaling, share, seed)},
        parts.perturbation,
        said=[scaling.describe()] if isinstance(scaling, ColumnScaling) else [],
        measured=replace(source, replays=False),
        rank_of_features=lambda: rank_of_features(part_graph(part), scaling),
    )


def parted_source(
    parts: Parts, data: PartedData, part: store.Part, *, ignore_memory: bool = False
) -> tuple[PartedGraph, Scaling]:
    """Returns the batches of a graph in parts, and how features are scaled.

    All processes of the group call it together, each with its own `part`.

    Raises:
        TrainingError: they would not fit in memory, and `ignore_memory` is false.
    """
    recipe, share = parts.recipe, current_share()
    footprint = parts.footprint(part.parts.num_features)
    batch_nodes = recipe.batch_nodes or SAMPLED_BATCH_NODES
    if not ignore_memory:
        _check_memory(footprint, data, part.parts, batch_nodes, recipe.fan_out, share)
    scaling = fit_parts_scaling(recipe.feature_scaling, part, share)
    wire = Wire(share, data.patience)
    replaced = recipe.sample_with_replacement
    topology = Topology(part, wire, replace=replaced, topology=data.topology)
    reading: dict[str, Any] = {"cache_bytes": data.cache_bytes, "from_disk": topology.from_disk}
    source = PartedGraph(
        topology,
        FeatureRows(part, wire, scaling, **reading),
        wire,
        batch_nodes=batch_nodes,
        fan_outs=(recipe.fan_out,) * len(footprint.widths),
        replace=replaced,
        own_features=footprint.own,
    )
    return source, scaling


def parts_of(model: GraphCL, begun: Checkpoints | None) -> Parts:
    """Returns what a recipe names, of a training that was begun or of a new one.

    Raises:
        ParameterError: it cannot be trained on parts; names the key.
    """
    parts = model._parts(begun.begun(recipe_keys()) if begun else None)
    recipe, over = parts.recipe, "over parts"
    require(model.recipe != AUTO, "train", "--recipe", f"a named one {over}", model.recipe)
    require(recipe.mode != "full", "recipe", "mode", f"auto or sampled {over}", recipe.mode)
    allowed = f"false {over}: a part has edges to nodes that are not of the training"
    require(not recipe.inductive, "recipe", "inductive", allowed, recipe.inductive)
    if not parts.footprint(1).sampled:
        raise ParameterError(
            f"recipe: encoder and perturbation must be ones that train on sampled neighbourhoods "
            f"{over}; got {recipe.encoder!r} and {recipe.perturbation!r}"
        )
    return parts


def _check_memory(
    footprint: Footprint,
    data: PartedData,
    parts: store.Parts,
    batch_nodes: int,
    fan_out: int,
    share: Share,
) -> None:
    """Refuses a training that would not fit, before it takes any memory.

    Raises:
        TrainingError: the estimate is above what is free; in all processes, or those beside.
    """
    own = -(-batch_nodes // share.world)
    step = sampled_bytes(parts.num_features, footprint, fan_out, batch_nodes=own)
    needed = step + footprint.training_bytes + 8 * parts.num_nodes + data.cache_bytes
    available = available_memory_bytes(CPU) // beside(CPU)
    wanting = max_over(torch.tensor([needed - available]), share)
    if int(wanting) > 0:
        raise TrainingError(
            f"a process needs about {needed / 1e9:.1f} GB, and some have {int(wanting) / 1e9:.1f} "
            "GB less; a smaller batch_nodes, dim, fan_out or --cache helps"
        )


@torch.no_grad()
def _sample(
    encoder: nn.Module, source: PartedGraph, scaling: Scaling, share: Share, seed: int
) -> Tensor:
    """Returns embeddings of some nodes, as `sample_graphs` does."""
    assert isinstance(encoder, LayeredEncoder)
    topology = source.topology
    if source.num_nodes <= WHOLE:
        own = embed_part(encoder, topology.part, share=share, feature_scaling=scaling)
        return joined_rows(torch.from_numpy(np.array(own)), share)
    starts = drawn_ranges(source.num_nodes, seed)
    mine, found = starts[share.rows(len(starts))], [torch.empty(0, encoder.width)]
    for place in range(-(-len(starts) // share.world)):  # all processes look as often
        some = [np.arange(start, start + NODES) for start in mine[place : place + 1]]
        nodes = np.concatenate([np.empty(0, np.int64), *some])
        hops = len(encoder.statement())
        graph, rows = neighbourhood_in_parts(topology, source.rows, nodes, hops)
        if len(nodes):
            with apart():
                z = embed_graph(encoder, graph, device=CPU, nodes=rows)
            found.append(torch.from_numpy(z))
    return joined_rows(torch.cat(found), share)


def joined_rows(rows: Tensor, share: Share) -> Tensor:
    """Returns the rows of all processes, which may differ in number, in the order of ranks."""
    counts = gather_tables(torch.tensor([len(rows)]), share)[:, 0].tolist()
    padded = rows.new_zeros(max(counts), rows.shape[1])
    padded[: len(rows)] = rows
    every = gather_tables(padded, share)
    return torch.cat([one[:count] for one, count in zip(every, counts, strict=True)])
