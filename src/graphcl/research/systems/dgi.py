r"""Deep Graph Infomax (Veličković et al., ICLR 2019): on one graph, on unseen ones, on large ones.

The encoder and a discriminator are trained together. The discriminator tells a graph's embeddings
from those of a corrupted graph, given the graph's summary (`Infomax`). The paper has one encoder
and corruption for one graph (section 4.1), others for several graphs and for a large one (4.2).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, softplus

from graphcl.encoders import glorot
from graphcl.errors import require
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.adam import Adam
from graphcl.kernels.adjacency import Adjacency, csr_matmul, mean_pool
from graphcl.kernels.features import linear
from graphcl.kernels.neighbours import sample_levels
from graphcl.research.systems.layers import (
    Convolutions,
    Symmetric,
    dense_csr,
    drop_values,
    mean_with,
)
from graphcl.research.systems.system import (
    Checked,
    Data,
    EarlyStopping,
    OnEpoch,
    Rows,
    System,
    batches,
    graphs_of,
    require_one_graph,
    scaling_for,
    silent,
    train_epochs,
    training_graph,
    with_own_features,
)
from graphcl.seeding import derive, generator


class Infomax(nn.Module):
    r"""The loss of telling real from corrupted nodes (equation 1, with the paper's readout).

    .. math::
        L = -\tfrac{1}{2N} \sum_i \big[\log D(h_i, s) + \log(1 - D(\tilde h_i, s))\big], \quad
        s = \sigma\big(\tfrac1N \sum_i h_i\big), \quad D(h, s) = \sigma(h^\top M s + c).

    M is drawn by Glorot's rule. c, which only the authors' code for one graph has, starts at 0.
    """

    def __init__(self, dim: int, draw: torch.Generator, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, dim))
        self.bias = nn.Parameter(torch.zeros(())) if bias else None
        glorot(self, draw)

    def forward(self, h: Tensor, corrupted: Tensor) -> Tensor:
        """Returns the loss for the embeddings of a graph and of its corruption."""
        summary = self.weight @ h.mean(0).sigmoid()
        real, fake = h @ summary, corrupted @ summary
        if self.bias is not None:
            real, fake = real + self.bias, fake + self.bias
        return (softplus(-real).mean() + softplus(fake).mean()) / 2


@dataclass(frozen=True)
class DGI(Checked):
    r"""One graph convolution, trained by `Infomax`.

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
        beside: the embedding holds own features too; see `with_own_features`.
    """

    owner: ClassVar[str] = "dgi"
    dim: int = 512
    learning_rate: float = 0.001
    epochs: int = 10_000
    patience: int = 20
    beside: bool = False

    def embed(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Rows:
        """Returns the embeddings, ``[num_nodes, dim]``.

        For a collection, it trains on the only training graph and embeds all graphs.
        """
        if isinstance(data, GraphCollection) and len(data.train) == 1:
            graph = data.train[0]
        else:
            graph = require_one_graph(data, "dgi")
        x, adjacency = graph_tensors(graph, device=device, feature_scaling="row")
        pool = Symmetric.normalised(adjacency)
        draw = generator(seed, "dgi", "weights")
        encoder = Convolutions((graph.num_features, self.dim), draw=draw, activation="prelu")
        loss_of = Infomax(self.dim, draw, bias=True)
        model = nn.ModuleList([encoder, loss_of]).to(device)
        stopping = EarlyStopping(model, patience=self.patience)
        shuffles = generator(seed, "dgi", "shuffles", device=device)

        def losses(_: int) -> Iterator[Tensor]:
            order = torch.randperm(graph.num_nodes, generator=shuffles, device=device)
            # Shuffling the rows of XW equals shuffling those of X, so one product serves both.
            product = linear(x, encoder.weights[0])
            corrupted = encoder.propagate(product[order], pool)
            loss = loss_of(encoder.propagate(product, pool), corrupted)
            # The loss belongs to the weights before the step, so keep those.
            stopping.update(keep=loss < stopping.lowest, improved=loss < stopping.lowest)
            stopping.lowest = torch.minimum(stopping.lowest, loss.detach())
            yield loss

        train_epochs(
            Adam(model.parameters(), lr=self.learning_rate),
            losses,
            epochs=self.epochs,
            owner=self.owner,
            on_epoch=on_epoch,
            stopping=stopping,
        )
        with torch.no_grad():
            tables = [
                graph_tensors(one, device=device, feature_scaling="row") for one in graphs_of(data)
            ]
            h = torch.cat([encoder(*one) for one in tables])
            if self.beside:
                h = with_own_features([x for x, _ in tables], h, generator(seed, "dgi", "own"))
        return h.cpu().numpy()


class SkipEncoder(nn.Module):
    r"""The encoder for several graphs: mean pooling with dense skip connections.

    .. math::
        H_1 &= \sigma(\mathrm{MP}_1(X, A)) \\
        H_2 &= \sigma(\mathrm{MP}_2(H_1 + X W_{skip}, A)) \\
        \mathcal{E}(X, A) &= \sigma(\mathrm{MP}_3(H_2 + H_1 + X W_{skip}, A))

    with :math:`\mathrm{MP}(X, A) = \hat D^{-1} \hat A X \Theta` and σ = PReLU.
    """

    def __init__(self, num_features: int, dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(num_features, dim))
        self.second = nn.Parameter(torch.empty(dim, dim))
        self.third = nn.Parameter(torch.empty(dim, dim))
        self.skip = nn.Parameter(torch.empty(num_features, dim))
        self.activations = nn.ModuleList(nn.PReLU() for _ in range(3))
        glorot(self, generator)

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        """Returns the embeddings, ``[num_nodes, dim]``."""
        skipped = x @ self.skip
        h_1 = self.activations[0](mean_pool(x, adjacency) @ self.first)
        h_2 = self.activations[1](mean_pool(h_1 + skipped, adjacency) @ self.second)
        pooled = mean_pool(h_2 + h_1 + skipped, adjacency)
        return self.activations[2](pooled @ self.third)  # type: ignore[no-any-return]


class SampledEncoder(nn.Module):
    r"""The encoder for one large graph: a node's own row and its neighbourhood's, concatenated.

    .. math:: \widetilde{\mathrm{MP}}(X, A) = \sigma(X \Theta' \| \hat D^{-1} \hat A X \Theta)

    There are three such layers, with σ = PReLU. Each half has ``dim / 2`` columns.
    """

    def __init__(
        self, num_features: int, dim: int, layers: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        shapes = [(inputs, dim // 2) for inputs in [num_features] + [dim] * (layers - 1)]
        self.own = nn.ParameterList(torch.empty(shape) for shape in shapes)
        self.pooled = nn.ParameterList(torch.empty(shape) for shape in shapes)
        self.activations = nn.ModuleList(nn.PReLU() for _ in shapes)
        glorot(self, generator)

    def layer(self, number: int, own: Tensor, mean: Tensor) -> Tensor:
        """Returns one layer's output from nodes' own rows and the means over neighbourhoods."""
        halves = [own @ self.own[number], mean @ self.pooled[number]]
        return self.activations[number](torch.cat(halves, dim=1))  # type: ignore[no-any-return]

    def on_patches(self, x: Tensor, levels: list[Tensor]) -> Tensor:
        """Returns the embeddings of the patches' centres, ``[M, dim]``, for the graph's features.

        `levels` are node numbers, ``[M, 1]``, ``[M, f_1]``, ``[M, f_1 f_2]`` and so on.
        """
        # A layer joins each level with the one below it, so one level fewer is left after it.
        rows = []
        for above, below in pairwise(levels):
            # `embedding_bag` averages features as it reads them; those of `below` are not stored.
            group = torch.cat([above.reshape(-1, 1), below.reshape(above.numel(), -1)], dim=1)
            own, mean = x[above.reshape(-1)], embedding_bag(group, x, mode="mean")
            rows.append(self.layer(0, own, mean))
        for number in range(1, len(levels) - 1):
            rows = [
                self.layer(number, own, mean_with(own, around.view(len(own), -1, own.shape[1])))
                for own, around in pairwise(rows)
            ]
        return rows[0]

    def on_graph(self, x: Tensor, indptr: Tensor, indices: Tensor) -> Tensor:
        """Returns the exact embeddings of all nodes, from all their neighbours."""
        inverse_degree = 1 / (indptr.diff() + 1).to(x.dtype)[:, None]
        ones, h = x.new_ones(len(indices)), x
        for number in range(len(self.own)):
            h = self.layer(number, h, (csr_matmul(indptr, indices, ones, h) + h) * inverse_degree)
        return h


# An encoder, its losses in an epoch, and a function that embeds all nodes.
_Started = tuple[nn.Module, Callable[[int], Iterator[Tensor]], Callable[[], Tensor]]


@dataclass(frozen=True)
class DgiInductive(Checked):
    """Deep Graph Infomax where test nodes are not seen in training.

    For a collection, each step uses one whole training graph. Its corruption is another training
    graph, or the same one with shuffled rows if it is the only one, with dropout on the features.
    For one graph, each step uses `batch_nodes` nodes and a sampled patch around each; the
    corruption shuffles the features within every patch. The final embeddings use all neighbours.

    Differs from the paper: the dropout rate is our choice, since the paper states none; on PPI we
    use a tenth of the paper's learning rate, because validation ends lower with the full rate; the
    two products in the large graph's layer have half of the 512 columns each, where the paper does
    not state their widths.

    Attributes:
        dim: width of every layer and of the embedding.
        epochs: passes over the training graphs or nodes. The paper's: 20 on PPI, 150 on Reddit.
        learning_rate: Adam's. The paper's: 1e-3, on Reddit 1e-5.
        feature_drop: dropout rate on the features of the other training graph.
        samples_1: sampled neighbours of a patch's centre.
        samples_2: sampled neighbours of each node one hop away.
        samples_3: sampled neighbours of each node two hops away.
        batch_nodes: patches per step.
        inductive: train only on the training nodes of a graph and the edges among them.
        feature_scaling: see `feature_tensor`.
    """

    owner: ClassVar[str] = "DgiInductive"
    dim: int = 512
    epochs: int = 20
    learning_rate: float = 1e-3
    feature_drop: float = 0.5
    samples_1: int = 10
    samples_2: int = 10
    samples_3: int = 25
    batch_nodes: int = 256
    inductive: bool = False
    feature_scaling: str = "none"

    def __post_init__(self) -> None:
        even = self.dim >= 2 and self.dim % 2 == 0
        require(even, self.owner, "dim", "even and at least 2", self.dim)
        super().__post_init__()

    def embed(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Rows:
        """Returns embeddings, ``[num_nodes, dim]``; for a collection, in the order of `graphs`."""
        loss_of = Infomax(self.dim, generator(seed, "discriminator"))
        start = self._many_graphs if isinstance(data, GraphCollection) else self._large_graph
        encoder, losses, encode = start(data, loss_of, seed, device)
        parameters = nn.ModuleList([encoder, loss_of.to(device)]).parameters()
        train_epochs(
            Adam(parameters, lr=self.learning_rate, fused=device.type == "cuda"),
            losses,
            epochs=self.epochs,
            owner=self.owner,
            on_epoch=on_epoch,
        )
        with torch.no_grad():
            return encode().cpu().numpy()

    def _many_graphs(
        self, data: Any, loss_of: Infomax, seed: int, device: torch.device
    ) -> _Started:
        encoder = SkipEncoder(data.num_features, self.dim, generator(seed, "weights")).to(device)
        scaling = scaling_for(data, self.feature_scaling)
        tables = [graph_tensors(one, device=device, feature_scaling=scaling) for one in data.graphs]
        everything = [(x.to_dense(), adjacency) for x, adjacency in tables]
        graphs = everything[: len(data.train)]
        draws = generator(seed, "dropout", device=device)

        def losses(epoch: int) -> Iterator[Tensor]:
            choice = generator(seed, "graphs", epoch)
            for index in torch.randperm(len(graphs), generator=choice).tolist():
                x, adjacency = graphs[index]
                if len(graphs) > 1:
                    away = 1 + int(torch.randint(len(graphs) - 1, (), generator=choice))
                    other, structure = graphs[(index + away) % len(graphs)]
                else:
                    order = torch.randperm(len(x), generator=draws, device=device)
                    other, structure = x[order], adjacency
                corrupted = encoder(drop_values(other, self.feature_drop, draws), structure)
                yield loss_of(encoder(x, adjacency), corrupted)

        return encoder, losses, lambda: torch.cat([encoder(*graph) for graph in everything])

    def _large_graph(
        self, graph: Any, loss_of: Infomax, seed: int, device: torch.device
    ) -> _Started:
        seen = training_graph(graph, inductive=self.inductive)
        scaling = scaling_for(seen, self.feature_scaling)
        x, indptr, indices = dense_csr(seen, device, scaling)
        fan_outs = (self.samples_1, self.samples_2, self.samples_3)
        draw = generator(seed, "weights")
        encoder = SampledEncoder(x.shape[1], self.dim, len(fan_outs), draw).to(device)
        draws = generator(seed, "shuffle", device=device)

        def losses(epoch: int) -> Iterator[Tensor]:
            parts = batches(len(x), self.batch_nodes, seed=seed, epoch=epoch, device=device)
            for step, nodes in enumerate(parts):
                step_seed = derive(seed, "step", epoch, step)
                drawn = sample_levels(indptr, indices, nodes, fan_outs=fan_outs, seed=step_seed)
                levels = [level.view(len(nodes), -1) for level in drawn]
                corrupted = encoder.on_patches(x, shuffled(levels, draws))
                yield loss_of(encoder.on_patches(x, levels), corrupted)

        return encoder, losses, lambda: encoder.on_graph(*dense_csr(graph, device, scaling))


def shuffled(levels: list[Tensor], draws: torch.Generator) -> list[Tensor]:
    """Returns the patches of `on_patches` with their nodes, and so features, randomly permuted."""
    # Sorting random keys gives every row its own permutation, in one call for all patches.
    patches = torch.cat(levels, dim=1)
    keys = torch.rand(patches.shape, generator=draws, device=patches.device)
    mixed = patches.gather(1, keys.argsort(1))
    return list(torch.split(mixed, [level.shape[1] for level in levels], dim=1))


INDUCTIVE = System(
    "dgi-inductive",
    "DGI",
    DgiInductive,
    {
        "ppi": {"learning_rate": 1e-4},
        "reddit": {"inductive": True, "epochs": 150, "learning_rate": 1e-5},
    },
)
TRANSDUCTIVE = System("dgi", "DGI", DGI, weighted=True)
