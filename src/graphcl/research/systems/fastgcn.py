r"""FastGCN, supervised: layers sampled by importance (Chen, Ma & Xiao, ICLR 2018).

The sum over nodes in the second layer of a GCN is estimated from t of them (algorithm 2):

.. math::
    \mathrm{logits}(v) \approx \frac{1}{t} \sum_{j=1}^{t}
        \frac{\hat A(v, u_j)}{q(u_j)}\, \mathrm{ReLU}\big((\hat A X)(u_j) W_0\big) W_1, \qquad
    u_j \sim q(u) \propto \|\hat A(:, u)\|^2,

with :math:`\hat A = \check D^{-1/2}(A + I)\check D^{-1/2}`. :math:`\hat A X` has no parameters and
is computed once, as in the paper.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from graphcl.encoders import glorot
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import Scaling
from graphcl.graphs.tensors import feature_tensor
from graphcl.kernels.adam import Adam
from graphcl.kernels.adjacency import Adjacency
from graphcl.research.systems.layers import Symmetric, dense, drop_values
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
    batches,
    descend,
    labelled_score,
    predicted,
    require_finite,
    supervised_loss,
    targets,
)
from graphcl.seeding import generator


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

    def __matmul__(self, h: Tensor) -> Tensor:
        """Returns Â h."""
        return self.matrix @ h

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
        near = (self @ in_rows)[:, 0] > 0
        q = torch.where(near, self.importance, 0)
        q = q / q.sum()
        nodes = torch.multinomial(q, count, replacement=True, generator=draws)
        return nodes, 1 / (count * q[nodes])


class _Weights(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(inputs, hidden))
        self.second = nn.Parameter(torch.empty(hidden, outputs))
        glorot(self, generator)

    def forward(self, pooled: Tensor) -> Tensor:
        """Returns ReLU(ÂX W₀) W₁ for rows of ÂX; the caller multiplies it by Â."""
        return relu(pooled @ self.first) @ self.second


@dataclass(frozen=True)
class FastGcn(Checked):
    """A two-layer GCN, trained on minibatches with a sampled layer; predictions are exact.

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
        graph, pooled = _tensors(labelled.graph, scaling, device)
        whole, all_pooled = _tensors(whole_graph(data), scaling, device)
        train, val = (torch.tensor(n, device=device) for n in (labelled.nodes, labelled.val))
        y, val_y = targets(labelled.y, device), targets(labelled.val_y, device)
        weights = _Weights(
            pooled.shape[1], self.hidden, labelled.num_outputs, generator(seed, "weights")
        ).to(device)
        groups: list[dict[str, Any]] = [
            {"params": [weights.first], "weight_decay": self.weight_decay},
            {"params": [weights.second]},
        ]
        adam = Adam(groups, lr=self.learning_rate, fused=device.type == "cuda")
        draws = generator(seed, "samples", device=device)
        best, best_score, best_epoch = torch.empty(0), -1.0, 0
        for epoch in range(self.epochs):
            size = self.batch_nodes
            for part in batches(len(train), size, seed=seed, epoch=epoch, device=device):
                rows = train[part]
                nodes, weight = graph.sample(rows, self.samples, draws)
                h = weights(drop_values(pooled[nodes], self.dropout, draws))
                logits = (graph.entries(rows, nodes) * weight) @ h
                descend(adam, supervised_loss(logits, y[part]))
            with torch.no_grad():
                logits = whole @ weights(all_pooled)
            problem = f"a prediction is not finite after epoch {epoch + 1}"
            require_finite(logits, "FastGcn", problem)
            reached = labelled_score(logits[val], val_y)
            if reached > best_score:
                best, best_score, best_epoch = logits, reached, epoch
            on_epoch(epoch + 1, self.epochs)
            if epoch - best_epoch >= self.patience:
                break
        return predicted(best, several=y.ndim == 2)


def _tensors(
    graph: Graph, scaling: Scaling, device: torch.device
) -> tuple[NormalisedAdjacency, Tensor]:
    """Returns Â and ÂX."""
    pool = NormalisedAdjacency.of(graph, device)
    x = feature_tensor(graph, device=device, feature_scaling=scaling)
    return pool, pool @ dense(x)


_CITATIONS = {"hidden": 16, "dropout": 0.5, "feature_scaling": "row"}

SYSTEM = System(
    "fastgcn",
    "FastGCN",
    FastGcn,
    {
        "cora": _CITATIONS,
        "citeseer": _CITATIONS,
        "pubmed": _CITATIONS,
        "reddit": {"inductive": True, "learning_rate": 1e-3},
    },
    "Chen, Ma & Xiao, FastGCN: Fast Learning with Graph Convolutional Networks via Importance "
    "Sampling, ICLR 2018",
)
