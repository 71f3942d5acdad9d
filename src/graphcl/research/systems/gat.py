r"""Supervised graph attention network (Veličković et al., 2018)."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, elu

from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.adam import Adam
from graphcl.kernels.buffers import borrow
from graphcl.research.systems.fitting import (
    EarlyStopping,
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
class GAT:
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

    hidden: int = 8
    heads: int = 8
    output_heads: int = 1
    dropout: float = 0.6
    learning_rate: float = 0.005
    weight_decay: float = 5e-4
    epochs: int = 2000
    patience: int = 100

    def __post_init__(self) -> None:
        check_fields("gat", **vars(self))

    def fit_predict(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Labels:
        """Returns the classes of all nodes, ``[num_nodes]``."""
        graph = require_one_graph(data, "gat")
        labels = visible_labels(graph, "gat")
        x, adjacency = graph_tensors(graph, device=device, feature_scaling="row")
        whole = dense(x)
        nodes = torch.arange(graph.num_nodes, device=device)
        edge_index = torch.cat([adjacency.edge_index(), nodes.expand(2, -1)], dim=1)
        y, train, val = (borrow(part).to(device) for part in labels[:3])
        with seeded(seed, "gat", device):
            model = _Network(graph.num_features, labels.num_classes, self).to(device)
            optimiser = Adam(
                model.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay
            )
            stopping = EarlyStopping(model, patience=self.patience)
            best_loss, best_accuracy = whole.new_tensor(torch.inf), whole.new_tensor(0.0)
            for epoch in range(1, self.epochs + 1):
                model.train()
                scores = model(feature_dropout(x, self.dropout), edge_index)[train]
                descend(optimiser, cross_entropy(scores, y[train]))
                with torch.no_grad():
                    scores = model.eval()(whole, edge_index)[val]
                    loss = cross_entropy(scores, y[val])
                    accuracy = (scores.argmax(1) == y[val]).float().mean()
                lower, higher = loss <= best_loss, accuracy >= best_accuracy
                stopping.update(keep=lower & higher, improved=lower | higher)
                best_loss = torch.minimum(best_loss, loss)
                best_accuracy = torch.maximum(best_accuracy, accuracy)
                on_epoch(epoch, self.epochs)
                if stopping.stopped(epoch):
                    break
        require_finite(loss, "gat")
        stopping.restore()
        with torch.no_grad():
            scores = model.eval()(whole, edge_index)
        return cast("Labels", scores.argmax(1).cpu().numpy())


class _Network(nn.Module):
    def __init__(self, inputs: int, outputs: int, fields: GAT) -> None:
        from torch_geometric.nn import GATConv

        super().__init__()
        drop, width = fields.dropout, fields.hidden * fields.heads
        # The edges have self-loops. PyG would add them in every step, and wait for the device.
        shared = {"dropout": drop, "add_self_loops": False}
        self.first = GATConv(inputs, fields.hidden, heads=fields.heads, **shared)
        self.second = GATConv(width, outputs, heads=fields.output_heads, concat=False, **shared)
        self.drop = drop

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Returns the classes' scores; the caller has applied dropout to the features `x`."""
        h = elu(self.first(x, edge_index))
        return cast("Tensor", self.second(dropout(h, self.drop, self.training), edge_index))


# The settings are those of the paper's section 3.3.
BASELINE = Baseline(
    "gat",
    "GAT",
    GAT,
    settings={"pubmed": {"output_heads": 8, "learning_rate": 0.01, "weight_decay": 1e-3}},
    paper="Veličković et al., Graph Attention Networks, 2018",
)
