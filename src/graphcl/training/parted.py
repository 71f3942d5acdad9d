"""Batches from a graph in parts: sampled subgraphs whose nodes lie with several processes.

The batches are those of `SampledGraph` on the whole graph in the same numbering: the same seed
nodes in every step, the same neighbours, the same views. Only the order of the rows of a batch
differs, and with it the order of sums: each process takes the seed nodes of its own part, as far as
shares stay equal, because their neighbours are often in the part as well.

A step of a process, in a thread, one step ahead of the training:

1. Neighbours are drawn hop by hop (`graphcl.partitioned.topology`).
2. The features of all nodes of the trees are fetched, each row once
   (`graphcl.partitioned.rows`).
3. Both views are drawn, as on a whole graph.

Draws depend on seed, epoch and step alone. So the trees of the coming steps can be drawn before
they are needed, without features: their rows of other parts are counted, and those that are needed
most often, at least twice, are fetched once and kept.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphcl.distributed import ALONE, Share, current_share, sum_over
from graphcl.errors import require
from graphcl.kernels.counter import stream_key
from graphcl.kernels.distinct import number_distinct
from graphcl.partitioned.rows import FeatureRows
from graphcl.partitioned.topology import Topology
from graphcl.partitioned.wire import Wire
from graphcl.sampling import FAN_OUTS, Tree, child_weights, tree_views
from graphcl.seeding import derive
from graphcl.training.loop import EpochMetrics, PartedMetrics
from graphcl.training.sampled import SampledBatch, epoch_batches, one_ahead, require_drop
from graphcl.views import Drop, Perturbation

WINDOW = 256  # steps whose trees are drawn before they are needed, at most
HELD = 1 << 22  # numbers of rows that are counted at a time
IntArray = npt.NDArray[np.int64]
B = TypeVar("B")
R = TypeVar("R")


@dataclass
class Steps:
    """How many batches were made since the epoch's figures were last taken."""

    done: int = 0


@dataclass(frozen=True, eq=False)
class PartedGraph:
    """Each step sees `batch_nodes` nodes of all parts, and a sampled tree around each of them.

    Args:
        topology: the edges.
        rows: the features.
        wire: what both use.
        batch_nodes: M, the nodes per step, over all processes.
        fan_outs: neighbours per hop, one number per layer of the encoder.
        replace: sample with replacement.
        own_features: whether the first layer of the encoder keeps the node itself.
        replays: draw the trees of coming steps ahead, if there is a cache to fill.
        steps: counts them.
    """

    topology: Topology
    rows: FeatureRows
    wire: Wire
    batch_nodes: int = 512
    fan_outs: tuple[int, ...] = FAN_OUTS
    replace: bool = True
    own_features: bool = True
    replays: bool = True
    steps: Steps = field(default_factory=Steps)

    def __post_init__(self) -> None:
        count = self.batch_nodes
        require(count >= 1, "PartedGraph", "batch_nodes", "at least 1", count)

    @property
    def num_nodes(self) -> int:
        """Number of nodes that are trained on."""
        return self.topology.parts.num_nodes

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
        steps = epoch_batches(self.num_nodes, self.steps_per_epoch, number, seed)[first:]
        yield from in_windows(steps, partial(self._batch, drop, share))

    def measured(self, metrics: EpochMetrics) -> EpochMetrics:
        """Returns an epoch's metrics with what all processes sent since the last call."""
        return with_traffic(metrics, self.wire, [self.rows], self.steps)

    def _batch(
        self,
        perturbation: Drop,
        share: Share,
        nodes: Tensor,
        seed: int,
        ahead: Sequence[tuple[Tensor, int]],
    ) -> SampledBatch:
        if ahead and self.replays and self.wire.most(self.rows.capacity):
            self.rows.keep(self._wanted(ahead, share))
        tree, distinct = self._tree(nodes, seed, share)
        x = self.rows.fetch(distinct)
        self.steps.done += 1
        views = tree_views(x, tree, perturbation, own=self.own_features, seed=derive(seed, "views"))
        return SampledBatch(nodes, views)

    def _tree(self, nodes: Tensor, seed: int, share: Share) -> tuple[Tree, IntArray]:
        """Samples the subgraphs of this process's share; returns them, and all nodes in them."""
        owners = self.topology.parts.owner(nodes.numpy())
        by_owner = torch.from_numpy(np.argsort(owners, kind="stable"))
        seeds = by_owner[share.rows(len(nodes))]  # places in the batch
        levels, weights, places = [nodes[seeds]], [], seeds
        for hop, fan_out in enumerate(self.fan_outs):
            key = stream_key(derive(seed, "tree"), "neighbours", hop)
            drawn = self.topology.draw(levels[-1], places, fan_out=fan_out, key=key)
            weight = child_weights(drawn.degree, fan_out, replace=self.replace)
            weights.append(weight if drawn.relative is None else weight * drawn.relative)
            levels.append(drawn.children)
            places = (places[:, None] * fan_out + torch.arange(fan_out)).view(-1)
        distinct, rows = number_distinct(torch.cat(levels).numpy())
        by_level = torch.split(torch.from_numpy(rows), [len(level) for level in levels])
        tree = Tree(tuple(levels), tuple(weights), self.fan_outs, places=seeds)
        return replace(tree, rows=tuple(one.contiguous() for one in by_level)), distinct

    def _wanted(self, steps: Sequence[tuple[Tensor, int]], share: Share) -> IntArray:
        """Returns which rows of other parts the steps need most, at most as many as are kept."""
        needed = Needed(self.topology.part.nodes)
        for nodes, seed in steps:
            needed.add(self._tree(nodes, seed, share)[1])
        return needed.most(self.rows.capacity)


class Needed:
    """Counts which rows of other parts steps need; `own` are the numbers of the own rows."""

    def __init__(self, own: slice) -> None:
        self._own = own
        self._known, self._times = np.empty(0, np.int64), np.empty(0, np.int64)
        self._held: list[IntArray] = []

    def add(self, distinct: IntArray) -> None:
        """Counts what a step needs."""
        self._held.append(distinct[(distinct < self._own.start) | (distinct >= self._own.stop)])
        if sum(map(len, self._held)) > HELD:
            self._count()

    def most(self, capacity: int) -> IntArray:
        """Returns what is needed most often, at least twice, ascending, at most `capacity`."""
        self._count()
        often = self._times >= 2  # a row that is needed once is fetched once, kept or not
        known, times = self._known[often], self._times[often]
        if len(known) > capacity:
            most = np.argsort(-times, kind="stable")[:capacity]
            known = np.sort(known[most])
        return known

    def _count(self) -> None:
        more = np.concatenate([np.empty(0, np.int64), *self._held])
        new, counts = np.unique(more, return_counts=True)
        every, where = np.unique(np.concatenate([self._known, new]), return_inverse=True)
        sums = np.concatenate([self._times, counts])
        total = np.bincount(where, weights=sums, minlength=len(every))
        self._known, self._times, self._held = every, total.astype(np.int64), []


def in_windows(
    steps: Sequence[tuple[B, int]], work: Callable[[B, int, Sequence[tuple[B, int]]], R]
) -> Iterator[R]:
    """Yields what `work` makes of each step, one step ahead in a thread.

    It is called with a batch, its seed, and at the first step of a window with all steps of it.
    """
    works = []
    for begin in range(0, len(steps), WINDOW):
        window = steps[begin : begin + WINDOW]
        works += [
            partial(work, batch, seed, window if place == 0 else ())
            for place, (batch, seed) in enumerate(window)
        ]
    yield from one_ahead(works)


def with_traffic(
    metrics: EpochMetrics, wire: Wire, tables: Sequence[FeatureRows], steps: Steps
) -> PartedMetrics:
    """Returns an epoch's metrics with what all processes sent since the last call."""
    counts = [one.counts for one in tables]
    sums = [wire.sent, sum(one.needed for one in counts), sum(one.kept for one in counts)]
    sent, needed, kept = sum_over(torch.tensor(sums), current_share()).tolist()
    each = sent / max(1, steps.done)
    wire.sent = steps.done = 0
    for one in counts:
        one.needed = one.kept = 0
    hits = kept / needed if needed else None
    return PartedMetrics(**vars(metrics), sent_bytes=each, cache_hits=hits)
