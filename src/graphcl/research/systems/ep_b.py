r"""EP-B: Embedding Propagation, bag of labels (García-Durán and Niepert, 2017)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.adam import Adam
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.features import Features, linear
from graphcl.research.systems.fitting import Symmetric, check_fields, descend, require_finite
from graphcl.research.systems.inputs import require_one_graph
from graphcl.research.systems.protocol import Baseline, Data, OnEpoch, Rows, silent
from graphcl.seeding import generator


@dataclass(frozen=True)
class EPB:
    r"""Learns an embedding per label so that the neighbours' labels predict a node's own labels.

    A node has labels of two types *i*: its words (non-zero features) and its identity. For each
    type, the embedding is the mean over the node's labels, and the reconstruction is the mean over
    the labels of all its neighbours, where a label counts as often as it occurs:

    .. math:: h_i(v) = \operatorname{mean}_{l \in l_i(v)} e_l , \qquad
        \tilde h_i(v) = \operatorname{mean}_{u \in N(v),\, l \in l_i(u)} e_l .

    Each type is trained by a margin ranking loss with the Euclidean distance *d* against uniformly
    drawn nodes *u*:

    .. math:: L_i = \sum_v \big[\gamma + d(\tilde h_i(v), h_i(v)) - d(\tilde h_i(v), h_i(u))\big]_+

    A node's embedding is the concatenation of its :math:`h_i(v)`. If it has no label of a type,
    :math:`\tilde h_i(v)` is used instead. Real features (Pubmed's TF-IDF) weight the means.

    Differs from the paper: a step covers all nodes, each with a newly drawn *u*, at a higher
    learning rate, instead of many small batches; this keeps a GPU busy. Margin and learning rate
    have the best mean validation accuracy: on Cora and Citeseer among a few values, on Pubmed in a
    grid (`python -m benchmarks.search_baselines ep-b`).

    Attributes:
        dim: width of the embedding of each type; the result is twice as wide.
        margin: γ.
        learning_rate: Adam's, falling linearly to 0.
        epochs: steps, each over all nodes.
    """

    dim: int = 128
    margin: float = 5.0
    learning_rate: float = 0.05
    epochs: int = 500

    def __post_init__(self) -> None:
        check_fields("ep-b", **vars(self))

    def embed(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Rows:
        """Returns the embeddings, ``[num_nodes, 2 · dim]``: words, then identity."""
        graph = require_one_graph(data, "ep-b")
        x, adjacency = graph_tensors(graph, device=device)
        draw = generator(seed, "ep-b", "weights")
        words = _LabelType(x, graph.num_features, self.dim, adjacency=adjacency, draw=draw)
        identity = _LabelType(None, graph.num_nodes, self.dim, adjacency=adjacency, draw=draw)
        types = nn.ModuleList([words, identity]).to(device)
        optimiser = Adam(types.parameters(), lr=self.learning_rate)
        others = generator(seed, "ep-b", "others", device=device)
        for epoch in range(1, self.epochs + 1):
            optimiser.param_groups[0]["lr"] = self.learning_rate * (1 - (epoch - 1) / self.epochs)
            size = (graph.num_nodes,)
            u = torch.randint(graph.num_nodes, size, generator=others, device=device)
            descend(optimiser, words.loss(u, self.margin) + identity.loss(u, self.margin))
            on_epoch(epoch, self.epochs)
        with torch.no_grad():
            z = torch.cat([words.representation(), identity.representation()], dim=1)
        require_finite(z, "ep-b")
        return z.cpu().numpy()


class _LabelType(nn.Module):
    """The embeddings of one type of labels.

    `counts` is the weight of each label at each node, ``[num_nodes, num_labels]``; None if the only
    label of node v is v.
    """

    def __init__(
        self,
        counts: Features | None,
        num_labels: int,
        dim: int,
        *,
        adjacency: Adjacency,
        draw: torch.Generator,
    ) -> None:
        super().__init__()
        table = torch.empty(num_labels, dim).uniform_(-0.5, 0.5, generator=draw)
        self.table = nn.Parameter(table)
        self._counts, self._around = counts, Symmetric.plain(adjacency)
        mass = adjacency.weight.new_ones(adjacency.num_nodes, 1)
        if counts is not None:
            mass = linear(_absolute(counts), adjacency.weight.new_ones(num_labels, 1))
        mass_around = self._around @ mass
        self._has_labels, self._has_around = mass > 0, mass_around > 0
        self._mass, self._mass_around = mass.clamp(min=1e-12), mass_around.clamp(min=1e-12)
        # A node enters the loss only if both its h and its h̃ exist.
        self._ranked = (self._has_labels & self._has_around)[:, 0].float()

    def embeddings(self) -> tuple[Tensor, Tensor]:
        """Returns h and h̃, each ``[num_nodes, dim]``."""
        total = self.table if self._counts is None else linear(self._counts, self.table)
        return total / self._mass, (self._around @ total) / self._mass_around

    def loss(self, u: Tensor, margin: float) -> Tensor:
        """Returns the ranking loss against the nodes `u`, averaged over nodes."""
        h, rebuilt = self.embeddings()
        excess = margin + _distance(rebuilt, h) - _distance(rebuilt, h[u])
        ranked = self._ranked * self._ranked[u]
        return (relu(excess) * ranked).sum() / ranked.sum().clamp(min=1)

    def representation(self) -> Tensor:
        """Returns h, and h̃ for nodes that have no label of this type."""
        h, rebuilt = self.embeddings()
        return torch.where(self._has_labels, h, rebuilt)


def _distance(a: Tensor, b: Tensor) -> Tensor:
    return ((a - b).square().sum(1) + 1e-12).sqrt()  # keeps the gradient at 0 finite


def _absolute(counts: Features) -> Features:
    return counts.abs() if isinstance(counts, Tensor) else counts.with_values(counts.values.abs())


BASELINE = Baseline(
    "ep-b",
    "EP-B",
    EPB,
    paper="García-Durán and Niepert, Learning Graph Representations with Embedding Propagation, "
    "2017",
    weighted=True,
)
