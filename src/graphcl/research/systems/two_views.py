"""Systems that compare two random views of a graph: GRACE, BGRL and CCA-SSG.

They are those of Zhu et al., Deep Graph Contrastive Representation Learning, 2020; Thakoor et al.,
Large-Scale Representation Learning on Graphs via Bootstrapping, 2022; and Zhang et al., From CCA to
Self-supervised Graph Neural Networks, 2021.

A view drops edges and masks whole columns of features. All three encode views by graph
convolutions, in which edge weights are used as in a GCN. To tell a method from what it trains, each
can train our residual encoder instead.

Differs from the authors' code: both directions of an edge are dropped together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from graphcl.encoders.paper import ResidualEncoder
from graphcl.kernels.adam import Adam
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.features import Features
from graphcl.losses import nt_xent
from graphcl.research.systems.layers import Convolutions, dense_layer, draw_view
from graphcl.research.systems.system import (
    CONVOLUTIONS,
    SelfSupervised,
    System,
    Training,
    cosine_decay,
    descend,
)

Views = list[tuple[Features, Adjacency]]
SMALLEST = 1e-12  # a column of equal values becomes zeros


@dataclass(frozen=True)
class Convolved(SelfSupervised):
    """A system that encodes views by graph convolutions.

    Attributes:
        encoder: ``convolutions``; or ``residual``, our encoder as in the recipe `default`, with
            hidden layers normalised, whose layers are all as wide as the embedding.
    """

    encoder: str = field(default=CONVOLUTIONS, kw_only=True)

    def build(self, widths: Sequence[int], draw: torch.Generator, **convolutions: Any) -> nn.Module:
        """Returns an encoder of these widths, of the input and then of each layer."""
        if self.encoder == CONVOLUTIONS:
            return Convolutions(widths, draw=draw, **convolutions)
        return ResidualEncoder(
            widths[0],
            dim=widths[-1],
            layers=len(widths) - 1,
            normalisation="layer",
            generator=draw,
        )


@dataclass(frozen=True)
class TwoViews(Convolved):
    """A system with a rate of dropped edges and one of masked columns for each of two views.

    Attributes:
        edge_drop_1: rate at which the first view loses edges.
        edge_drop_2: the second view's.
        feature_drop_1: rate at which columns are masked in the first view.
        feature_drop_2: the second view's.
    """

    edge_drop_1: float = 0.2
    edge_drop_2: float = 0.4
    feature_drop_1: float = 0.3
    feature_drop_2: float = 0.4

    def views(self, x: Features, adjacency: Adjacency, draws: torch.Generator) -> Views:
        """Draws the two views."""
        rates = (
            (self.edge_drop_1, self.feature_drop_1),
            (self.edge_drop_2, self.feature_drop_2),
        )
        return [
            draw_view(x, adjacency, edge_drop=edges, feature_drop=features, generator=draws)
            for edges, features in rates
        ]


def grace_loss(projected_1: Tensor, projected_2: Tensor, temperature: float) -> Tensor:
    r"""Returns the loss between the projections u and v of two views, ``[N, dim]`` each.

    .. math::
        \ell(u_i, v_i) &= -\log \frac{e^{\theta(u_i, v_i)/\tau}}{e^{\theta(u_i, v_i)/\tau}
            + \sum_{k \ne i} e^{\theta(u_i, v_k)/\tau}
            + \sum_{k \ne i} e^{\theta(u_i, u_k)/\tau}} \\
        J &= \frac{1}{2N} \sum_i \ell(u_i, v_i) + \ell(v_i, u_i)

    :math:`\theta` is the cosine. This is half of NT-Xent, whose memory is O(N·d).
    """
    return nt_xent(projected_1, projected_2, temperature) / 2


@dataclass(frozen=True)
class GRACE(TwoViews):
    r"""Two graph convolutions and a projection, trained by `grace_loss` between two random views.

    The projection :math:`g(h) = W_2\, \mathrm{ELU}(W_1 h + b_1) + b_2` is used by the loss alone.
    The first layer is twice as wide as the second.

    Differs from the authors' code: PReLU has a slope in each layer, where theirs share one.

    Attributes:
        dim: width of the embedding and of the projection.
        activation: ``relu`` or ``prelu``, after each convolution.
        temperature: τ.
        learning_rate: Adam's.
        weight_decay: Adam's, an L2 penalty.
        epochs: steps, each over all nodes.
    """

    owner: ClassVar[str] = "grace"
    dim: int = 128
    activation: str = "relu"
    temperature: float = 0.4
    learning_rate: float = 5e-4
    weight_decay: float = 1e-5
    epochs: int = 200

    def start(self, x: Features, adjacency: Adjacency, draw: torch.Generator) -> Training:
        """Sets up a training; embeddings are taken before the projection."""
        device = adjacency.weight.device
        widths = (x.shape[1], 2 * self.dim, self.dim)
        encoder = self.build(widths, draw, activation=self.activation)
        first, second = (dense_layer(self.dim, self.dim, draw=draw) for _ in range(2))
        project = nn.Sequential(first, nn.ELU(), second)
        optimiser = Adam(
            nn.ModuleList([encoder, project]).to(device).parameters(),
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
            fused=True,
            capturable=device.type == "cuda",
        )

        def step(draws: torch.Generator) -> Tensor:
            u, v = (project(encoder(*view)) for view in self.views(x, adjacency, draws))
            return descend(optimiser, grace_loss(u, v, self.temperature))

        return Training(step, lambda: encoder(x, adjacency))


def bootstrap_loss(
    predicted_1: Tensor, predicted_2: Tensor, target_1: Tensor, target_2: Tensor
) -> Tensor:
    r"""Returns the loss of predicting the target's view from the other view, ``[N, dim]`` each.

    .. math:: L = 2 - \frac1N \sum_i \cos(p_{1,i},\, h_{2,i}) - \frac1N \sum_i
        \cos(p_{2,i},\, h_{1,i})

    No gradient flows into the targets h.
    """
    forth = cosine_similarity(predicted_1, target_2.detach()).mean()
    back = cosine_similarity(predicted_2, target_1.detach()).mean()
    return 2 - forth - back


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, rate: Tensor) -> None:
    r"""Moves the target's weights φ towards the online ones θ, with the rate 1 − τ.

    .. math:: \phi \gets \tau \phi + (1 - \tau)\, \theta
    """
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.lerp_(fast, rate)


def learning_rate_at(step: int, steps: int, warm_up: int) -> float:
    """Returns the factor of the learning rate: a linear rise, then a cosine down to 0."""
    if step < warm_up:
        return step / warm_up
    return cosine_decay((step - warm_up) / (steps - warm_up))


def follow_rate_at(step: int, steps: int, momentum: float) -> float:
    r"""Returns :math:`1 - \tau`; τ rises from `momentum` to 1 along a cosine."""
    return (1 - momentum) * cosine_decay(step / steps)


@dataclass(frozen=True)
class BGRL(TwoViews):
    r"""Two graph convolutions that predict what a slower copy of themselves makes of another view.

    Each convolution is followed by batch normalisation and PReLU. The predictor
    :math:`p(h) = W_2\, \mathrm{PReLU}(W_1 h + b_1) + b_2` is used by the loss alone. The target
    network starts from weights of its own and follows the online one (`follow`). AdamW's learning
    rate rises for `warm_up` of the steps and then falls along a cosine.

    Attributes:
        hidden: width of the first layer.
        dim: width of the embedding.
        predictor: width of the predictor's hidden layer.
        momentum: τ at the start.
        warm_up: part of the steps in which the learning rate rises.
        learning_rate: AdamW's, at its highest.
        weight_decay: AdamW's.
        epochs: steps, each over all nodes.
    """

    owner: ClassVar[str] = "bgrl"
    hidden: int = 512
    dim: int = 256
    predictor: int = 512
    edge_drop_1: float = 0.2
    edge_drop_2: float = 0.3
    feature_drop_1: float = 0.2
    feature_drop_2: float = 0.1
    momentum: float = 0.99
    warm_up: float = 0.1
    learning_rate: float = 5e-4
    weight_decay: float = 1e-5
    epochs: int = 10_000

    def start(self, x: Features, adjacency: Adjacency, draw: torch.Generator) -> Training:
        """Sets up a training; embeddings are the online network's."""
        device = adjacency.weight.device
        widths = (x.shape[1], self.hidden, self.dim)
        online, target = (
            self.build(widths, draw, activation="prelu", normalise=True).to(device)
            for _ in range(2)
        )
        predictor = nn.Sequential(
            dense_layer(self.dim, self.predictor, draw=draw),
            nn.PReLU(),
            dense_layer(self.predictor, self.dim, draw=draw),
        ).to(device)
        # Tensors on the device: a recorded step reads what is in them when it is replayed.
        rate, towards = (torch.zeros((), device=device) for _ in range(2))
        optimiser = torch.optim.AdamW(
            [*online.parameters(), *predictor.parameters()],
            lr=rate,
            weight_decay=self.weight_decay,
            fused=True,
            capturable=device.type == "cuda",
        )

        def schedule(epoch: int) -> None:
            warm = int(self.warm_up * self.epochs)
            rate.fill_(self.learning_rate * learning_rate_at(epoch, self.epochs, warm))
            towards.fill_(follow_rate_at(epoch, self.epochs, self.momentum))

        def step(draws: torch.Generator) -> Tensor:
            views = self.views(x, adjacency, draws)
            predicted_1, predicted_2 = (predictor(online(*view)) for view in views)
            with torch.no_grad():
                target_1, target_2 = (target(*view) for view in views)
            loss = bootstrap_loss(predicted_1, predicted_2, target_1, target_2)
            value = descend(optimiser, loss)
            follow(target, online, towards)
            return value

        return Training(step, lambda: online.eval()(x, adjacency), before=schedule)


def standardise(h: Tensor) -> Tensor:
    """Returns the columns of `h` with mean 0 and deviation 1 (n − 1), as in the authors' code."""
    return (h - h.mean(0)) / h.std(0).clamp(min=SMALLEST)


def cca_loss(z_1: Tensor, z_2: Tensor, decorrelation: float) -> Tensor:
    r"""Returns the loss between two standardised views, ``[N, dim]`` each.

    .. math:: L = -\frac1N \operatorname{tr}(Z_1^\top Z_2) + \lambda \sum_{i=1}^{2}
        \Big\lVert \frac1N Z_i^\top Z_i - I \Big\rVert_F^2

    The first term pulls the two views of a node together, the second removes the correlation
    between columns. The paper scales Z by :math:`1/\sqrt N`, and has :math:`\lVert Z_1 -
    Z_2\rVert_F^2`, twice the first term plus a constant.
    """
    same = torch.eye(z_1.shape[1], dtype=z_1.dtype, device=z_1.device)
    apart = sum((z.T @ z / len(z) - same).square().sum() for z in (z_1, z_2))
    return -(z_1 * z_2).sum() / len(z_1) + decorrelation * apart


@dataclass(frozen=True)
class CCASSG(Convolved):
    r"""Graph convolutions, trained by `cca_loss` between two views from the same distribution.

    ReLU stands between layers and not after the last. There is neither a projection nor a negative.

    Attributes:
        dim: width of every layer and of the embedding.
        layers: number of convolutions.
        edge_drop: rate at which a view loses edges.
        feature_drop: rate at which a view's columns are masked.
        decorrelation: λ.
        learning_rate: Adam's.
        epochs: steps, each over all nodes.
    """

    owner: ClassVar[str] = "cca-ssg"
    dim: int = 512
    layers: int = 2
    edge_drop: float = 0.2
    feature_drop: float = 0.2
    decorrelation: float = 1e-3
    learning_rate: float = 1e-3
    epochs: int = 100
    feature_scaling: str = "none"

    def start(self, x: Features, adjacency: Adjacency, draw: torch.Generator) -> Training:
        """Sets up a training; embeddings are taken before they are standardised."""
        device = adjacency.weight.device
        widths = (x.shape[1], *[self.dim] * self.layers)
        encoder = self.build(widths, draw, last=False).to(device)
        optimiser = Adam(
            encoder.parameters(),
            lr=self.learning_rate,
            fused=True,
            capturable=device.type == "cuda",
        )
        rates = {"edge_drop": self.edge_drop, "feature_drop": self.feature_drop}

        def step(draws: torch.Generator) -> Tensor:
            views = [draw_view(x, adjacency, **rates, generator=draws) for _ in range(2)]
            z_1, z_2 = (standardise(encoder(*view)) for view in views)
            return descend(optimiser, cca_loss(z_1, z_2, self.decorrelation))

        return Training(step, lambda: encoder(x, adjacency))


# The authors publish no settings for citation graphs. The defaults are theirs for WikiCS, a graph
# of linked texts. Those of the citation graphs are chosen by validation accuracy among 36 widths,
# lengths, learning rates and drop rates; after 10,000 steps Cora scores seven points less.
_CITATIONS = {
    "hidden": 1024,
    "dim": 512,
    "edge_drop_1": 0.5,
    "edge_drop_2": 0.4,
    "feature_drop_1": 0.5,
    "feature_drop_2": 0.4,
    "epochs": 300,
}
SYSTEMS = (
    # The defaults, and what is Pubmed's, are the authors' (`config.yaml`: Cora, Pubmed). Their
    # settings for Cora and Citeseer are for random splits with more labels. On the public split
    # validation accuracy prefers others, chosen among 48 widths, lengths, learning rates and drop
    # rates.
    System(
        "grace",
        "GRACE",
        GRACE,
        settings={
            "cora": {"dim": 256, "learning_rate": 1e-3, "epochs": 400},
            "citeseer": {
                "dim": 512,
                "activation": "prelu",
                "edge_drop_1": 0.3,
                "edge_drop_2": 0.3,
                "feature_drop_1": 0.4,
                "feature_drop_2": 0.4,
                "temperature": 0.9,
                "epochs": 100,
            },
            "pubmed": {
                "dim": 256,
                "edge_drop_1": 0.4,
                "edge_drop_2": 0.1,
                "feature_drop_1": 0.0,
                "feature_drop_2": 0.2,
                "temperature": 0.7,
                "learning_rate": 1e-3,
                "epochs": 1500,
            },
        },
        weighted=True,
    ),
    System(
        "bgrl",
        "BGRL",
        BGRL,
        settings={
            "cora": _CITATIONS,
            "citeseer": _CITATIONS | {"learning_rate": 1e-4},
            "pubmed": _CITATIONS,
        },
        weighted=True,
    ),
    # The settings are those of the authors' commands; DGL, which they read these graphs with,
    # scales rows. Other graphs get the defaults of their program.
    System(
        "cca-ssg",
        "CCA-SSG",
        CCASSG,
        settings={
            "cora": {"epochs": 50, "edge_drop": 0.4, "feature_drop": 0.1, "feature_scaling": "row"},
            "citeseer": {
                "layers": 1,
                "epochs": 20,
                "edge_drop": 0.4,
                "feature_drop": 0.0,
                "decorrelation": 5e-4,
                "feature_scaling": "row",
            },
            "pubmed": {
                "epochs": 100,
                "edge_drop": 0.5,
                "feature_drop": 0.3,
                "feature_scaling": "row",
            },
        },
        weighted=True,
    ),
)
