r"""Supervised networks on one graph: GCN (Kipf and Welling, 2017), GAT (Veličković et al., 2018).

Their layers are PyTorch Geometric's. Each row of features is scaled to sum to 1.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, elu, relu

from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.adam import Adam
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.buffers import borrow
from graphcl.research.systems.layers import dense, feature_dropout
from graphcl.research.systems.system import (
    Data,
    Labels,
    OnEpoch,
    System,
    require_one_graph,
    silent,
    visible_labels,
)
from graphcl.research.systems.training import (
    Checked,
    EarlyStopping,
    descend,
    require_finite,
    seeded,
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
        graph = require_one_graph(data, self.owner)
        labels = visible_labels(graph, self.owner)
        x, adjacency = graph_tensors(graph, device=device, feature_scaling="row")
        edges, whole = self.edges(adjacency), dense(x)
        y, train, val = (borrow(part).to(device) for part in labels[:3])
        with seeded(seed, self.owner, device):
            model = self.network(graph.num_features, labels.num_classes).to(device)
            stopping = _Stopping(model, self.patience) if self.patience else None
            optimiser = Adam(self.groups(model), lr=self.learning_rate)
            for epoch in range(1, self.epochs + 1):
                scores = model.train()(feature_dropout(x, self.dropout), *edges)
                descend(optimiser, cross_entropy(scores[train], y[train]))
                if stopping is not None:
                    with torch.no_grad():
                        stopping.judge(model.eval()(whole, *edges)[val], y[val])
                on_epoch(epoch, self.epochs)
                if stopping is not None and stopping.stopped(epoch):
                    break
        if stopping is not None:
            require_finite(stopping.loss, self.owner)
            stopping.restore()
        with torch.no_grad():
            scores = model.eval()(whole, *edges)
        require_finite(scores, self.owner)
        return cast("Labels", scores.argmax(1).cpu().numpy())


class _Stopping(EarlyStopping):
    """Stops when neither validation loss nor accuracy improves; keeps weights where both do."""

    def __init__(self, model: nn.Module, patience: int) -> None:
        super().__init__(model, patience=patience)
        self.loss = self._lowest = self._waited.new_tensor(torch.inf)
        self._highest = self._waited.new_tensor(0.0)

    def judge(self, scores: Tensor, y: Tensor) -> None:
        """Records an epoch by its scores of the validation nodes."""
        self.loss, accuracy = cross_entropy(scores, y), (scores.argmax(1) == y).float().mean()
        lower, higher = self.loss <= self._lowest, accuracy >= self._highest
        self.update(keep=lower & higher, improved=lower | higher)
        self._lowest = torch.minimum(self._lowest, self.loss)
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
SYSTEMS = (_GCN, _GAT)
