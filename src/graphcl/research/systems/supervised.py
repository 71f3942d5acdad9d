r"""Supervised systems: GCN (Kipf and Welling, 2017), GAT (Veličković et al., 2018), boosted trees.

The layers of GCN and GAT are PyTorch Geometric's; both take one graph, whole, and scale each row of
features to sum to 1. Trees are what one would do without embeddings, with the neighbours' columns
beside.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, elu, relu

from graphcl.answers.evidence import neighbour_means
from graphcl.answers.rivals import ask_model, boosted_trees, fit_model, side_by_side
from graphcl.arrays import Array, Integers
from graphcl.evaluation.splits import ACCURACY, Answers, Learner, Split, measure, metric_of
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.adam import Adam
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.buffers import borrow
from graphcl.research.systems.layers import dense, feature_dropout
from graphcl.research.systems.system import (
    Data,
    Labelled,
    Labels,
    OnEpoch,
    System,
    require_one_graph,
    silent,
)
from graphcl.research.systems.training import (
    Checked,
    EarlyStopping,
    seeded,
    targets,
    train_epochs,
)


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
        edges, whole = self.edges(adjacency), dense(x)
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


_GCN = System(
    "gcn",
    "GCN",
    GCN,
    paper="Kipf and Welling, Semi-Supervised Classification with GCNs, 2017",
    weighted=True,
)
# The settings are those of the paper's section 3.3.
_GAT = System(
    "gat",
    "GAT",
    GAT,
    settings={"pubmed": {"output_heads": 8, "learning_rate": 0.01, "weight_decay": 1e-3}},
    paper="Veličković et al., Graph Attention Networks, 2018",
)

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


_TREES = System("trees", "Boosted trees", Trees, deterministic=True)
SYSTEMS = (_GCN, _GAT, _TREES)
