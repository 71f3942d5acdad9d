r"""GraphSAGE trained without labels (Hamilton, Ying & Leskovec, NeurIPS 2017).

Nodes that co-occur on short random walks get close embeddings, others far ones (equation 1):

.. math::
    J(z_u) = -\log \sigma(z_u^\top z_v)
             - Q\, \mathbb{E}_{v_n \sim P_n} \log \sigma(-z_u^\top z_{v_n}),

where v is a node of a walk from u and :math:`P_n \propto \mathrm{degree}^{3/4}`. Two layers, 25
sampled neighbours in the first and 10 in the second, 2 · 128 columns, embeddings of length 1.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, relu, softplus

from graphcl.baselines.graphsage_aggregators import AGGREGATORS, build_aggregators
from graphcl.baselines.inputs import training_graph, whole_graph
from graphcl.baselines.protocol import Baseline, Data, OnEpoch, Rows, silent
from graphcl.errors import TrainingError, require
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import feature_tensor
from graphcl.kernels.buffers import borrow
from graphcl.kernels.counter import WORD, draw, positions, stream_key
from graphcl.kernels.neighbours import sample_neighbours
from graphcl.sampling import sample_tree
from graphcl.seeding import derive, generator

_BLOCK = 1 << 14  # nodes that are embedded at a time


@dataclass(frozen=True)
class GraphSage:
    """Unsupervised GraphSAGE with one of the paper's four aggregators.

    It learns from all of a graph, with `inductive` from its training nodes and the edges among
    them, and of a collection from the training graphs; every node is then embedded from sampled
    neighbours, as in training. On a GPU all of it stays there.

    Differs from the paper: pairs are drawn afresh in each step (one walk from u, one of its nodes)
    rather than 50 walks a node once. Adam's rate and the number of epochs are ours: with them the
    loss of PPI's validation graphs, which are unseen, has stopped falling. A node's embedding is
    made layer by layer, the first from 25 neighbours of every node. Our probe is trained to
    convergence: expect scores above the published ones.

    Attributes:
        aggregator: ``gcn``, ``mean``, ``lstm`` or ``pool``.
        dim: width of the node's own half of a layer and of the neighbourhood's: 2 dim together.
        samples_1: S₁, sampled neighbours in the first layer: of the node's neighbours.
        samples_2: S₂, in the second: of the node itself.
        pool_dim: width that `pool` takes its maximum in.
        lstm_dim: width of the state of `lstm`.
        walk_length: nodes of a walk, the first included.
        negatives: Q, drawn once for all pairs of a step.
        batch_nodes: pairs per step.
        epochs: times that every node starts a pair.
        learning_rate: Adam's.
        inductive: learn from the training nodes of a graph alone.
        feature_scaling: see `feature_tensor`.
    """

    aggregator: str = "mean"
    dim: int = 128
    samples_1: int = 25
    samples_2: int = 10
    pool_dim: int = 512
    lstm_dim: int = 128
    walk_length: int = 5
    negatives: int = 20
    batch_nodes: int = 512
    epochs: int = 10
    learning_rate: float = 1e-3
    inductive: bool = False
    feature_scaling: str = "none"

    def __post_init__(self) -> None:
        known = " or ".join(AGGREGATORS)
        owner = "GraphSage"
        require(self.aggregator in AGGREGATORS, owner, "aggregator", known, self.aggregator)
        require(self.walk_length >= 2, owner, "walk_length", "at least 2", self.walk_length)
        for name in ("dim", "samples_1", "samples_2", "negatives", "batch_nodes", "epochs"):
            value = getattr(self, name)
            require(value >= 1, owner, name, "at least 1", value)

    def embed(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Rows:
        """Returns embeddings of length 1, ``[num_nodes, 2 dim]``."""
        x, indptr, indices = self._tensors(training_graph(data, inductive=self.inductive), device)
        layers = build_aggregators(
            self.aggregator,
            x.shape[1],
            dim=self.dim,
            layers=2,
            pool_dim=self.pool_dim,
            lstm_dim=self.lstm_dim,
            generator=generator(seed, "weights"),
        ).to(device)
        adam = torch.optim.Adam(
            layers.parameters(), lr=self.learning_rate, fused=device.type == "cuda"
        )
        likelihood = negative_distribution(indptr)
        steps = -(-(len(indptr) - 1) // self.batch_nodes)
        for epoch in range(self.epochs):
            order = torch.randperm(len(indptr) - 1, generator=generator(seed, "batches", epoch))
            total = x.new_zeros(())
            for step, nodes in enumerate(order.to(device).tensor_split(steps)):
                here = derive(seed, "step", epoch, step)
                other = co_occurring(indptr, indices, nodes, length=self.walk_length, seed=here)
                far = draw_negatives(likelihood, self.negatives, seed=here)
                batch = torch.cat([nodes, other, far])
                z = self._encode(layers, x, indptr, indices, batch, seed=here)
                near, count = z[len(nodes) : 2 * len(nodes)], 2 * len(nodes)
                loss = walk_loss(z[: len(nodes)], near, z[count:], counts=nodes != other)
                adam.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                adam.step()
                total += loss.detach()
            if not bool(total.isfinite()):
                raise TrainingError(f"GraphSage: the loss is not finite in epoch {epoch + 1}")
            on_epoch(epoch + 1, self.epochs)
        return self._embed_all(layers, whole_graph(data), seed=seed, device=device)

    def _tensors(self, graph: Graph, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        x = feature_tensor(graph, device=device, feature_scaling=self.feature_scaling)
        dense = x if isinstance(x, Tensor) else x.to_dense()
        return dense, borrow(graph.indptr).to(device), borrow(graph.indices).to(device)

    def _encode(
        self,
        layers: Iterable[nn.Module],
        x: Tensor,
        indptr: Tensor,
        indices: Tensor,
        nodes: Tensor,
        *,
        seed: int,
    ) -> Tensor:
        """Returns embeddings of `nodes` from freshly sampled trees."""
        fan_outs = (self.samples_2, self.samples_1)  # from the node outwards
        tree = sample_tree(indptr, indices, nodes, fan_outs=fan_outs, seed=seed)
        rows = [x[level] for level in tree.levels]
        for number, layer in enumerate(layers):
            pairs = pairwise(relu(row) for row in rows) if number else pairwise(rows)
            rows = [layer(own, around.view(len(own), -1, own.shape[1])) for own, around in pairs]
        return normalize(rows[0])

    @torch.no_grad()
    def _embed_all(
        self, layers: Iterable[nn.Module], graph: Graph, *, seed: int, device: torch.device
    ) -> Rows:
        """Embeds every node layer by layer: the neighbours' rows are made once, not per tree."""
        h, indptr, indices = self._tensors(graph, device)
        samples = (self.samples_1, self.samples_2)
        for number, (layer, fan_out) in enumerate(zip(layers, samples, strict=True)):
            h = relu(h) if number else h
            parts = []
            for block, nodes in enumerate(torch.split(positions(len(h), device), _BLOCK)):
                key = stream_key(seed, "embed", number, block)
                around = sample_neighbours(
                    indptr, indices, nodes, fan_out=fan_out, replace=True, key=key
                )
                parts.append(layer(h[nodes], h[around].view(len(nodes), fan_out, -1)))
            h = torch.cat(parts)
        return normalize(h).cpu().numpy()


def co_occurring(
    indptr: Tensor, indices: Tensor, nodes: Tensor, *, length: int, seed: int
) -> Tensor:
    """Returns for each node one that a random walk of `length` nodes from it meets after it.

    Each place of the walk but the first is as likely as any other. A walk can come back: the
    result may be the node itself, as it is for a node without neighbours.
    """
    bits = draw(positions(len(nodes), nodes.device), stream_key(seed, "place"))
    place = (bits * (length - 1)) >> 32
    found = at = nodes
    for step in range(length - 1):
        key = stream_key(seed, "walk", step)
        at = sample_neighbours(indptr, indices, at, fan_out=1, replace=True, key=key)
        found = torch.where(place == step, at, found)
    return found


def negative_distribution(indptr: Tensor) -> Tensor:
    """Returns the cumulative distribution of degree^¾ over the nodes, in float64."""
    weight = indptr.diff().double().pow(0.75)
    cumulative = weight.cumsum(0)
    # A graph without any edge has no degrees to go by: there every node is as likely.
    uniform = torch.arange(1, len(weight) + 1, device=indptr.device).double()
    cumulative = torch.where(cumulative[-1] > 0, cumulative, uniform)
    return cumulative / cumulative[-1]


def draw_negatives(cumulative: Tensor, count: int, *, seed: int) -> Tensor:
    """Returns `count` nodes drawn from `negative_distribution`, any of them repeatedly."""
    uniform = draw(positions(count, cumulative.device), stream_key(seed, "negatives"))
    found = torch.searchsorted(cumulative, uniform.double() / (WORD + 1), right=True)
    return found.clamp_(max=len(cumulative) - 1)


def walk_loss(z: Tensor, near: Tensor, far: Tensor, *, counts: Tensor) -> Tensor:
    """Returns the module's loss, its mean over the pairs.

    Args:
        z: embeddings of the nodes u, ``[M, d]``.
        near: of the nodes that co-occur with them, ``[M, d]``.
        far: of the negatives that all of them share, ``[Q, d]``.
        counts: which pairs count: a node beside itself says nothing.
    """
    attraction = softplus(-(z * near).sum(1))
    repulsion = softplus(z @ far.T).sum(1)
    return ((attraction + repulsion) * counts).sum() / counts.sum().clamp(min=1)


@dataclass(frozen=True)
class GraphSageGcn(GraphSage):
    """GraphSAGE-GCN."""

    aggregator: str = "gcn"


@dataclass(frozen=True)
class GraphSageLstm(GraphSage):
    """GraphSAGE-LSTM."""

    aggregator: str = "lstm"


@dataclass(frozen=True)
class GraphSagePool(GraphSage):
    """GraphSAGE-pool."""

    aggregator: str = "pool"


PAPER = "Hamilton, Ying & Leskovec, Inductive Representation Learning on Large Graphs, NeurIPS 2017"
_REDDIT = {"reddit": {"inductive": True}}
GCN = Baseline("graphsage-gcn", "GraphSAGE-GCN", GraphSageGcn, _REDDIT, PAPER)
MEAN = Baseline("graphsage-mean", "GraphSAGE-mean", GraphSage, _REDDIT, PAPER)
LSTM = Baseline("graphsage-lstm", "GraphSAGE-LSTM", GraphSageLstm, _REDDIT, PAPER)
POOL = Baseline("graphsage-pool", "GraphSAGE-pool", GraphSagePool, _REDDIT, PAPER)
