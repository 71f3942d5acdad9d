"""Deep Graph Infomax (Veličković et al., 2019), transductive."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, prelu

from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.adam import Adam
from graphcl.kernels.features import Features, linear
from graphcl.research.systems.fitting import (
    EarlyStopping,
    Symmetric,
    check_fields,
    descend,
    require_finite,
)
from graphcl.research.systems.inputs import graphs_of, only_training_graph
from graphcl.research.systems.protocol import Baseline, Data, OnEpoch, Rows, silent
from graphcl.seeding import generator


class Discriminator(nn.Module):
    r"""Scores pairs of a node and a summary: :math:`h^\top M s + c`, before the sigmoid.

    M is drawn by Glorot's rule.
    """

    def __init__(self, dim: int, *, draw: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(dim, dim), generator=draw))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, h: Tensor, summary: Tensor) -> Tensor:
        """Returns one score per row of `h`."""
        return h @ (self.weight @ summary) + self.bias


def infomax_loss(discriminator: Discriminator, h: Tensor, corrupted: Tensor) -> Tensor:
    r"""Returns the binary cross-entropy of classifying real against corrupted nodes.

    .. math:: s = \sigma\Big(\frac1N \sum_u h_u\Big), \qquad
        L = -\frac{1}{2N} \sum_u \log D(h_u, s) + \log(1 - D(\tilde h_u, s))

    D is the discriminator; `h` and `corrupted` are the embeddings of the graph and of the corrupted
    graph, ``[N, dim]`` each.
    """
    summary = h.mean(0).sigmoid()
    scores = torch.cat([discriminator(h, summary), discriminator(corrupted, summary)])
    truth = torch.cat([scores.new_ones(len(h)), scores.new_zeros(len(corrupted))])
    return binary_cross_entropy_with_logits(scores, truth)


@dataclass(frozen=True)
class DGI:
    r"""One graph convolution, trained by `infomax_loss`.

    .. math:: H = \mathrm{PReLU}(\tilde A X W + b), \qquad
        \tilde A = \check D^{-1/2} (A + I) \check D^{-1/2}

    The corruption shuffles the rows of X, with a new permutation in each epoch. Each row of
    features is scaled to sum to 1. Training stops when the loss has not fallen for `patience`
    epochs; the weights with the lowest loss are restored.

    Differs from the paper: the width is 512 on Pubmed too, where the authors' memory allowed 256.

    Attributes:
        dim: width of the embedding.
        learning_rate: Adam's.
        epochs: maximum number of steps.
        patience: stop after this many epochs without a lower loss.
    """

    dim: int = 512
    learning_rate: float = 0.001
    epochs: int = 10_000
    patience: int = 20

    def __post_init__(self) -> None:
        check_fields("dgi", **vars(self))

    def embed(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Rows:
        """Returns the embeddings, ``[num_nodes, dim]``.

        For a collection, it trains on the only training graph and embeds all graphs.
        """
        graph = only_training_graph(data, "dgi")
        x, pool = _tensors(graph, device)
        draw = generator(seed, "dgi", "weights")
        encoder = _Encoder(graph.num_features, self.dim, draw=draw)
        discriminator = Discriminator(self.dim, draw=draw)
        model = nn.ModuleDict({"encoder": encoder, "discriminator": discriminator}).to(device)
        optimiser = Adam(model.parameters(), lr=self.learning_rate)
        stopping = EarlyStopping(model, patience=self.patience)
        shuffles = generator(seed, "dgi", "shuffles", device=device)
        lowest = torch.tensor(torch.inf, device=device)
        for epoch in range(1, self.epochs + 1):
            order = torch.randperm(graph.num_nodes, generator=shuffles, device=device)
            loss = infomax_loss(discriminator, *encoder.both(x, pool, order))
            # The loss belongs to the weights before the step, so keep those.
            stopping.update(keep=loss < lowest, improved=loss < lowest)
            lowest = torch.minimum(lowest, loss.detach())
            descend(optimiser, loss)
            on_epoch(epoch, self.epochs)
            if stopping.stopped(epoch):
                break
        require_finite(loss, "dgi")
        stopping.restore()
        with torch.no_grad():
            h = torch.cat([encoder(*_tensors(one, device)) for one in graphs_of(data)])
        return h.cpu().numpy()


def _tensors(graph: Graph, device: torch.device) -> tuple[Features, Symmetric]:
    x, adjacency = graph_tensors(graph, device=device, feature_scaling="row")
    return x, Symmetric.normalised(adjacency)


class _Encoder(nn.Module):
    def __init__(self, inputs: int, dim: int, *, draw: torch.Generator) -> None:
        super().__init__()
        weight = nn.init.xavier_uniform_(torch.empty(inputs, dim), generator=draw)
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(torch.zeros(dim))
        self.slope = nn.Parameter(torch.tensor([0.25]))

    def forward(self, x: Features, pool: Symmetric) -> Tensor:
        return prelu(pool @ linear(x, self.weight) + self.bias, self.slope)

    def both(self, x: Features, pool: Symmetric, order: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the embeddings of the graph and of its corruption, which shuffles the features.

        Shuffling the rows of XW equals shuffling the rows of X, so one product with W serves both.
        """
        product = linear(x, self.weight)
        return (
            prelu(pool @ product + self.bias, self.slope),
            prelu(pool @ product[order] + self.bias, self.slope),
        )


BASELINE = Baseline(
    "dgi", "DGI", DGI, paper="Veličković et al., Deep Graph Infomax, 2019", weighted=True
)
