"""Batches from a graph that is too large to encode whole: sampled L-hop subgraphs."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self, TypeVar

import numpy as np
import scipy.sparse
import torch
from torch import Tensor, nn

from graphcl.distributed import ALONE, Share
from graphcl.encoders import layered
from graphcl.errors import ParameterError, require
from graphcl.files.arrays import advise_random_reads
from graphcl.graphs.edges import reverse_order
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import Key
from graphcl.graphs.scaling import Scaling, TableScaling
from graphcl.graphs.schema import EDGES, Direction, Schema
from graphcl.graphs.tensors import (
    edge_vectors,
    feature_tensor,
    stored_features,
    table_scaling,
)
from graphcl.kernels.buffers import borrow
from graphcl.kernels.counter import DeviceSeed, Seed
from graphcl.kernels.neighbours import EdgeWeights
from graphcl.kernels.stored_features import StoredFeatures
from graphcl.memory import free_memory_bytes
from graphcl.sampling import FAN_OUT, HOPS, TreeView, encode_tree, sample_tree, tree_to, tree_views
from graphcl.seeding import derive
from graphcl.topology import LocalTopology, SampledDirection, Seeds, Topology, Tree
from graphcl.training.loop import (
    EpochMetrics,
    PartedMetrics,
    batches_in,
    contrasted_types,
    node_batches,
)
from graphcl.training.modes import sampled_dtype
from graphcl.views import Drop, Perturbation

WINDOW = 256  # steps whose trees are drawn before they are needed, at most
T = TypeVar("T")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class SampledBatch:
    """A minibatch whose subgraphs are sampled, and perturbed twice.

    Attributes:
        nodes: the M seed nodes by type, over all processes.
        draw: returns the two views of the sampled subgraphs of this process's share of them. On a
            CPU they were drawn while the last batch trained. A graph on a GPU draws them in the
            step, which is recorded.
        recorded_as: see `graphcl.training.loop.Batch`.
    """

    nodes: Seeds
    draw: Callable[[], tuple[TreeView, TreeView]]
    recorded_as: Hashable = None

    @property
    def num_nodes(self) -> int:
        """M, the size of the minibatch over all processes."""
        return sum(map(len, self.nodes.values()))

    def views(
        self,
        generator: torch.Generator,  # noqa: ARG002 (the draws follow from seed, epoch and step)
    ) -> tuple[TreeView, TreeView]:
        """Returns the two views."""
        return self.draw()

    def encode(self, encoder: nn.Module, views: tuple[TreeView, TreeView]) -> tuple[Tensor, Tensor]:
        """Returns the embeddings of this process's seed nodes in view 1 and in view 2."""
        states = layered(encoder, "mode 'sampled'")
        found = [encode_tree(view, states) for view in views]
        h_1, h_2 = (one[0] if len(one) == 1 else torch.cat(one) for one in found)
        return h_1, h_2


@dataclass(frozen=True, eq=False)
class SampledGraph:
    """Each step sees `batch_nodes` nodes and a sampled tree around each of them.

    An epoch visits every contrasted node once, in a random order. Each seed node's subgraph is
    sampled once a step and perturbed twice, as in the paper. The next batch is prepared in a
    thread, which the GIL does not hold up. With the graph on a GPU, sampling is a part of the step,
    which is recorded and replayed: Python would take longer to launch it than the GPU to do it. The
    draws depend on seed, epoch, step and place in the batch alone, so the number of threads changes
    nothing. In a group of processes each samples and encodes its share of the seed nodes; their
    number changes nothing.

    A graph in parts can keep rows of other parts between steps. The trees of the coming steps are
    then drawn before they are needed, without features, to say which rows it needs most often.

    Args:
        topology: the graph.
        batch_nodes: M, the nodes per step.
        layers: L, the hops.
        own_features: whether the first layer of the encoder keeps the node itself.
        contrast: ``each``, ``all``, or names of types, separated by commas.
        device: where views are drawn and encoded.
        dtype: of the features on a GPU; with bfloat16 the encoder's products are bfloat16 too, and
            a feature row is half the traffic.
        replays: draw the trees of coming steps ahead, if the topology can keep rows.
    """

    topology: Topology
    batch_nodes: int = 512
    layers: int = HOPS
    own_features: bool = True
    contrast: str = "each"
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    replays: bool = True

    @classmethod
    def of(
        cls,
        graph: Graph,
        *,
        device: torch.device,
        feature_scaling: TableScaling | Scaling = "none",
        fan_outs: int | Mapping[Direction, int] = FAN_OUT,
        replace: bool = True,
        precision: str = "auto",
        **options: Any,
    ) -> Self:
        """Builds a source from a graph; on a CPU it shares the graph's memory, or its store.

        Sparse features are made dense. On a GPU they are bfloat16, or float32 if `precision` is
        ``float32`` or ``tf32``. For `feature_scaling` see `graph_tensors`. `fan_outs` are the
        children of a node in each direction, or one number for all.
        """
        if not isinstance(fan_outs, Mapping):
            directions = [EDGES] if graph.is_plain else Schema.of(graph).directions()
            fan_outs = dict.fromkeys(directions, fan_outs)
        fewest = min(fan_outs.values(), default=1)
        require(fewest >= 1, "SampledGraph", "fan_out", "at least 1", fewest)
        graph.check()
        arrays = [nodes.x for nodes in graph.nodes.values()]
        arrays += [relation.indices for relation in graph.relations.values()]
        mapped = [array for array in arrays if isinstance(array, np.memmap)]
        if device.type == "cpu" and sum(array.nbytes for array in mapped) > free_memory_bytes():
            advise_random_reads(*mapped)
        dtype = sampled_dtype(device, precision)
        stored = graph.store is not None
        x = {
            name: _dense_features(
                nodes.x, table_scaling(feature_scaling, name), device, dtype, stored=stored
            )
            for name, nodes in graph.nodes.items()
        }
        into: dict[str, list[SampledDirection]] = {}
        for direction, fan_out in fan_outs.items():
            relation = graph.relations[direction.relation]
            indptr, indices, weight = relation.indptr, relation.indices, relation.edge_weight
            entries = None
            if direction.backwards:
                senders = graph.nodes[relation.source].num_nodes
                indptr, indices, entries = reverse_order(indptr, indices, senders)
                weight = None if weight is None else weight[entries]
            weights = EdgeWeights()
            if weight is not None:
                weights = EdgeWeights.of(indptr, weight, replace=replace, device=device)
            into.setdefault(direction.receiver, []).append(
                SampledDirection(
                    direction,
                    borrow(indptr).to(device),
                    borrow(indices).to(device),
                    fan_out,
                    replace,
                    relation.undirected,
                    weights,
                    edge_vectors(
                        relation.edge_features, relation.key, device=device, scaling=feature_scaling
                    ),
                    None if entries is None else borrow(entries).to(device),
                )
            )
        return cls(LocalTopology(x, into, device), device=device, dtype=dtype, **options)

    def __post_init__(self) -> None:
        count = self.batch_nodes
        require(count >= 1, "SampledGraph", "batch_nodes", "at least 1", count)
        contrasted_types(self.contrast, list(self.topology.sizes))

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return batches_in(self.topology.sizes, self.contrast, self.batch_nodes)

    def epoch(
        self,
        number: int,
        seed: int,
        *,
        perturbation: Perturbation,
        first: int = 0,
        share: Share = ALONE,
    ) -> Iterator[SampledBatch]:
        """Yields the batches of one epoch from the `first` on; the same for number and seed.

        Raises:
            ParameterError: the perturbation is not the paper's, which alone is drawn on trees.
        """
        if not isinstance(perturbation, Drop):
            name = type(perturbation).__name__
            raise ParameterError(f"mode 'sampled' draws views by 'drop' alone; got {name}")
        batches = node_batches(self.topology.sizes, self.contrast, self.batch_nodes, number, seed)
        steps = [
            (nodes, derive(seed, "sampled", number, step)) for step, nodes in enumerate(batches)
        ][first:]
        if self.topology.device.type == "cuda":
            for nodes, one in steps:
                yield self._drawn_in_step(nodes, perturbation, seed=one, share=share)
            return
        make = partial(self.batch, perturbation=perturbation, share=share)
        works = [
            partial(make, nodes, seed=one, ahead=() if at % WINDOW else steps[at : at + WINDOW])
            for at, (nodes, one) in enumerate(steps)
        ]
        yield from one_ahead(works)

    def batch(
        self,
        nodes: Seeds,
        perturbation: Drop,
        *,
        seed: int,
        share: Share = ALONE,
        ahead: Iterable[tuple[Seeds, int]] = (),
    ) -> SampledBatch:
        """Samples the subgraphs of a share of `nodes` and perturbs them twice.

        `ahead` are the nodes and seeds of coming steps, this one included.
        """
        if ahead and self.replays and self.topology.remembers:
            coming = ((some, derive(one, "tree")) for some, one in ahead)
            self.topology.expect(self._tree(some, one, share) for some, one in coming)
        tree = self._tree(nodes, derive(seed, "tree"), share)
        views = self._views(tree, perturbation, derive(seed, "views"))
        return SampledBatch(nodes, lambda: views)

    def _drawn_in_step(
        self, nodes: Seeds, perturbation: Drop, *, seed: int, share: Share
    ) -> SampledBatch:
        """Returns a batch that draws from memory on the GPU, where its nodes and seed are put."""
        here: dict[str, Tensor] = {}
        for name, some in nodes.items():
            one = name, len(some)
            here[name] = self._nodes.setdefault(one, torch.empty_like(some, device=self.device))
            here[name].copy_(some.pin_memory(), non_blocking=True)
        of_tree, of_views = self._seeds
        of_tree.set(derive(seed, "tree"))
        of_views.set(derive(seed, "views"))

        def draw() -> tuple[TreeView, TreeView]:
            return self._views(self._tree(here, of_tree, share), perturbation, of_views)

        return SampledBatch(here, draw, tuple(map(id, here.values())))

    @cached_property
    def _nodes(self) -> dict[tuple[str, int], Tensor]:
        """The seed nodes of the step on a GPU, by their type and number."""
        return {}

    @cached_property
    def _seeds(self) -> tuple[DeviceSeed, DeviceSeed]:
        """What decides the trees and the views of the step on a GPU."""
        return DeviceSeed(self.device), DeviceSeed(self.device)

    def _tree(self, nodes: Seeds, seed: Seed, share: Share) -> Tree:
        here = {name: some.to(self.topology.device) for name, some in nodes.items()}
        own = self.topology.own_places(nodes, share)
        return sample_tree(self.topology, here, layers=self.layers, seed=seed, own=own)

    def _views(self, tree: Tree, perturbation: Drop, seed: Seed) -> tuple[TreeView, TreeView]:
        x = self.topology.features(tree)
        on_gpu = self.device.type == "cuda"
        with torch.cuda.device(self.device) if on_gpu else nullcontext():  # also in a thread
            if on_gpu:
                tree = tree_to(tree, self.device)
                x = {name: self._on_device(table) for name, table in x.items()}
            return tree_views(x, tree, perturbation, own=self.own_features, seed=seed)

    def _on_device(self, table: Tensor | StoredFeatures) -> Tensor:
        return table if isinstance(table, Tensor) else table.to_dense(self.device, self.dtype)

    def measured(self, metrics: EpochMetrics) -> EpochMetrics:
        """Returns an epoch's metrics, with what processes sent each other if they did."""
        traffic = self.topology.traffic()
        return metrics if traffic is None else PartedMetrics(**vars(metrics), **traffic._asdict())


def fan_outs_of(
    schema: Schema,
    sizes: Mapping[str, int],
    fan_out: int,
    own: Mapping[Key, int] | None = None,
) -> dict[Direction, int]:
    """Returns the children that a node has in each direction in which its type receives.

    `fan_out` is what a node has in all directions together. They share it in proportion to their
    mean degrees, each of which counts as at most `fan_out`; each direction has at least one. `own`
    says other numbers for some relations.
    """
    entries = {one.key: one.num_edges * (1 + one.undirected) for one in schema.relations}
    found: dict[Direction, int] = {}
    for name, size in sizes.items():
        directions = [one for one in schema.into(name) if entries.get(one.relation)]
        degrees = [min(fan_out, entries[one.relation] / size) for one in directions]
        for direction, degree in zip(directions, degrees, strict=True):
            share = round(fan_out * degree / sum(degrees))
            found[direction] = (own or {}).get(direction.relation, max(1, share))
    return found


def _dense_features(
    x: Any,
    feature_scaling: TableScaling,
    device: torch.device,
    dtype: torch.dtype,
    *,
    stored: bool,
) -> Tensor | StoredFeatures:
    narrow = getattr(x, "dtype", None) != np.float32
    if not scipy.sparse.issparse(x) and (stored or narrow):
        as_it_is = stored_features(x, feature_scaling=feature_scaling)
        return as_it_is.to_dense(device, dtype) if device.type == "cuda" else as_it_is
    return feature_tensor(x, device=device, feature_scaling=feature_scaling).to_dense().to(dtype)


def one_ahead(works: Sequence[Callable[[], T]]) -> Iterator[T]:
    """Yields the results in order; while one is used, the next is made in a thread."""
    if not works:
        return
    with ThreadPoolExecutor(1, thread_name_prefix="graphcl-sampler") as thread:
        waiting = thread.submit(works[0])
        for work in works[1:]:
            done = waiting.result()
            waiting = thread.submit(work)
            yield done
        yield waiting.result()
