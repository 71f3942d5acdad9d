"""What `GraphCL.fit` trains on a graph in parts, in as many processes as there are parts."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphcl.arrays import Integers
from graphcl.devices import available_memory_bytes
from graphcl.distributed import (
    Share,
    any_of,
    apart,
    beside,
    current_share,
    gather_parts,
    max_over,
)
from graphcl.embedding import embed_graph
from graphcl.encoders import LayeredEncoder, layered
from graphcl.errors import ParameterError, TrainingError, demand, option, require
from graphcl.estimator.fitted import Components, Fitted
from graphcl.estimator.fitting import WHOLE, Task, dense_features, drawn_ranges, evenly
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import NODE, Relation
from graphcl.graphs.schema import EDGES, Schema
from graphcl.partitioned.boundary import Wire, open_own_part
from graphcl.partitioned.features import PreparedPart, prepare_part, prepare_part_like
from graphcl.partitioned.inference import embed_part, table_bytes
from graphcl.partitioned.topology import PartsTopology
from graphcl.settings import TOPOLOGIES
from graphcl.store.columns import table_rows
from graphcl.store.header import Store, read_store
from graphcl.store.reader import Part
from graphcl.training import SampledGraph
from graphcl.training.modes import (
    SAMPLED_BATCH_NODES,
    Footprint,
    Mode,
    sampled_bytes,
    sampled_dtype,
)
from graphcl.training.progress import RowProgress

CPU = torch.device("cpu")
MODE = Mode("sampled", "a graph in parts")


@dataclass(frozen=True)
class PartitionedGraph:
    """A graph in parts, and how processes reach what is not theirs.

    Attributes:
        path: the folder; every process needs its own part there, and `store.json`.
        cache_bytes: memory of a process for rows of other parts, between steps.
        topology: ``auto`` maps the edges of other parts where they can be read; ``asked`` asks.
        patience: how long a process waits for another; None is PyTorch's default.
    """

    path: Path
    cache_bytes: int = 0
    topology: str = "auto"
    patience: timedelta | None = None

    def __post_init__(self) -> None:
        cache = self.cache_bytes
        require(cache >= 0, "train", option("cache_bytes"), "0 or more", cache)
        known = f"one of {', '.join(TOPOLOGIES)}"
        require(self.topology in TOPOLOGIES, "train", option("topology"), known, self.topology)

    @cached_property
    def store(self) -> Store:
        """What `store.json` says."""
        return read_store(self.path)

    @property
    def name(self) -> str:
        """The graph's name."""
        return self.store.name


def task_over_parts(
    components: Components,
    data: PartitionedGraph,
    *,
    seed: int,
    device: torch.device,
    ignore_memory: bool = False,
) -> Task:
    """Returns what is trained on a graph in parts; every process of the group calls it.

    Weights are those of one process that trains in mode ``sampled`` on the whole graph in the
    numbering of the parts, to the order of sums.

    Raises:
        ParameterError: the recipe has a key that parts do not allow; the message names it.
        StoreError: a part is missing, damaged or of another build.
    """
    _check_recipe(components)
    share = current_share()
    part, recipe = open_own_part(data.path, share), components.recipe
    trained = {**recipe.identity(), "seed": seed, "graph": part.store.build}
    source = partitioned_source(components, data, part, device=device, ignore_memory=ignore_memory)
    topology = source.topology
    assert isinstance(topology, PartsTopology)
    prepared, asked = topology.prepared, "asked for" if topology.asks else "mapped"
    mode = MODE._replace(reason=f"{MODE.reason}; edges of other parts are {asked}")
    encoder = components.new_encoder(prepared.schema, seed=seed).to(device)
    fitted = Fitted(components, encoder, prepared.schema, prepared.scaling, seed, [], mode=mode)
    return Task(
        fitted,
        source,
        lambda: _sample(encoder, topology, share, seed),
        components.perturbation_of(_outline(part.store)),
        lambda: _features(prepared, share),
        trained=trained,
        measured=replace(source, replays=False),
    )


def partitioned_source(
    components: Components,
    data: PartitionedGraph,
    part: Part,
    *,
    device: torch.device = CPU,
    ignore_memory: bool = False,
) -> SampledGraph:
    """Returns the batches of a graph in parts.

    All processes of the group call it together, each with its own `part`.

    Raises:
        ParameterError: the recipe asks for what cannot be trained on graphs with types.
        TrainingError: they would not fit in memory, and `ignore_memory` is false.
    """
    recipe, share, store = components.recipe, current_share(), part.store
    batch_nodes = recipe.batch_nodes or SAMPLED_BATCH_NODES
    components.check(store.name, Schema.of(store))
    wire = Wire(share, data.patience)
    prepared = prepare_part(part, recipe.feature_scaling, share, wire)
    footprint = components.footprint(prepared.schema)
    if not ignore_memory:
        _check_memory(footprint, data, prepared, batch_nodes, recipe.fan_out, share)
    topology = PartsTopology(
        prepared,
        wire,
        fan_outs=components.fan_outs(prepared.schema, _outline(store)),
        replace=recipe.sample_with_replacement,
        topology=data.topology,
        cache_bytes=data.cache_bytes,
    )
    return SampledGraph(
        topology,
        batch_nodes,
        len(footprint.widths),
        footprint.own,
        "each" if prepared.schema.is_plain else recipe.contrast,
        device,
        sampled_dtype(device, recipe.precision),
    )


def _outline(parts: Store) -> Graph:
    """Returns types and relations without nodes' data and edges, to look names up in."""
    nodes = {name: Nodes(name, one.num_nodes) for name, one in parts.types.items()}
    none = np.zeros(0, np.int64)
    relations = {key: Relation(*key, none, none) for key in parts.relations}
    return Graph(nodes, relations, parts.name)


def _check_recipe(components: Components) -> None:
    """Refuses a recipe that cannot be trained on parts.

    Raises:
        ParameterError: names the key.
    """
    recipe, over = components.recipe, "over parts"
    require(recipe.mode != "full", "recipe", "mode", f"auto or sampled {over}", recipe.mode)
    allowed = f"false {over}: a part has edges to nodes that are not of the training"
    require(not recipe.inductive, "recipe", "inductive", allowed, recipe.inductive)
    demand(
        components.footprint(Schema.plain(1)).sampled,
        f"recipe: encoder and perturbation must be ones that train on sampled neighbourhoods "
        f"{over}; got {recipe.encoder!r} and {recipe.perturbation!r}",
        ParameterError,
    )


def _check_memory(
    footprint: Footprint,
    data: PartitionedGraph,
    prepared: PreparedPart,
    batch_nodes: int,
    fan_out: int,
    share: Share,
) -> None:
    """Refuses a training that would not fit, before it takes most of its memory.

    Raises:
        TrainingError: the estimate is above what is free; in all processes, or those beside.
    """
    own, widest = -(-batch_nodes // share.world), max(prepared.schema.widths.values())
    step = sampled_bytes(widest, footprint, fan_out, batch_nodes=own)
    needed = step + footprint.training_bytes + 8 * data.store.num_nodes + data.cache_bytes
    available = available_memory_bytes(CPU) // beside(CPU)
    wanting = max_over(torch.tensor([needed - available]), share)
    demand(
        int(wanting) <= 0,
        f"a process needs about {needed / 1e9:.1f} GB, and some have {int(wanting) / 1e9:.1f} "
        f"GB less; a smaller batch_nodes, dim, fan_out or {option('cache_bytes')} helps",
        TrainingError,
    )


def _features(prepared: PreparedPart, share: Share) -> dict[str, Tensor]:
    """Returns the rows of features that would be taken of the whole graph."""
    found = {}
    for name, part in prepared.nodes.items():
        table = part.fields["x"]
        rows = evenly(part.type.num_nodes, table.shape[1])
        own = rows[(rows >= part.nodes.start) & (rows < part.nodes.stop)] - part.nodes.start
        some = dense_features(table_rows(table, own), prepared.scaling, name)
        found[name] = torch.cat(gather_parts(some, share))
    return found


@torch.no_grad()
def _sample(
    encoder: nn.Module, topology: PartsTopology, share: Share, seed: int
) -> dict[str, Tensor]:
    """Returns embeddings of some nodes by type: those that would be taken of the whole graph."""
    encoder = copy.deepcopy(layered(encoder)).to(CPU)
    prepared, sizes = topology.prepared, topology.sizes
    drawn = {} if sum(sizes.values()) <= WHOLE else drawn_ranges(sizes, seed)
    if drawn and prepared.schema.is_plain:
        return {NODE: _around_ranges(encoder, topology, share, drawn[NODE])}
    found = {}
    for name, z in embed_part(encoder, prepared, share=share).items():
        rows = torch.from_numpy(z)
        if drawn:
            own = np.arange(prepared.nodes[name].nodes.start, prepared.nodes[name].nodes.stop)
            nodes = np.concatenate([np.arange(one.start, one.stop) for one in drawn[name]])
            rows = rows[torch.from_numpy(np.isin(own, nodes))]
        found[name] = torch.cat(gather_parts(rows, share))
    return found


def _around_ranges(
    encoder: LayeredEncoder, topology: PartsTopology, share: Share, ranges: Sequence[slice]
) -> Tensor:
    """Returns embeddings of some ranges of nodes of a large plain graph."""
    mine, found = ranges[share.rows(len(ranges))], [torch.empty(0, encoder.width)]
    for place in range(-(-len(ranges) // share.world)):  # all processes look as often
        some = [np.arange(one.start, one.stop) for one in mine[place : place + 1]]
        nodes = np.concatenate([np.empty(0, np.int64), *some])
        graph, rows = neighbourhood_in_parts(topology, nodes, len(encoder.levels()))
        if len(nodes):
            with apart():
                z = embed_graph(encoder, graph, device=CPU, nodes=rows)
            found.append(torch.from_numpy(z[NODE]))
    return torch.cat(gather_parts(torch.cat(found), share))


def embed_own_part(
    fitted: Fitted, path: Path, share: Share, *, scratch: Path
) -> tuple[Part, dict[str, Any]]:
    """Returns the part of this process in a store, and the embeddings of its nodes by type.

    All processes of the group call it together. `scratch` is a folder for temporary files.
    """
    part, encoder = open_own_part(path, share), layered(fitted.encoder)
    prepared = prepare_part_like(part, fitted.schema, fitted.scaling, Wire(share))
    free = available_memory_bytes(CPU) // beside(CPU)
    # All have to do alike: with files, columns of the tables travel one after the other.
    large = any_of(table_bytes(encoder, prepared) > free // 2, share)
    z = embed_part(
        encoder,
        prepared,
        share=share,
        scratch=scratch if large else None,
        slab_bytes=free // 4,
        on_rows=RowProgress() if share.first else lambda *_: None,
    )
    if fitted.alignment is not None:
        z = {name: fitted.alignment.apply(rows) for name, rows in z.items()}
    return part, z


def neighbourhood_in_parts(
    topology: PartsTopology, nodes: Integers, hops: int
) -> tuple[Graph, Integers]:
    """Returns the nodes within some hops of `nodes` as a graph, and the rows of `nodes` in it.

    It is what `graphcl.graphs.neighbourhood` returns of a whole graph, with features that are
    scaled as in training. All processes call it together, each for nodes of any parts or none.

    Args:
        topology: of a plain graph.
        nodes: ascending.
        hops: at least 1.
    """
    reached = frontier = nodes
    inner: list[Integers] = []
    lists: list[Integers] = []
    weights = []
    for _ in range(hops):
        lengths, found, weight = topology.neighbours(EDGES, frontier)
        inner.append(frontier)
        ends = np.cumsum(lengths)[:-1]
        lists += np.split(found, ends) if len(frontier) else []
        if weight is not None and len(frontier):
            weights += np.split(weight, ends)
        frontier = np.setdiff1d(found, reached)
        reached = np.union1d(reached, frontier)
    known = np.concatenate(inner)
    order = np.argsort(known)
    counts = np.zeros(len(reached), np.int64)
    counts[np.searchsorted(reached, known)] = [len(one) for one in lists]
    around = np.concatenate([lists[at] for at in order.tolist()] or [np.empty(0, np.int64)])
    weighted = [weights[at] for at in order.tolist()] if weights else None
    graph = Graph.from_csr(
        indptr=np.concatenate([[0], counts.cumsum()]),
        indices=np.searchsorted(reached, around).astype(np.int64),
        x=topology.rows[NODE].fetch(reached).rows(slice(None)).numpy(),
        edge_weight=None if weighted is None else np.concatenate(weighted),
        name=topology.prepared.part.store.name,
    )
    return graph, np.searchsorted(reached, nodes)
