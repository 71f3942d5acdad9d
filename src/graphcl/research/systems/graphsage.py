r"""GraphSAGE trained without labels (Hamilton, Ying & Leskovec, NeurIPS 2017).

Training makes the embeddings of nodes that co-occur on short random walks similar, and those of
other pairs dissimilar (equation 1):

.. math::
    J(z_u) = -\log \sigma(z_u^\top z_v)
             - Q\, \mathbb{E}_{v_n \sim P_n} \log \sigma(-z_u^\top z_{v_n}),

where v is a node of a walk from u and :math:`P_n \propto \mathrm{degree}^{3/4}`. There are two
layers, with 25 and 10 sampled neighbours; embeddings have 2 · 128 columns and length 1.

A layer is one of four aggregators (section 3.3): it computes a node's next row from its own row and
those of f sampled neighbours. All but ``gcn`` concatenate own row and neighbourhood
(line 5 of algorithm 1): :math:`h_v \leftarrow \sigma(W \cdot \mathrm{concat}(h_v, h_{N(v)}))`. W
is split into two blocks of `dim` columns each, as in the authors' code. The caller applies σ.
PyTorch Geometric's `SAGEConv` adds the two halves instead, and needs a list of the sampled edges:
the same mean takes it 1.4 to 1.7 times as long (`python -m benchmarks.layers`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, relu, softplus

from graphcl.encoders import glorot
from graphcl.errors import require
from graphcl.kernels.adam import Adam
from graphcl.kernels.counter import WORD, draw, stream_key
from graphcl.kernels.neighbours import draw_neighbours, sample_levels
from graphcl.research.systems.layers import dense_csr, mean_with
from graphcl.research.systems.system import (
    Checked,
    Data,
    OnEpoch,
    Rows,
    System,
    batches,
    scaling_for,
    silent,
    train_epochs,
    training_graph,
    whole_graph,
)
from graphcl.seeding import derive, generator

_BLOCK = 1 << 14  # nodes embedded at a time


class Aggregator(nn.Module):
    r"""One layer: rows ``[n, inputs]`` and neighbours ``[n, f, inputs]`` become ``[n, 2 dim]``.

    - ``gcn``: :math:`W \cdot \mathrm{mean}(\{h_v\} \cup \{h_u, u \in N(v)\})`, equation 2.
    - ``mean``: :math:`[W_1 h_v \| W_2\, \mathrm{mean}_u\, h_u]`.
    - ``pool``: :math:`[W_1 h_v \| W_2 \max_u \mathrm{ReLU}(W_p h_u + b)]`, equation 3.
    - ``lstm``: :math:`[W_1 h_v \| W_2\, \mathrm{LSTM}(h_{u_1}, \ldots, h_{u_f})]`, its last state.
      It reads the neighbours in the random order in which they were drawn, as in the paper.

    Args:
        kind: one of these.
        inputs: width of the rows.
        dim: half of the width of the output.
        hidden: width of what ``pool`` takes the maximum over, or of the state of ``lstm``.
    """

    def __init__(self, kind: str, inputs: int, dim: int, hidden: int = 0) -> None:
        super().__init__()
        self.kind, width = kind, hidden or inputs
        if kind == "pool":
            self.pool = nn.Parameter(torch.empty(inputs, hidden))
            self.pool_bias = nn.Parameter(torch.empty(hidden))
        if kind == "lstm":
            with torch.random.fork_rng(devices=[]):  # PyTorch's own draws are replaced by `glorot`
                self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        if kind != "gcn":
            self.own = nn.Parameter(torch.empty(inputs, dim))
        self.weight = nn.Parameter(torch.empty(width, 2 * dim if kind == "gcn" else dim))

    def forward(self, own: Tensor, around: Tensor) -> Tensor:
        """Returns the rows after the layer, before its activation."""
        if self.kind == "gcn":
            return mean_with(own, around) @ self.weight
        if self.kind == "mean":
            h = around.mean(1)
        elif self.kind == "pool":
            # ReLU and the bias are monotone: they can follow the maximum, on f times fewer rows.
            h = relu((around @ self.pool).amax(1) + self.pool_bias)
        else:
            h = self.lstm(around)[1][0][0]
        return torch.cat([own @ self.own, h @ self.weight], dim=1)


def build_aggregators(
    method: "GraphSage", num_features: int, generator: torch.Generator
) -> nn.ModuleList:
    """Returns two new layers with ``2 dim`` outputs each, Glorot weights and zero biases.

    The generator, which is on the CPU, alone decides the weights.
    """
    kind, dim = method.aggregator, method.dim
    hidden = {"lstm": method.lstm_dim, "pool": method.pool_dim}.get(kind, 0)
    widths = (num_features, 2 * dim)
    module = nn.ModuleList(Aggregator(kind, inputs, dim, hidden) for inputs in widths)
    glorot(module, generator)
    for parameter in module.parameters():
        if parameter.ndim == 1:
            nn.init.zeros_(parameter)
    return module


@dataclass(frozen=True)
class GraphSage(Checked):
    """Unsupervised GraphSAGE with one of the paper's four aggregators.

    It trains on the whole graph; with `inductive`, only on its training nodes and the edges among
    them; for a collection, on the training graphs. Then it embeds every node from sampled
    neighbours, as in training. On a GPU all tensors stay there.

    Differs from the paper: each step draws new pairs (one walk from u, one of its nodes), while the
    authors draw 50 walks per node once. Adam's learning rate and the number of epochs are ours:
    they are enough for the loss on PPI's validation graphs to stop falling. Embeddings are computed
    layer by layer, where the first layer samples 25 neighbours of every node. Our probe is trained
    to convergence: expect scores above the published ones.

    Attributes:
        aggregator: ``gcn``, ``mean``, ``lstm`` or ``pool``.
        dim: width of each half of a layer's output (own row, neighbourhood): 2 dim together.
        samples_1: S₁, sampled neighbours in the first layer, of each of the node's neighbours.
        samples_2: S₂, sampled neighbours in the second layer, of the node itself.
        pool_dim: width of the rows that `pool` takes the maximum over.
        lstm_dim: width of the state of `lstm`.
        walk_length: nodes of a walk, including the first.
        negatives: Q, drawn once for all pairs of a step.
        batch_nodes: pairs per step.
        epochs: number of pairs that start at each node.
        learning_rate: Adam's.
        inductive: train only on the training nodes of a graph and the edges among them.
        feature_scaling: see `feature_tensor`.
    """

    owner: ClassVar[str] = "GraphSage"
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
        require(self.walk_length >= 2, self.owner, "walk_length", "at least 2", self.walk_length)
        super().__post_init__()

    def embed(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Rows:
        """Returns embeddings of length 1, ``[num_nodes, 2 dim]``."""
        graph = training_graph(data, inductive=self.inductive)
        scaling = scaling_for(graph, self.feature_scaling)
        x, indptr, indices = dense_csr(graph, device, scaling)
        layers = build_aggregators(self, x.shape[1], generator(seed, "weights")).to(device)
        likelihood = negative_distribution(indptr)

        def losses(epoch: int) -> Iterator[Tensor]:
            parts = batches(len(x), self.batch_nodes, seed=seed, epoch=epoch, device=device)
            for step, nodes in enumerate(parts):
                step_seed = derive(seed, "step", epoch, step)
                other = co_occurring(
                    indptr, indices, nodes, length=self.walk_length, seed=step_seed
                )
                negatives = draw_negatives(likelihood, self.negatives, seed=step_seed)
                batch = torch.cat([nodes, other, negatives])
                z = self._encode(layers, x, indptr, indices, batch, seed=step_seed)
                near, far = z[len(nodes) : 2 * len(nodes)], z[2 * len(nodes) :]
                yield walk_loss(z[: len(nodes)], near, far, counts=nodes != other)

        train_epochs(
            Adam(layers.parameters(), lr=self.learning_rate, fused=device.type == "cuda"),
            losses,
            epochs=self.epochs,
            owner=self.owner,
            on_epoch=on_epoch,
        )
        table = dense_csr(whole_graph(data), device, scaling)
        return self._embed_all(layers, *table, seed=seed)

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
        levels = sample_levels(indptr, indices, nodes, fan_outs=fan_outs, seed=seed)
        # A layer joins each level with the one below it, so one level fewer is left after it.
        rows = [x[level] for level in levels]
        for number, layer in enumerate(layers):
            pairs = pairwise(relu(row) for row in rows) if number else pairwise(rows)
            rows = [layer(own, around.view(len(own), -1, own.shape[1])) for own, around in pairs]
        return normalize(rows[0])

    @torch.no_grad()
    def _embed_all(
        self, layers: Iterable[nn.Module], h: Tensor, indptr: Tensor, indices: Tensor, *, seed: int
    ) -> Rows:
        """Embeds all nodes layer by layer, so that a row that many nodes use is computed once."""
        samples = (self.samples_1, self.samples_2)
        for number, (layer, fan_out) in enumerate(zip(layers, samples, strict=True)):
            h = relu(h) if number else h
            parts = []
            every = torch.arange(len(h), device=h.device)
            for block, nodes in enumerate(torch.split(every, _BLOCK)):
                key = stream_key(seed, "embed", number, block)
                around = draw_neighbours(indptr, indices, nodes, fan_out=fan_out, key=key)
                parts.append(layer(h[nodes], h[around.nodes].view(len(nodes), fan_out, -1)))
            h = torch.cat(parts)
        return normalize(h).cpu().numpy()


def co_occurring(
    indptr: Tensor, indices: Tensor, nodes: Tensor, *, length: int, seed: int
) -> Tensor:
    """Returns, for each node, a later node of a random walk of `length` nodes that starts there.

    Every place after the first is equally likely. The result can be the node itself: a walk may
    return, and a walk from a node without neighbours stays.
    """
    bits = draw(torch.arange(len(nodes), device=nodes.device), stream_key(seed, "place"))
    place = (bits * (length - 1)) >> 32  # maps 32 random bits to 0 .. length - 2
    found = at = nodes
    for step in range(length - 1):
        key = stream_key(seed, "walk", step)
        at = draw_neighbours(indptr, indices, at, fan_out=1, key=key).nodes
        found = torch.where(place == step, at, found)
    return found


def negative_distribution(indptr: Tensor) -> Tensor:
    """Returns the cumulative distribution of degree^¾ over the nodes, in float64."""
    weight = indptr.diff().double().pow(0.75)
    cumulative = weight.cumsum(0)
    # Without any edge all degrees are 0; every node is then equally likely.
    uniform = torch.arange(1, len(weight) + 1, device=indptr.device).double()
    cumulative = torch.where(cumulative[-1] > 0, cumulative, uniform)
    return cumulative / cumulative[-1]


def draw_negatives(cumulative: Tensor, count: int, *, seed: int) -> Tensor:
    """Returns `count` nodes drawn from `negative_distribution`, with replacement."""
    uniform = draw(torch.arange(count, device=cumulative.device), stream_key(seed, "negatives"))
    found = torch.searchsorted(cumulative, uniform.double() / (WORD + 1), right=True)
    return found.clamp_(max=len(cumulative) - 1)


def walk_loss(z: Tensor, near: Tensor, far: Tensor, *, counts: Tensor) -> Tensor:
    """Returns the loss in the module's docstring, averaged over the pairs.

    The embeddings are those of the nodes u, ``[M, d]``, of the nodes that co-occur with them, and
    of the negatives, which all pairs share, ``[Q, d]``. `counts` says whether each pair counts; a
    pair of a node and itself should not.
    """
    attraction = softplus(-(z * near).sum(1))
    repulsion = softplus(z @ far.T).sum(1)
    return ((attraction + repulsion) * counts).sum() / counts.sum().clamp(min=1)


SYSTEMS = tuple(
    System(
        f"graphsage-{name.lower()}",
        f"GraphSAGE-{name}",
        GraphSage,
        settings={"reddit": {"inductive": True}},
        changed={"aggregator": name.lower()},
    )
    for name in ("GCN", "mean", "LSTM", "pool")
)
