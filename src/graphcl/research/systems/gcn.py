r"""Supervised graph convolutional network (Kipf and Welling, 2017)."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.adam import Adam
from graphcl.kernels.buffers import borrow
from graphcl.research.systems.fitting import (
    check_fields,
    dense,
    descend,
    feature_dropout,
    require_finite,
    seeded,
)
from graphcl.research.systems.inputs import require_one_graph, visible_labels
from graphcl.research.systems.protocol import Baseline, Data, Labels, OnEpoch, silent


@dataclass(frozen=True)
class GCN:
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

    hidden: int = 16
    dropout: float = 0.5
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    epochs: int = 200

    def __post_init__(self) -> None:
        check_fields("gcn", **vars(self))

    def fit_predict(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Labels:
        """Returns the classes of all nodes, ``[num_nodes]``."""
        graph = require_one_graph(data, "gcn")
        labels = visible_labels(graph, "gcn")
        x, adjacency = graph_tensors(graph, device=device, feature_scaling="row")
        edges = adjacency.weighted_edge_index()
        train = borrow(labels.train).to(device)
        y = borrow(labels.y).to(device)[train]
        with seeded(seed, "gcn", device):
            shape = (graph.num_features, self.hidden, labels.num_classes)
            model = _Network(*shape, drop=self.dropout).to(device)
            decayed = {"params": model.first.parameters(), "weight_decay": self.weight_decay}
            optimiser = Adam(
                [decayed, {"params": model.second.parameters()}], lr=self.learning_rate
            )
            for epoch in range(1, self.epochs + 1):
                scores = model(feature_dropout(x, self.dropout), *edges)
                descend(optimiser, cross_entropy(scores[train], y))
                on_epoch(epoch, self.epochs)
        with torch.no_grad():
            scores = model.eval()(dense(x), *edges)
        require_finite(scores, "gcn")
        return cast("Labels", scores.argmax(1).cpu().numpy())


class _Network(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int, *, drop: float) -> None:
        from torch_geometric.nn import GCNConv

        super().__init__()
        self.first = GCNConv(inputs, hidden, cached=True)
        self.second = GCNConv(hidden, outputs, cached=True)
        self.drop = drop

    def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
        """Returns the classes' scores; the caller has applied dropout to the features `x`."""
        h = self.first(x, edge_index, weight).relu()
        h = dropout(h, self.drop, self.training)
        return cast("Tensor", self.second(h, edge_index, weight))


BASELINE = Baseline(
    "gcn",
    "GCN",
    GCN,
    paper="Kipf and Welling, Semi-Supervised Classification with GCNs, 2017",
    weighted=True,
)
