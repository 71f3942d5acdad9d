"""Batches from one graph that is too large to encode whole: sampled L-hop subgraphs."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

import numpy as np
import scipy.sparse
import torch
from torch import Tensor, nn

from graphcl.distributed import ALONE, Share
from graphcl.encoders import stated_layers
from graphcl.errors import ParameterError, require
from graphcl.files.arrays import advise_random_reads
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import Scaling
from graphcl.graphs.tensors import feature_tensor, stored_features
from graphcl.kernels.buffers import borrow, retry_smaller
from graphcl.kernels.neighbours import EdgeWeights
from graphcl.kernels.stored_features import StoredFeatures
from graphcl.memory import free_memory_bytes
from graphcl.sampling import FAN_OUTS, TreeView, encode_tree, sample_tree, tree_views
from graphcl.seeding import derive, generator
from graphcl.training.modes import sampled_dtype
from graphcl.views import Drop, Perturbation

T = TypeVar("T")


@dataclass(frozen=True)
class SampledBatch:
    """A minibatch whose subgraphs were sampled, and perturbed twice, while the last one trained.

    Attributes:
        nodes: the M seed nodes, over all processes.
        trees: the two views of the sampled subgraphs of this process's share of them.
    """

    nodes: Tensor
    trees: tuple[TreeView, TreeView]

    @property
    def num_nodes(self) -> int:
        """M, the size of the minibatch over all processes."""
        return len(self.nodes)

    def views(
        self,
        generator: torch.Generator,  # noqa: ARG002 (the draws follow from seed, epoch and step)
    ) -> tuple[TreeView, TreeView]:
        """Returns the two views."""
        return self.trees

    def encode(self, encoder: nn.Module, views: tuple[TreeView, TreeView]) -> tuple[Tensor, Tensor]:
        """Returns the embeddings of this process's seed nodes in view 1 and in view 2."""
        layers = stated_layers(encoder, "mode 'sampled'")
        return encode_tree(views[0], layers), encode_tree(views[1], layers)


@dataclass(frozen=True)
class SampledGraph:
    """Each step sees `batch_nodes` nodes and a sampled tree of `fan_outs` around each of them.

    An epoch visits every node once, in a random order. Each seed node's subgraph is sampled once a
    step and perturbed twice, as in the paper. On a CPU the next batch is prepared in a thread,
    which the GIL does not hold up; on a GPU everything happens there. The draws depend on seed,
    epoch, step and place in the batch alone, so the number of threads changes nothing. In a group
    of processes each samples and encodes its share of the seed nodes; their number changes nothing.

    Args:
        x: dense features, on the device that trains; float32, or on a GPU bfloat16: then the
            encoder's products are bfloat16 too, and a feature row is half the traffic. Those of
            a store stay on disk: rows are gathered out of the map in the type they have there.
        indptr: CSR row pointers, int64, on the same device.
        indices: CSR column indices, int64; on a CPU int32 too.
        batch_nodes: M, the nodes per step.
        fan_outs: neighbours per hop, one number per layer of the encoder.
        replace: sample with replacement.
        own_features: whether the first layer of the encoder keeps the node itself.
        edge_weights: of a weighted graph, for this way of sampling.
    """

    x: Tensor | StoredFeatures
    indptr: Tensor
    indices: Tensor
    batch_nodes: int = 512
    fan_outs: tuple[int, ...] = FAN_OUTS
    replace: bool = True
    own_features: bool = True
    edge_weights: EdgeWeights | None = None

    @classmethod
    def of(
        cls,
        graph: Graph,
        *,
        device: torch.device,
        feature_scaling: Scaling = "none",
        batch_nodes: int = 512,
        fan_outs: Sequence[int] = FAN_OUTS,
        replace: bool = True,
        own_features: bool = True,
        precision: str = "auto",
    ) -> Self:
        """Builds a source from a graph; on a CPU it shares the graph's memory, or its store.

        Sparse features are made dense. On a GPU they are bfloat16, or float32 if `precision` is
        ``float32`` or ``tf32``. For `feature_scaling` see `feature_tensor`.
        """
        graph.check()
        mapped = [array for array in (graph.x, graph.indices) if isinstance(array, np.memmap)]
        if device.type == "cpu" and sum(array.nbytes for array in mapped) > free_memory_bytes():
            advise_random_reads(*mapped)
        return cls(
            _dense_features(graph, device, feature_scaling, precision),
            borrow(graph.indptr).to(device),
            borrow(graph.indices).to(device),
            batch_nodes=batch_nodes,
            fan_outs=tuple(fan_outs),
            replace=replace,
            own_features=own_features,
            edge_weights=None
            if graph.edge_weight is None
            else EdgeWeights.of(graph.indptr, graph.edge_weight, replace=replace, device=device),
        )

    def __post_init__(self) -> None:
        count = self.batch_nodes
        require(count >= 1, "SampledGraph", "batch_nodes", "at least 1", count)

    @property
    def num_nodes(self) -> int:
        """Number of nodes that are trained on."""
        return len(self.indptr) - 1

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return -(-self.num_nodes // self.batch_nodes)

    @property
    def constant(self) -> bool:
        """Every batch is another sample."""
        return False

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
        drop = require_drop(perturbation, Drop)
        device = self.indptr.device
        works = [
            partial(self.batch, nodes.to(device), drop, seed=one, share=share)
            for nodes, one in epoch_batches(self.num_nodes, self.steps_per_epoch, number, seed)
        ][first:]
        # A GPU works through its queue while the host fills it: it needs no thread.
        on_gpu = self.indptr.is_cuda
        yield from map(retry_smaller, works) if on_gpu else one_ahead(works)

    def batch(
        self, nodes: Tensor, perturbation: Drop, *, seed: int, share: Share = ALONE
    ) -> SampledBatch:
        """Samples the subgraphs of a share of `nodes` and perturbs them twice."""
        own = share.rows(len(nodes))
        tree = sample_tree(
            self.indptr,
            self.indices,
            nodes[own],
            fan_outs=self.fan_outs,
            replace=self.replace,
            edge_weights=self.edge_weights,
            seed=derive(seed, "tree"),
            first=own.start,
        )
        views = tree_views(
            self.x,
            tree,
            perturbation,
            own=self.own_features,
            seed=derive(seed, "views"),
        )
        return SampledBatch(nodes, views)


def _dense_features(
    graph: Graph, device: torch.device, feature_scaling: Scaling, precision: str
) -> Tensor | StoredFeatures:
    on_gpu, dtype = device.type == "cuda", sampled_dtype(device, precision)
    narrow = getattr(graph.x, "dtype", None) != np.float32
    if not scipy.sparse.issparse(graph.x) and (graph.store is not None or narrow):
        stored = stored_features(graph, feature_scaling=feature_scaling)
        return stored.to_dense(device, dtype) if on_gpu else stored
    x = feature_tensor(graph, device=device, feature_scaling=feature_scaling)
    return (x if isinstance(x, Tensor) else x.to_dense()).to(dtype)


def require_drop(perturbation: object, kind: type[T]) -> T:
    """Returns the perturbation, if it is of the kind that can be drawn on trees.

    Raises:
        ParameterError: it is not the paper's.
    """
    if not isinstance(perturbation, kind):
        name = type(perturbation).__name__
        raise ParameterError(f"mode 'sampled' draws views by 'drop' alone; got {name}")
    return perturbation


def epoch_batches(num_nodes: int, steps: int, number: int, seed: int) -> list[tuple[Tensor, int]]:
    """Returns the nodes of each batch of an epoch, in a random order, and the seed of its draws."""
    order = torch.randperm(num_nodes, generator=generator(seed, "batches", number))
    # Equal sizes: a last batch of few nodes would have few negatives.
    return with_seeds(order.tensor_split(steps), number, seed)


def with_seeds(batches: Iterable[T], number: int, seed: int) -> list[tuple[T, int]]:
    """Returns the batches of an epoch, each with the seed of its draws."""
    return [(one, derive(seed, "sampled", number, step)) for step, one in enumerate(batches)]


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
