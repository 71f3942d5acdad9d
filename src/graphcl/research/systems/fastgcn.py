r"""FastGCN (Chen, Ma and Xiao, ICLR 2018): a GCN whose layers are sampled by importance."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from graphcl.encoders import glorot
from graphcl.evaluation.probe import f1
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import TableScaling
from graphcl.graphs.tensors import feature_tensor
from graphcl.kernels.adam import Adam
from graphcl.kernels.adjacency import Adjacency, Csr
from graphcl.research.systems.layers import Symmetric, drop_values
from graphcl.research.systems.system import (
    Checked,
    Data,
    EarlyStopping,
    Labelled,
    Labels,
    OnEpoch,
    System,
    batches,
    predicted,
    require_finite,
    scaling_for,
    silent,
    supervised_loss,
    targets,
    train_epochs,
    whole_graph,
)
from graphcl.seeding import generator


class SampledLayer(NamedTuple):
    r"""The estimate of :math:`\hat A(\mathrm{rows}, :)\, H` from the rows of H of some nodes.

    Attributes:
        nodes: the sampled nodes, ascending, each once.
        block: ``[rows, nodes]``, the entries of :math:`\hat A` times the weights of the nodes.
    """

    nodes: Tensor
    block: Tensor


class LayerSampler(NamedTuple):
    r"""Draws the nodes from which a layer is computed.

    Attributes:
        matrix: :math:`\hat A = \check D^{-1/2}(A + I)\check D^{-1/2}`.
        importance: :math:`\lVert \hat A(:, u) \rVert^2` of each node u.
    """

    matrix: Symmetric
    importance: Tensor

    @classmethod
    def of(cls, graph: Graph, device: torch.device) -> "LayerSampler":
        """Computes the matrix of a graph; edge weights are ignored."""
        graph.check()
        adjacency = Adjacency.from_csr(graph.indptr, graph.indices, device=device)
        matrix = Symmetric.normalised(adjacency)
        squares = matrix._replace(values=matrix.values.square())
        # The matrix is symmetric: the sum over a column is the sum over a row.
        importance = squares @ matrix.values.new_ones(graph.num_nodes, 1)
        return cls(matrix, importance[:, 0])

    def sample(self, rows: Tensor, count: int, draws: torch.Generator) -> SampledLayer:
        r"""Draws `count` nodes for the sum over the neighbours of `rows`.

        Each draw is node u with probability :math:`q(u) \propto \lVert \hat A(:, u) \rVert^2`, with
        replacement, and has the weight :math:`1 / (t\, q(u))`: the estimate is unbiased. If there
        are no more than `count` neighbours, all of them are taken, once, and the sum is exact.
        """
        entries, row = Csr(self.matrix.indptr, self.matrix.indices).rows(rows)
        assert entries.entries is not None
        near, column = torch.unique(entries.indices, return_inverse=True)
        if count >= len(near):
            nodes = near
            weight = torch.ones_like(self.importance[near])
            place = column
        else:
            q = self.importance[near] / self.importance[near].sum()
            drawn = torch.multinomial(q, count, replacement=True, generator=draws)
            chosen, times = torch.unique(drawn, return_counts=True)
            nodes = near[chosen]
            weight = times / (count * q[chosen])
            place_of = torch.full_like(near, -1)
            place_of[chosen] = torch.arange(len(chosen), device=near.device)
            place = place_of[column]
        sampled = place >= 0
        block = weight.new_zeros(len(rows), len(nodes))
        # A row has an entry for a node at most once: nothing is added up.
        values = self.matrix.values[entries.entries[sampled]]
        block[row[sampled], place[sampled]] = values * weight[place[sampled]]
        return SampledLayer(nodes, block)


class FastGcnModel(nn.Module):
    """Two graph convolutions without biases.

    Args:
        widths: of the input, the hidden layer and the output.
        rate: of the dropout of the input.
        draws: draws the weights.
    """

    def __init__(
        self, widths: tuple[int, int, int], rate: float, *, draws: torch.Generator
    ) -> None:
        super().__init__()
        self.rate = rate
        self.weights = nn.ParameterList(torch.empty(shape) for shape in pairwise(widths))
        glorot(self, draws)

    def exact(self, table: "InputTable") -> Tensor:
        """Returns the logits of all nodes, from all neighbours."""
        first, second = self.weights
        h = table.rows @ first
        if not table.pooled:
            h = table.sampler.matrix @ h
        logits: Tensor = table.sampler.matrix @ (relu(h) @ second)
        return logits

    def sampled(
        self, table: "InputTable", rows: Tensor, count: int, draws: torch.Generator
    ) -> Tensor:
        """Returns an estimate of the logits of `rows`, from `count` nodes in each layer."""
        first, second = self.weights
        upper = table.sampler.sample(rows, count, draws)
        if table.pooled:
            h = drop_values(table.rows[upper.nodes], self.rate, draws) @ first
        else:  # a draw of its own, which does not depend on that of the layer above
            lower = table.sampler.sample(upper.nodes, count, draws)
            x = drop_values(table.rows[lower.nodes], self.rate, draws)
            h = lower.block @ (x @ first)
        logits: Tensor = upper.block @ (relu(h) @ second)
        return logits


class InputTable(NamedTuple):
    r"""What the first layer reads of a graph.

    Attributes:
        sampler: of the graph.
        rows: :math:`\hat A X`, or X itself.
        pooled: whether it is :math:`\hat A X`.
    """

    sampler: LayerSampler
    rows: Tensor
    pooled: bool

    @classmethod
    def of(
        cls, graph: Graph, scaling: TableScaling, device: torch.device, *, pooled: bool
    ) -> "InputTable":
        """Reads a graph."""
        sampler = LayerSampler.of(graph, device)
        x = feature_tensor(graph.x, device=device, feature_scaling=scaling).to_dense()
        return cls(sampler, sampler.matrix @ x if pooled else x, pooled)


class _Stopping(EarlyStopping):
    """Keeps the weights with the best validation score."""

    def __init__(self, model: nn.Module, patience: int) -> None:
        super().__init__(model, patience=patience)
        self._best = -1.0

    def judge(self, score: float) -> None:
        """Records an epoch by its score."""
        better = self._waited.new_tensor(score > self._best, dtype=torch.bool)
        self._best = max(self._best, score)
        self.update(keep=better, improved=better)


@dataclass(frozen=True)
class FastGcn(Checked):
    r"""A two-layer GCN, trained on layers that are sampled by importance.

    A layer's sum over neighbours is estimated from t nodes, which are drawn for each layer by
    itself (algorithm 2 of the paper):

    .. math::
        \sum_u \hat A(v, u)\, h(u) W \approx
            \frac{1}{t} \sum_{j=1}^{t} \frac{\hat A(v, u_j)}{q(u_j)}\, h(u_j) W, \qquad
        u_j \sim q(u) \propto \lVert \hat A(:, u) \rVert^2,

    with :math:`\hat A = \check D^{-1/2}(A + I)\check D^{-1/2}`. Predictions are exact. Training
    stops after `patience` epochs without a better validation score, and the best weights are
    restored. The training graphs of a collection are joined into one.

    Differs from the paper: q is restricted to the neighbours of the nodes of the layer above, and
    normalised there. The estimate stays unbiased, and no draw is wasted on an entry that is zero.
    Where there are at most t neighbours, all are used.

    Attributes:
        hidden: width of the hidden layer.
        samples: t, the nodes that are drawn for a layer.
        precompute: compute :math:`\hat A X`, which has no parameters, once and exactly, as the
            authors do; only the second layer is sampled then.
        batch_nodes: labelled nodes per step.
        epochs: maximum number of epochs.
        patience: stop after this many epochs without a better validation score.
        learning_rate: Adam's.
        weight_decay: Adam's, on the first layer.
        dropout: rate on the rows that the first layer reads.
        inductive: train only on the training nodes of a graph and the edges among them.
        feature_scaling: scaling of the features: ``none``, ``row``, ``unit`` or ``auto``.
    """

    owner: ClassVar[str] = "fastgcn"
    hidden: int = 128
    samples: int = 400
    precompute: bool = True
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
        labelled = Labelled.of(data, inductive=self.inductive, owner=self.owner)
        scaling = scaling_for(labelled.graph, self.feature_scaling)
        seen = InputTable.of(labelled.graph, scaling, device, pooled=self.precompute)
        everything = seen
        if self.inductive or isinstance(data, GraphCollection):
            whole = whole_graph(data)
            everything = InputTable.of(whole, scaling, device, pooled=self.precompute)
        train = torch.tensor(labelled.nodes, device=device)
        val = torch.tensor(labelled.val, device=device)
        y = targets(labelled.y, device)
        several = labelled.y.ndim == 2
        widths = (seen.rows.shape[1], self.hidden, labelled.num_outputs)
        model = FastGcnModel(widths, self.dropout, draws=generator(seed, "weights")).to(device)
        stopping = _Stopping(model, self.patience)
        draws = generator(seed, "samples", device=device)

        def losses(epoch: int) -> Iterator[Tensor]:
            sizes: dict[str, Any] = {"seed": seed, "epoch": epoch, "device": device}
            for part in batches(len(train), self.batch_nodes, **sizes):
                logits = model.sampled(seen, train[part], self.samples, draws)
                yield supervised_loss(logits, y[part])
            with torch.no_grad():  # with the weights that the last step has made
                logits = model.exact(everything)[val]
            require_finite(logits, self.owner, f"a prediction is not finite in epoch {epoch + 1}")
            stopping.judge(f1(labelled.val_y, predicted(logits, several=several), "micro"))

        first, second = model.weights
        groups: list[dict[str, Any]] = [
            {"params": [first], "weight_decay": self.weight_decay},
            {"params": [second]},
        ]
        train_epochs(
            Adam(groups, lr=self.learning_rate),
            losses,
            epochs=self.epochs,
            owner=self.owner,
            on_epoch=on_epoch,
            stopping=stopping,
        )
        with torch.no_grad():
            return predicted(model.exact(everything), several=several)


# An epoch of a citation graph is one step: after 30 without a better score, 2 of 60 trainings had
# hardly begun, as their validation scores showed.
_CITATION_GRAPHS = {"hidden": 16, "dropout": 0.5, "patience": 100, "feature_scaling": "row"}
SYSTEM = System(
    "fastgcn",
    "FastGCN",
    FastGcn,
    settings={
        "cora": _CITATION_GRAPHS,
        "citeseer": _CITATION_GRAPHS,
        "pubmed": _CITATION_GRAPHS,
        "reddit": {"inductive": True, "learning_rate": 1e-3},
    },
)
