r"""Supervised systems: GCN (Kipf and Welling, 2017), GAT (Veličković et al., 2018), trees, GaAN.

The layers of GCN and GAT are PyTorch Geometric's; both take one graph, whole, and scale each row of
features to sum to 1. Trees are what one would do without embeddings, with the neighbours' columns
beside. GaAN (Zhang, Shi, Xie, Ma, King & Yeung, UAI 2018) trains on several graphs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, elu, leaky_relu, relu

from graphcl.answers.evidence import neighbour_means
from graphcl.answers.rivals import ask_model, boosted_trees, fit_model, side_by_side
from graphcl.arrays import Array, Integers
from graphcl.encoders import glorot
from graphcl.evaluation.probe import f1
from graphcl.evaluation.splits import ACCURACY, Answers, Learner, Split, measure, metric_of
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.graphs.validation import is_labelled
from graphcl.kernels.adam import Adam
from graphcl.kernels.adjacency import Adjacency, mean_pool
from graphcl.kernels.buffers import borrow
from graphcl.kernels.recording import CudaGraphStep
from graphcl.research.systems.layers import (
    dot_attention,
    drop_values,
    feature_dropout,
    neighbour_max,
)
from graphcl.research.systems.system import (
    Checked,
    Data,
    EarlyStopping,
    Labelled,
    Labels,
    OnEpoch,
    System,
    cosine_decay,
    descend,
    predicted,
    require_finite,
    require_one_graph,
    seeded,
    silent,
    supervised_loss,
    targets,
    train_epochs,
)
from graphcl.seeding import derive, generator

SLOPE = 0.1  # negative slope of GaAN's LeakyReLU


class _Network(nn.Module):
    """Two layers of PyTorch Geometric, dropout between them."""

    def __init__(
        self, first: nn.Module, second: nn.Module, activation: Callable[..., Tensor], drop: float
    ) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.activation, self.drop = activation, drop

    def forward(self, x: Tensor, *edges: Tensor) -> Tensor:
        """Returns the classes' scores; the caller has applied dropout to the features `x`."""
        h = dropout(self.activation(self.first(x, *edges)), self.drop, self.training)
        return cast("Tensor", self.second(h, *edges))


class _OnOneGraph(Checked, ABC):
    """A network that is trained on the training labels of one graph, all nodes in every step.

    If it has a `patience`, it stops as in the GAT authors' code.
    """

    dropout: float
    learning_rate: float
    weight_decay: float
    epochs: int
    patience: int | None = None

    @abstractmethod
    def network(self, inputs: int, outputs: int) -> _Network:
        """Returns the network with new weights."""

    @abstractmethod
    def edges(self, adjacency: Adjacency) -> tuple[Tensor, ...]:
        """Returns what the layers take besides features."""

    def groups(self, model: _Network) -> list[dict[str, Any]]:
        """Returns Adam's groups of weights: all have the L2 penalty."""
        return [{"params": model.parameters(), "weight_decay": self.weight_decay}]

    def fit_predict(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Labels:
        """Returns the classes of all nodes, ``[num_nodes]``."""
        labels = Labelled.one_class(data, self.owner, validates=self.patience is not None)
        x, adjacency = graph_tensors(labels.graph, device=device, feature_scaling="row")
        edges, whole = self.edges(adjacency), x.to_dense()
        train, val = (borrow(nodes).to(device) for nodes in (labels.nodes, labels.val))
        y, val_y = targets(labels.y, device), targets(labels.val_y, device)
        with seeded(seed, self.owner, device):
            model = self.network(labels.graph.num_features, labels.num_outputs).to(device)
            stopping = _Stopping(model, self.patience) if self.patience else None

            def losses(_: int) -> Iterator[Tensor]:
                scores = model.train()(feature_dropout(x, self.dropout), *edges)
                yield cross_entropy(scores[train], y)
                if stopping is not None:  # with the weights that the step has made
                    with torch.no_grad():
                        stopping.judge(model.eval()(whole, *edges)[val], val_y)

            train_epochs(
                Adam(self.groups(model), lr=self.learning_rate),
                losses,
                epochs=self.epochs,
                owner=self.owner,
                on_epoch=on_epoch,
                stopping=stopping,
            )
        with torch.no_grad():
            return cast("Labels", model.eval()(whole, *edges).argmax(1).cpu().numpy())


class _Stopping(EarlyStopping):
    """Stops when neither validation loss nor accuracy improves; keeps weights where both do."""

    def __init__(self, model: nn.Module, patience: int) -> None:
        super().__init__(model, patience=patience)
        self._highest = self._waited.new_tensor(0.0)

    def judge(self, scores: Tensor, y: Tensor) -> None:
        """Records an epoch by its scores of the validation nodes."""
        loss, accuracy = cross_entropy(scores, y), (scores.argmax(1) == y).float().mean()
        lower, higher = loss <= self.lowest, accuracy >= self._highest
        self.update(keep=lower & higher, improved=lower | higher)
        self.lowest = torch.minimum(self.lowest, loss)
        self._highest = torch.maximum(self._highest, accuracy)


@dataclass(frozen=True)
class GCN(_OnOneGraph):
    r"""Two graph convolutions, trained on the training labels.

    .. math:: Z = \mathrm{softmax}(\tilde A\, \mathrm{ReLU}(\tilde A X W^{(0)})\, W^{(1)}), \qquad
        \tilde A = \check D^{-1/2} (A + I) \check D^{-1/2}

    The layers are PyTorch Geometric's. Each row of features is scaled to sum to 1.

    Differs from the paper: both layers have a bias, as PyTorch Geometric's do; the equation has
    none. The penalty is Adam's weight decay, :math:`\lambda/2\, \lVert W \rVert^2`, and includes
    the bias of the first layer. There is no early stopping on validation loss (window 10), which
    rarely triggers within 200 epochs. So validation labels are not read, and the last epoch's
    weights are used.

    Attributes:
        hidden: width of the hidden layer.
        dropout: rate on the inputs of both layers.
        learning_rate: Adam's.
        weight_decay: the L2 penalty on the first layer.
        epochs: steps, each over all training nodes.
    """

    owner: ClassVar[str] = "gcn"
    hidden: int = 16
    dropout: float = 0.5
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    epochs: int = 200

    def network(self, inputs: int, outputs: int) -> _Network:
        """Returns two graph convolutions."""
        from torch_geometric.nn import GCNConv

        first = GCNConv(inputs, self.hidden, cached=True)
        second = GCNConv(self.hidden, outputs, cached=True)
        return _Network(first, second, relu, self.dropout)

    def edges(self, adjacency: Adjacency) -> tuple[Tensor, ...]:
        """Returns the edges and their weights."""
        return adjacency.weighted_edge_index()

    def groups(self, model: _Network) -> list[dict[str, Any]]:
        """Returns Adam's groups of weights: the first layer alone has the L2 penalty."""
        decayed = {"params": model.first.parameters(), "weight_decay": self.weight_decay}
        return [decayed, {"params": model.second.parameters()}]


@dataclass(frozen=True)
class GAT(_OnOneGraph):
    r"""Two attention layers, trained on the training labels.

    A head computes :math:`h'_u = \sum_{v \in N(u) \cup u} \alpha_{uv} W h_v` with
    :math:`\alpha_{uv} = \mathrm{softmax}_v(\mathrm{LeakyReLU}(a^\top [W h_u \| W h_v]))`. The heads
    of the first layer are concatenated and followed by ELU; those of the second are averaged. The
    layers are PyTorch Geometric's. Each row of features is scaled to sum to 1. Edge weights are
    ignored.

    As in the authors' code, training stops when neither validation loss nor validation accuracy has
    improved for `patience` epochs. The weights of the last epoch in which both were at least as
    good as in every earlier epoch are restored.

    Attributes:
        hidden: width of a head of the first layer.
        heads: heads of the first layer.
        output_heads: heads of the second layer.
        dropout: rate on the inputs of both layers and on the attention coefficients.
        learning_rate: Adam's.
        weight_decay: the L2 penalty on all weights.
        epochs: maximum number of steps.
        patience: stop after this many epochs without improvement.
    """

    owner: ClassVar[str] = "gat"
    hidden: int = 8
    heads: int = 8
    output_heads: int = 1
    dropout: float = 0.6
    learning_rate: float = 0.005
    weight_decay: float = 5e-4
    epochs: int = 2000
    patience: int = 100

    def network(self, inputs: int, outputs: int) -> _Network:
        """Returns two attention layers."""
        from torch_geometric.nn import GATConv

        width = self.hidden * self.heads
        # The edges have self-loops. PyG would add them in every step, and wait for the device.
        shared = {"dropout": self.dropout, "add_self_loops": False}
        first = GATConv(inputs, self.hidden, heads=self.heads, **shared)
        second = GATConv(width, outputs, heads=self.output_heads, concat=False, **shared)
        return _Network(first, second, elu, self.dropout)

    def edges(self, adjacency: Adjacency) -> tuple[Tensor, ...]:
        """Returns the edges, with self-loops."""
        nodes = torch.arange(adjacency.num_nodes, device=adjacency.weight.device)
        return (torch.cat([adjacency.edge_index(), nodes.expand(2, -1)], dim=1),)


_GROWN: dict[str, tuple[bool, dict[str, Any]]] = {
    "own columns": (False, {}),
    "with neighbours": (True, {}),
    "with neighbours, small steps": (True, {"learning_rate": 0.05}),
}


@dataclass(frozen=True)
class Trees(Checked):
    """Boosted trees on a node's own columns and the means over its neighbours, near and far.

    The model is that of the plain rivals of `graphcl.predict`: it sees the columns that differ most
    between the classes of the train nodes, which bounds its time. Validation nodes choose whether
    it sees the neighbours' columns too, and whether its steps are small. Edge weights are ignored.

    Attributes:
        hops: how far the farthest neighbours are.
    """

    owner: ClassVar[str] = "trees"
    hops: int = 2

    def fit_predict(
        self,
        data: Data,
        *,
        seed: int,
        device: torch.device,  # noqa: ARG002 (trees are grown on the CPU)
        on_epoch: OnEpoch = silent,
    ) -> Labels:
        """Returns classes ``[num_nodes]``; with several labels per node ``[num_nodes, labels]``."""
        graph = require_one_graph(data, self.owner)
        known = Labelled.of(graph, inductive=False, owner=self.owner)
        several, everyone = known.y.ndim == 2, np.arange(graph.num_nodes)
        y, val_y = (
            one if several else np.eye(known.num_outputs, dtype=np.int64)[one]
            for one in (known.y, known.val_y)
        )
        parts, exclusive = [(known.nodes, known.val, everyone)], not several
        (answer,) = self.learner(known.graph, seed=seed)(parts, [y], exclusive)
        metric = ACCURACY if exclusive else metric_of(val_y)
        best = int(np.argmax([measure(one, val_y, metric)[0] for one in answer.val]))
        scores = answer.test(best)
        on_epoch(1, 1)
        return scores.argmax(axis=1) if exclusive else (scores > 0).astype(np.int64)

    def learner(self, graph: Graph, *, seed: int) -> Learner:
        """Returns what grows trees on the train nodes of each split."""
        means = neighbour_means(graph)
        tables = [graph.x]
        for _ in range(0 if means is None else self.hops):
            tables.append(means @ tables[-1])
        seen = {False: graph.x, True: reduce(side_by_side, tables)}

        def learn(
            parts: Sequence[Split], targets: Sequence[Integers], exclusive: bool
        ) -> Iterator[Answers]:
            for (train, val, test), given in zip(parts, targets, strict=True):
                y = given.argmax(axis=1) if exclusive else given
                ask: list[Callable[[Array], Array]] = []
                for neighbours, settings in _GROWN.values():
                    x, make = seen[neighbours], partial(boosted_trees, **settings)
                    model = fit_model(make, x[train], y, seed)
                    ask.append(partial(_scores, model, x, given.shape[1], exclusive))

                def on_test(
                    place: int, ask: list[Callable[[Array], Array]] = ask, test: Array = test
                ) -> Array:
                    return ask[place](test)

                yield Answers(tuple(_GROWN), np.stack([one(val) for one in ask]), on_test)

        return learn


def _scores(model: Any, x: Any, outputs: int, exclusive: bool, nodes: Array) -> Array:
    """Returns scores of nodes, above 0 where a label has more than half the probability."""
    return ask_model(model, x[nodes], (outputs,)) - (0.0 if exclusive else 0.5)


class GatedAttention(nn.Module):
    r"""One layer of GaAN, in which each node is among its own neighbours.

    It attends to the neighbours with K heads. Each node weights its heads by gates, which are
    computed from its own row and from the maximum and the mean over its neighbours:

    .. math::
        y_i &= \mathrm{FC}_o\Big(x_i \oplus \big\|_{k=1}^{K} g_i^{(k)} \sum_j w_{ij}^{(k)}
               \mathrm{FC}^h_{v,k}(x_j)\Big) \\
        w_{ij}^{(k)} &= \mathrm{softmax}_j
               \langle \mathrm{FC}_{q,k}(x_i), \mathrm{FC}_{a,k}(x_j) \rangle \\
        g_i &= \sigma\Big(\mathrm{FC}_g\big(x_i \oplus \max_j \mathrm{FC}_m(x_j) \oplus
               \mathrm{mean}_j\, x_j\big)\Big), \qquad \mathrm{FC}^h = \mathrm{LeakyReLU}_{0.1}.

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
        return cls(x.to_dense(), adjacency, empty, empty)

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
    y = torch.cat([part.y for part in parts]).cpu().numpy()
    return f1(y, predicted(logits, several=y.ndim == 2), "micro")


SYSTEMS = (
    System("gcn", "GCN", GCN, weighted=True),
    # The settings are those of the paper's section 3.3.
    System(
        "gat",
        "GAT",
        GAT,
        settings={"pubmed": {"output_heads": 8, "learning_rate": 0.01, "weight_decay": 1e-3}},
    ),
    System("gaan", "GaAN", Gaan),
    System("trees", "Boosted trees", Trees, deterministic=True),
)
