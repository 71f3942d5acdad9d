r"""Supervised networks: GCN (Kipf and Welling, 2017), GAT (Veličković et al., 2018), FastGCN.

The layers of GCN and GAT are PyTorch Geometric's; both take one graph, whole, and scale each row of
features to sum to 1.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, elu, relu

from graphcl.encoders import glorot
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import TableScaling
from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.adam import Adam
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.buffers import borrow
from graphcl.research.systems.layers import (
    Symmetric,
    dense,
    dense_csr,
    drop_values,
    feature_dropout,
)
from graphcl.research.systems.system import (
    Data,
    Labelled,
    Labels,
    OnEpoch,
    System,
    scaling_for,
    silent,
    whole_graph,
)
from graphcl.research.systems.training import (
    Checked,
    EarlyStopping,
    batches,
    descend,
    labelled_score,
    predicted,
    require_finite,
    seeded,
    supervised_loss,
    targets,
)
from graphcl.seeding import generator


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
            optimiser = Adam(self.groups(model), lr=self.learning_rate)
            for epoch in range(1, self.epochs + 1):
                scores = model.train()(feature_dropout(x, self.dropout), *edges)
                descend(optimiser, cross_entropy(scores[train], y))
                if stopping is not None:
                    with torch.no_grad():
                        stopping.judge(model.eval()(whole, *edges)[val], val_y)
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


class NormalisedAdjacency(NamedTuple):
    """The matrix Â of a graph on one device, for products and for the lookup of single entries.

    Attributes:
        matrix: Â, its columns sorted in each row.
        keys: ``row · num_nodes + column`` of each entry, ascending.
        importance: ‖Â(:, u)‖² of each node.
    """

    matrix: Symmetric
    keys: Tensor
    importance: Tensor

    @classmethod
    def of(cls, graph: Graph, device: torch.device) -> "NormalisedAdjacency":
        """Computes Â; edge weights are ignored."""
        adjacency = Adjacency.from_csr(graph.indptr, graph.indices, device=device)
        matrix, looped = Symmetric.normalised(adjacency), adjacency.looped
        squares = matrix._replace(values=matrix.values.square())
        importance = squares @ matrix.values.new_ones(graph.num_nodes, 1)
        keys = looped.rows * graph.num_nodes + looped.indices
        return cls(matrix, keys, importance[:, 0])

    def entries(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Returns the dense block Â(rows, columns), without waiting for a GPU."""
        # A binary search in the sorted keys; an entry that is not found is 0.
        wanted = rows[:, None] * len(self.importance) + columns
        place = torch.searchsorted(self.keys, wanted).clamp_(max=len(self.keys) - 1)
        return torch.where(self.keys[place] == wanted, self.matrix.values[place], 0)

    def sample(self, rows: Tensor, count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draws nodes by importance among the neighbours of `rows` (a node is its own neighbour).

        Returns:
            The nodes, ``[count]``, drawn with replacement, and ``1 / (count · q)`` of each.
        """
        in_rows = torch.zeros_like(self.importance)[:, None].index_fill_(0, rows, 1)
        near = (self.matrix @ in_rows)[:, 0] > 0
        q = torch.where(near, self.importance, 0)
        q = q / q.sum()
        nodes = torch.multinomial(q, count, replacement=True, generator=draws)
        return nodes, 1 / (count * q[nodes])


@dataclass(frozen=True)
class FastGcn(Checked):
    r"""FastGCN (Chen, Ma & Xiao, ICLR 2018): a two-layer GCN with layers sampled by importance.

    The sum over nodes in the second layer of a GCN is estimated from t of them (algorithm 2):

    .. math::
        \mathrm{logits}(v) \approx \frac{1}{t} \sum_{j=1}^{t}
            \frac{\hat A(v, u_j)}{q(u_j)}\, \mathrm{ReLU}\big((\hat A X)(u_j) W_0\big) W_1, \qquad
        u_j \sim q(u) \propto \|\hat A(:, u)\|^2,

    with :math:`\hat A = \check D^{-1/2}(A + I)\check D^{-1/2}`. :math:`\hat A X` has no parameters
    and is computed once, as in the paper.

    It is trained on minibatches; predictions are exact.

    Training stops after `patience` epochs without a better validation score, and the predictions
    of the best epoch are returned. The training graphs of a collection are joined into one.

    Differs from the paper: q is restricted to the neighbours of the minibatch and normalised
    there. The estimate stays unbiased, and no draw is wasted on a zero entry.

    Attributes:
        hidden: width of the hidden layer.
        samples: t, nodes per minibatch in the sampled layer.
        batch_nodes: labelled nodes per step.
        epochs: maximum number of epochs.
        patience: stop after this many epochs without a better validation score.
        learning_rate: Adam's.
        weight_decay: Adam's, on the first layer.
        dropout: rate on the rows of ÂX.
        inductive: train only on the training nodes of a graph and the edges among them.
        feature_scaling: see `feature_tensor`.
    """

    owner: ClassVar[str] = "FastGcn"
    hidden: int = 128
    samples: int = 400
    batch_nodes: int = 256
    epochs: int = 200
    patience: int = 30
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    dropout: float = 0.0
    inductive: bool = False
    feature_scaling: str = "none"

    def fit_predict(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Labels:
        """Returns classes ``[num_nodes]``; with several labels per node ``[num_nodes, labels]``."""
        labelled = Labelled.of(data, inductive=self.inductive, owner="FastGcn")
        scaling = scaling_for(labelled.graph, self.feature_scaling)
        graph, pooled = _pooled(labelled.graph, scaling, device)
        whole, all_pooled = _pooled(whole_graph(data), scaling, device)
        train, val = (torch.tensor(n, device=device) for n in (labelled.nodes, labelled.val))
        y, val_y = targets(labelled.y, device), targets(labelled.val_y, device)
        shapes = pairwise([pooled.shape[1], self.hidden, labelled.num_outputs])
        weights = nn.ParameterList(torch.empty(shape) for shape in shapes)
        glorot(weights, generator(seed, "weights"))
        first, second = weights.to(device)
        groups: list[dict[str, Any]] = [
            {"params": [first], "weight_decay": self.weight_decay},
            {"params": [second]},
        ]
        adam = Adam(groups, lr=self.learning_rate, fused=device.type == "cuda")
        draws = generator(seed, "samples", device=device)
        best, best_score, best_epoch = torch.empty(0), -1.0, 0
        for epoch in range(self.epochs):
            size = self.batch_nodes
            for part in batches(len(train), size, seed=seed, epoch=epoch, device=device):
                rows = train[part]
                nodes, weight = graph.sample(rows, self.samples, draws)
                h = relu(drop_values(pooled[nodes], self.dropout, draws) @ first) @ second
                logits = (graph.entries(rows, nodes) * weight) @ h
                descend(adam, supervised_loss(logits, y[part]))
            with torch.no_grad():
                logits = whole.matrix @ (relu(all_pooled @ first) @ second)
            problem = f"a prediction is not finite after epoch {epoch + 1}"
            require_finite(logits, "FastGcn", problem)
            reached = labelled_score(logits[val], val_y)
            if reached > best_score:
                best, best_score, best_epoch = logits, reached, epoch
            on_epoch(epoch + 1, self.epochs)
            if epoch - best_epoch >= self.patience:
                break
        return predicted(best, several=y.ndim == 2)


def _pooled(
    graph: Graph, scaling: TableScaling, device: torch.device
) -> tuple[NormalisedAdjacency, Tensor]:
    """Returns Â and ÂX."""
    pool = NormalisedAdjacency.of(graph, device)
    return pool, pool.matrix @ dense_csr(graph, device, scaling)[0]


_CITATION_GRAPHS = {"hidden": 16, "dropout": 0.5, "feature_scaling": "row"}

FASTGCN = System(
    "fastgcn",
    "FastGCN",
    FastGcn,
    {
        "cora": _CITATION_GRAPHS,
        "citeseer": _CITATION_GRAPHS,
        "pubmed": _CITATION_GRAPHS,
        "reddit": {"inductive": True, "learning_rate": 1e-3},
    },
    "Chen, Ma & Xiao, FastGCN: Fast Learning with Graph Convolutional Networks via Importance "
    "Sampling, ICLR 2018",
)
