r"""GraphMAE: self-supervised masked graph autoencoders (Hou et al., 2022)."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, prelu

from graphcl.errors import require
from graphcl.kernels.adam import Adam
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.features import Features
from graphcl.research.systems.layers import additive_attention, dense_layer, drop_values
from graphcl.research.systems.system import SelfSupervised, System, Training, cosine_decay, descend


def scaled_cosine_error(rebuilt: Tensor, x: Tensor, exponent: float) -> Tensor:
    r"""Returns the error of rebuilt features, ``[nodes, num_features]``.

    .. math:: L = \frac{1}{|\tilde V|} \sum_{u \in \tilde V} (1 - \cos(x_u, \hat x_u))^\gamma
    """
    cosine = (normalize(rebuilt) * normalize(x)).sum(1)
    return (1 - cosine).pow(exponent).mean()


class Masking(NamedTuple):
    """Which nodes are hidden in a step, as node numbers.

    Attributes:
        hidden: all of them: those that get the mask token, then those that get others' features.
        token: those that get the mask token.
        replaced: those that get the features of another node.
        donors: these other nodes, one each.
    """

    hidden: Tensor
    token: Tensor
    replaced: Tensor
    donors: Tensor


def draw_masking(
    num_nodes: int, mask_rate: float, replace_rate: float, draws: torch.Generator
) -> Masking:
    """Draws the nodes to hide: `mask_rate` of all, of which `replace_rate` are replaced.

    At least one node is hidden.
    """
    order, others = (
        # Sorting uniform draws: a recorded step on a GPU cannot call `randperm`.
        torch.rand(num_nodes, generator=draws, device=draws.device).argsort()
        for _ in range(2)
    )
    hidden = max(1, int(mask_rate * num_nodes))
    replaced = int(replace_rate * hidden)
    return Masking(
        hidden=order[:hidden],
        token=order[: hidden - replaced],
        replaced=order[hidden - replaced : hidden],
        donors=others[:replaced],
    )


@dataclass(frozen=True)
class GraphMAE(SelfSupervised):
    r"""Attention layers that rebuild the features of hidden nodes from the rest.

    In each step, `mask_rate` of the nodes are hidden: their features are replaced by a learned
    token, and for `replace_rate` of them by those of a random node. The encoder's layers are those
    of a GAT, heads side by side, followed by PReLU. A linear map follows; the hidden nodes are set
    to zero again, and one attention layer decodes. The loss is the `scaled_cosine_error` of the
    hidden nodes. The learning rate falls along a cosine. Edge weights are ignored.

    The features are held as a dense table, as the token and its dropout are dense.

    Attributes:
        dim: width of every layer of the encoder, all heads together, and of the embedding.
        heads: heads of each layer of the encoder.
        layers: layers of the encoder.
        mask_rate: part of the nodes that is hidden.
        replace_rate: part of the hidden nodes that gets another node's features.
        exponent: γ of the error.
        dropout: rate on the inputs of all layers.
        attention_dropout: rate on the attention weights.
        learning_rate: Adam's, at the start.
        weight_decay: Adam's, an L2 penalty.
        epochs: steps, each over all nodes.
    """

    owner: ClassVar[str] = "graphmae"
    dim: int = 512
    heads: int = 4
    layers: int = 2
    mask_rate: float = 0.5
    replace_rate: float = 0.05
    exponent: float = 3.0
    dropout: float = 0.2
    attention_dropout: float = 0.1
    learning_rate: float = 1e-3
    weight_decay: float = 2e-4
    epochs: int = 1500

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.dim % self.heads == 0
        require(fits, "graphmae", "dim", f"a multiple of heads ({self.heads})", self.dim)

    def start(self, x: Features, adjacency: Adjacency, draw: torch.Generator) -> Training:
        """Sets up a training; embeddings are the encoder's, without masks and dropout."""
        table, device = x.to_dense(), adjacency.weight.device
        nodes, width = table.shape
        encoder = _Encoder(width, self, draw)
        between = dense_layer(self.dim, self.dim, draw=draw, bias=False)
        decoder = _Attention(self.dim, width, heads=1, draw=draw)
        model = nn.ModuleList([encoder, between, decoder]).to(device)
        token = nn.Parameter(torch.zeros(width, device=device))
        rate = torch.zeros((), device=device)
        optimiser = Adam(
            [*model.parameters(), token],
            lr=rate,
            weight_decay=self.weight_decay,
            fused=True,
            capturable=device.type == "cuda",
        )
        drops = (self.dropout, self.attention_dropout)

        def schedule(epoch: int) -> None:
            rate.fill_(self.learning_rate * cosine_decay(epoch / self.epochs))

        def step(draws: torch.Generator) -> Tensor:
            masking = draw_masking(nodes, self.mask_rate, self.replace_rate, draws)
            h = encoder(hide(table, token, masking), adjacency, drops, draws)
            rest = between(h).index_fill(0, masking.hidden, 0)
            rebuilt = decoder.decode(rest, masking.hidden, adjacency, drops, draws)
            error = scaled_cosine_error(rebuilt, table[masking.hidden], self.exponent)
            return descend(optimiser, error)

        return Training(step, lambda: encoder(table, adjacency), before=schedule)


def hide(x: Tensor, token: Tensor, masking: Masking) -> Tensor:
    """Returns the features with the hidden nodes' replaced by `token` or a donor's."""
    replaced = x.index_copy(0, masking.replaced, x[masking.donors])
    return replaced.index_copy(0, masking.token, token.expand(len(masking.token), -1))


class _Attention(nn.Module):
    """One layer of a GAT, without its activation.

    As an encoder it is as fast as PyTorch Geometric's `GATConv`; as a decoder (`decode`) 1.4 to 1.9
    times as fast (`python -m benchmarks.layers`). Dropout is drawn from the step's generator, so
    that the seed and the epoch alone decide it.
    """

    def __init__(self, inputs: int, width: int, *, heads: int, draw: torch.Generator) -> None:
        super().__init__()
        self.heads, gain = heads, math.sqrt(2)  # as in DGL's layer
        self.weight = nn.Parameter(torch.empty(inputs, width))
        self.receiving = nn.Parameter(torch.empty(heads, width // heads))
        self.giving = nn.Parameter(torch.empty(heads, width // heads))
        for parameter in self.parameters():
            nn.init.xavier_normal_(parameter, gain=gain, generator=draw)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, h: Tensor, adjacency: Adjacency, kept: Tensor | None) -> Tensor:
        """Returns the heads side by side, ``[num_nodes, width]``."""
        v = (h @ self.weight).view(len(h), self.heads, -1)
        a, b = (v * self.receiving).sum(2), (v * self.giving).sum(2)
        return additive_attention(a, b, v, adjacency, kept).flatten(1) + self.bias

    def decode(
        self,
        h: Tensor,
        nodes: Tensor,
        adjacency: Adjacency,
        drops: tuple[float, float],
        draws: torch.Generator,
    ) -> Tensor:
        """Returns `forward` with one head and dropout, for some nodes alone.

        With one head, the weighted sum can be taken before the product with the weight, which makes
        it as narrow as `h`.
        """
        h = drop_values(h, drops[0], draws)
        kept = _kept(adjacency, 1, drops[1], draws)
        a, b = (h @ (self.weight @ part.T) for part in (self.receiving, self.giving))
        pooled = additive_attention(a, b, h[:, None], adjacency, kept)[:, 0]
        return pooled.index_select(0, nodes) @ self.weight + self.bias


class _Encoder(nn.Module):
    def __init__(self, inputs: int, fields: GraphMAE, draw: torch.Generator) -> None:
        super().__init__()
        widths = [inputs] + [fields.dim] * (fields.layers - 1)
        self.heads = fields.heads
        self.attention = nn.ModuleList(
            _Attention(width, fields.dim, heads=fields.heads, draw=draw) for width in widths
        )
        self.slopes = nn.ParameterList(torch.tensor([0.25]) for _ in widths)

    def forward(
        self,
        h: Tensor,
        adjacency: Adjacency,
        drops: tuple[float, float] = (0, 0),
        draws: torch.Generator | None = None,
    ) -> Tensor:
        for layer, slope in zip(self.attention, self.slopes, strict=True):
            kept = None
            if draws is not None:
                h = drop_values(h, drops[0], draws)
                kept = _kept(adjacency, self.heads, drops[1], draws)
            h = prelu(layer(h, adjacency, kept), slope)
        return h


def _kept(adjacency: Adjacency, heads: int, rate: float, draws: torch.Generator) -> Tensor | None:
    """Draws the factors that dropout multiplies attention weights by; None for a rate of 0."""
    if rate == 0:
        return None
    ones = torch.ones(len(adjacency.looped.rows), heads, device=draws.device)
    return drop_values(ones, rate, draws)


# The settings are those of the authors' `configs.yml`; DGL, which they read these graphs with,
# scales rows. Other graphs get Cora's.
SYSTEM = System(
    "graphmae",
    "GraphMAE",
    GraphMAE,
    settings={
        "citeseer": {
            "heads": 2,
            "replace_rate": 0.1,
            "exponent": 1.0,
            "weight_decay": 2e-5,
            "epochs": 300,
        },
        "pubmed": {
            "dim": 1024,
            "mask_rate": 0.75,
            "replace_rate": 0.0,
            "weight_decay": 1e-5,
            "epochs": 1000,
        },
    },
)
