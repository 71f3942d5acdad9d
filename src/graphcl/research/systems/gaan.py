r"""GaAN, supervised: gated attention (Zhang, Shi, Xie, Ma, King & Yeung, UAI 2018).

A layer attends to the neighbours with K heads. Each node weights its heads by gates, which are
computed from its own row and from the maximum and the mean over its neighbours:

.. math::
    y_i &= \mathrm{FC}_o\Big(x_i \oplus \big\|_{k=1}^{K} g_i^{(k)} \sum_j w_{ij}^{(k)}
           \mathrm{FC}^h_{v,k}(x_j)\Big) \\
    w_{ij}^{(k)} &= \mathrm{softmax}_j
           \langle \mathrm{FC}_{q,k}(x_i), \mathrm{FC}_{a,k}(x_j) \rangle \\
    g_i &= \sigma\Big(\mathrm{FC}_g\big(x_i \oplus \max_j \mathrm{FC}_m(x_j) \oplus
           \mathrm{mean}_j\, x_j\big)\Big), \qquad \mathrm{FC}^h = \mathrm{LeakyReLU}_{0.1}.
"""

from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from graphcl.arrays import Integers
from graphcl.encoders import glorot
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.graphs.validation import is_labelled
from graphcl.kernels.adam import Adam
from graphcl.kernels.adjacency import Adjacency, mean_pool
from graphcl.kernels.recording import CudaGraphStep
from graphcl.research.systems.layers import dense, dot_attention, drop_values, neighbour_max
from graphcl.research.systems.system import Data, Labelled, Labels, OnEpoch, System, silent
from graphcl.research.systems.training import (
    Checked,
    cosine_decay,
    descend,
    labelled_score,
    predicted,
    require_finite,
    supervised_loss,
    targets,
)
from graphcl.seeding import derive, generator

SLOPE = 0.1  # negative slope of LeakyReLU


class GatedAttention(nn.Module):
    """One layer: the three equations above, where each node is among its own neighbours.

    `method` has the number of heads and their widths.
    """

    def __init__(self, method: "Gaan", inputs: int, outputs: int) -> None:
        super().__init__()
        self._heads = heads = method.heads
        keys, values = heads * method.key_dim, heads * method.value_dim
        self._widths = [keys, keys, values, method.max_dim]
        self.project = nn.Linear(inputs, sum(self._widths))  # FC_q, FC_a, FC_v and FC_m in one
        self.gate = nn.Linear(2 * inputs + method.max_dim, heads)
        self.output = nn.Linear(inputs + values, outputs)

    def forward(self, h: Tensor, adjacency: Adjacency) -> Tensor:
        """Returns ``[num_nodes, outputs]``, before the activation."""
        q, k, v, m = self.project(h).split(self._widths, dim=1)
        q, k, v = (part.reshape(len(h), self._heads, -1) for part in (q, k, leaky_relu(v, SLOPE)))
        around = dot_attention(q, k, v, adjacency)
        context = torch.cat([h, neighbour_max(m, adjacency), mean_pool(h, adjacency)], dim=1)
        gates = torch.sigmoid(self.gate(context))
        gated = (gates[:, :, None] * around).flatten(1)
        return self.output(torch.cat([h, gated], dim=1))  # type: ignore[no-any-return]


class GaanModel(nn.Module):
    """A linear layer on the features, layers of gated attention, and a linear output layer."""

    def __init__(
        self, method: "Gaan", num_features: int, num_outputs: int, *, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.dropout = method.dropout
        with torch.random.fork_rng(devices=[]):  # PyTorch's own draws are replaced by `glorot`
            self.embed = nn.Linear(num_features, method.embed_dim)
            self.layers = nn.ModuleList(
                GatedAttention(method, method.dim if layer else method.embed_dim, method.dim)
                for layer in range(method.layers)
            )
            self.answer = nn.Linear(method.dim, num_outputs)
        glorot(self, generator)

    def forward(self, part: "Part", draws: torch.Generator | None = None) -> Tensor:
        """Returns the logits of every node; with dropout if `draws` is given."""
        h = leaky_relu(self.embed(part.x), SLOPE)
        for layer in self.layers:
            if draws is not None:
                h = drop_values(h, self.dropout, draws)
            h = leaky_relu(layer(h, part.adjacency), SLOPE)
        return self.answer(h)  # type: ignore[no-any-return]


class Part(NamedTuple):
    """A graph on the training device, and the nodes whose labels may be used."""

    x: Tensor
    adjacency: Adjacency
    nodes: Tensor
    y: Tensor

    @classmethod
    def of(cls, graph: Graph, device: torch.device) -> "Part":
        """Returns a graph without labels that may be used."""
        x, adjacency = graph_tensors(graph, device=device)
        empty = torch.empty(0, dtype=torch.int64, device=device)
        return cls(dense(x), adjacency, empty, empty)

    def labelled(self, y: Integers | None, nodes: Integers | None = None) -> "Part":
        """Returns the graph with the labels `y` of `nodes`; None means all labelled nodes."""
        assert y is not None  # checked by `Labelled`
        if nodes is None:
            nodes = np.flatnonzero(is_labelled(y))
            y = y[nodes]
        device = self.x.device
        return self._replace(nodes=torch.tensor(nodes, device=device), y=targets(y, device))


@dataclass(frozen=True)
class Gaan(Checked):
    """Gated attention networks, trained on whole graphs.

    Each step uses one training graph. The weights with the best validation score are kept.

    Differs from the paper: a step uses all nodes of a graph and all their neighbours, while the
    authors use 512 nodes; three layers of width 512 instead of two of 128; no dropout, since PPI's
    validation graphs score better without; the learning rate follows a cosine instead of halving on
    each plateau, so that a run's length is known; a node is its own neighbour, so that every node
    has at least one. Memory grows with the number of edges: a graph of Reddit's size does not fit.

    Attributes:
        layers: number of gated attention layers.
        dim: width of their outputs.
        embed_dim: width of the features' first embedding.
        heads: K.
        key_dim: d_a, width of a head's queries and keys.
        value_dim: d_v, width of a head's values.
        max_dim: d_m, width of the rows that the maximum is taken over.
        dropout: of each layer's input.
        learning_rate: Adam's at the start.
        epochs: passes over the training graphs.
        validate_every: epochs between two validations.
        inductive: train only on the training nodes of a graph and the edges among them.
    """

    owner: ClassVar[str] = "Gaan"
    layers: int = 3
    dim: int = 512
    embed_dim: int = 64
    heads: int = 8
    key_dim: int = 24
    value_dim: int = 32
    max_dim: int = 64
    dropout: float = 0.0
    learning_rate: float = 2e-3
    epochs: int = 150
    validate_every: int = 5
    inductive: bool = False

    def fit_predict(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Labels:
        """Returns classes ``[num_nodes]``; with several labels per node ``[num_nodes, labels]``."""
        labelled = Labelled.of(data, inductive=self.inductive, owner="Gaan")
        train, val, everything = self._parts(data, labelled, device)
        model = GaanModel(
            self, data.num_features, labelled.num_outputs, generator=generator(seed, "weights")
        ).to(device)
        rate = torch.tensor(self.learning_rate, device=device)  # each replay reads its new value
        on_gpu, draws = device.type == "cuda", torch.Generator(device)
        adam = Adam(model.parameters(), lr=rate, fused=True, capturable=on_gpu)

        def step(part: Part) -> Tensor:
            logits = model(part, draws).index_select(0, part.nodes)
            return descend(adam, supervised_loss(logits, part.y))

        # For a graph of PPI, a GPU runs the few hundred kernels of a step faster than it launches
        # them: each graph's step is recorded once and replayed.
        recording = closing(CudaGraphStep(step, draws)) if on_gpu else nullcontext()
        best: dict[str, Tensor] = {}
        best_score = -1.0
        with recording as recorded:
            for epoch in range(self.epochs):
                choice = generator(seed, "graphs", epoch)
                order = torch.randperm(len(train), generator=choice).tolist()
                for place, index in enumerate(order):
                    done = (epoch + place / len(train)) / self.epochs
                    rate.fill_(self.learning_rate * cosine_decay(done))
                    draws.manual_seed(derive(seed, "dropout", epoch, place))
                    recorded(train[index], index) if recorded else step(train[index])
                if (epoch + 1) % self.validate_every == 0 or epoch + 1 == self.epochs:
                    reached = _validate(model, val, epoch)
                    if reached > best_score:
                        best_score = reached
                        best = {name: value.clone() for name, value in model.state_dict().items()}
                on_epoch(epoch + 1, self.epochs)
        model.load_state_dict(best)
        with torch.no_grad():
            logits = torch.cat([model(part) for part in everything])
        return predicted(logits, several=labelled.y.ndim == 2)

    def _parts(
        self, data: Data, labelled: Labelled, device: torch.device
    ) -> tuple[list[Part], list[Part], list[Part]]:
        """Returns the graphs to train on, those to validate on, and those to predict."""
        if isinstance(data, GraphCollection):
            everything = [Part.of(graph, device) for graph in data.graphs]
            known = [
                part.labelled(graph.y) for part, graph in zip(everything, data.graphs, strict=True)
            ]
            first, last = len(data.train), len(data.train) + len(data.val)
            train, val = known[:first], known[first:last]
            return [part for part in train if len(part.y)], val, everything
        whole = Part.of(data, device)
        part = Part.of(labelled.graph, device) if self.inductive else whole
        return (
            [part.labelled(labelled.y, labelled.nodes)],
            [whole.labelled(labelled.val_y, labelled.val)],
            [whole],
        )


@torch.no_grad()
def _validate(model: GaanModel, parts: list[Part], epoch: int) -> float:
    """Returns the score on the labelled nodes of `parts`; unlike a step, it waits for the GPU."""
    logits = torch.cat([model(part).index_select(0, part.nodes) for part in parts])
    require_finite(logits, "Gaan", f"a prediction is not finite after epoch {epoch + 1}")
    return labelled_score(logits, torch.cat([part.y for part in parts]))


SYSTEM = System(
    "gaan",
    "GaAN",
    Gaan,
    paper="Zhang et al., GaAN: Gated Attention Networks for Learning on Large and Spatiotemporal "
    "Graphs, UAI 2018",
)
