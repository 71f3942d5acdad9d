"""The paper's two encoders: mean pooling, and mean pooling with residual units.

`graphcl.encoders.EncoderFactory` describes their arguments. Beyond the paper, and off by default,
hidden layers can be normalised, and an embedding can hold more than the last layer
(`graphcl.encoders.side_by_side`).
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, layer_norm

from graphcl.encoders.layer import Layer, LayeredEncoder, glorot
from graphcl.encoders.side_by_side import SideBySide, divide_columns
from graphcl.errors import ParameterError, demand
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.features import Features
from graphcl.settings import check_setting


class RowNorm(nn.LayerNorm):
    """Layer normalisation in float32, whatever the type of its input."""

    def forward(self, h: Tensor) -> Tensor:
        """Returns the rows with mean 0 and variance 1, then scaled and shifted by column."""
        normal = layer_norm(h.float(), self.normalized_shape, self.weight, self.bias, self.eps)
        return normal.to(h.dtype)


class _PaperEncoder(LayeredEncoder):
    """What both encoders have in common.

    Args:
        num_features: P, the width of the input.
        dim: P', the width of the embedding.
        layers: L.
        generator: a CPU generator; the weights depend on nothing else.
        normalisation: of hidden layers: ``none``, or ``layer``.
        side_by_side: the embedding has the results of all layers.
        own_features: the share of its columns that hold the node's own features.
        repeat_own: that share is filled even if there are fewer features.
        smoothed_features: the share of its columns that hold means of features, as far as L hops.
    """

    takes_beyond = True  # the last five arguments

    def __init__(
        self,
        num_features: int,
        *,
        dim: int,
        layers: int,
        generator: torch.Generator,
        normalisation: str = "none",
        side_by_side: bool = False,
        own_features: float = 0.0,
        repeat_own: bool = False,
        smoothed_features: float = 0.0,
    ) -> None:
        super().__init__()
        check_setting("encoder", "normalisation", normalisation)
        own, smoothed, widths = divide_columns(
            num_features,
            dim=dim,
            layers=layers,
            side_by_side=side_by_side,
            own_features=own_features,
            repeat_own=repeat_own,
            smoothed_features=smoothed_features,
        )
        self._weigh(list(pairwise([num_features, *widths])))
        hidden = widths[:-1] if normalisation == "layer" else []
        self.normalisations = nn.ModuleList(RowNorm(width) for width in hidden)
        glorot(self, generator)
        if side_by_side or own or smoothed:
            self.beside = SideBySide(
                num_features,
                own,
                widths,
                smoothed=smoothed,
                every_layer=side_by_side,
                generator=generator,
            )

    def _weigh(self, shapes: list[tuple[int, int]]) -> None:
        """Makes the weight matrices, ``[inputs, outputs]`` of each layer."""
        raise NotImplementedError

    def _normalisation(self, number: int) -> nn.Module | None:
        """Returns the normalisation of a layer."""
        return self.normalisations[number] if number < len(self.normalisations) else None


class MeanPoolingEncoder(_PaperEncoder):
    r"""The paper's transductive encoders.

    One layer: :math:`f(X, A) = \sigma(\hat A X W^{(0)})`. Two:
    :math:`f(X, A) = \hat A\, \sigma(\hat A X W^{(0)})\, W^{(1)}`, and so on for more, with
    :math:`\hat A = \check D^{-1}(A + I)`, :math:`\sigma` = ELU, Glorot weights and no bias.
    """

    def _weigh(self, shapes: list[tuple[int, int]]) -> None:
        self.weights = nn.ParameterList(torch.empty(shape) for shape in shapes)

    def layer_specs(self) -> tuple[Layer, ...]:
        """Returns the layers; the last of several has no activation."""
        last = len(self.weights) - 1
        return tuple(
            Layer(
                weight,
                normalisation=self._normalisation(number),
                activation=elu if number < last or last == 0 else None,
            )
            for number, weight in enumerate(self.weights)
        )


class ResidualEncoder(_PaperEncoder):
    r"""The paper's inductive encoder: mean pooling with residual units.

    .. math::
        H^{(1)} &= \sigma(\hat A X W_1^{(0)} + X W_2^{(0)}) \\
        H^{(2)} &= \sigma(\hat A H^{(1)} W_1^{(1)} + H^{(1)} W_2^{(1)}) \\
        f(X, A) &= \hat A H^{(2)} W_1^{(2)} + H^{(2)} W_2^{(2)}

    Written here for three layers as in the paper. Any number of layers works; the last one has no
    activation. :math:`\sigma` = ELU, Glorot weights and no bias.
    """

    def _weigh(self, shapes: list[tuple[int, int]]) -> None:
        self.pooled_weights = nn.ParameterList(torch.empty(shape) for shape in shapes)  # W_1
        self.own_weights = nn.ParameterList(torch.empty(shape) for shape in shapes)  # W_2

    def layer_specs(self) -> tuple[Layer, ...]:
        """Returns the layers; the last has no activation."""
        last = len(self.own_weights) - 1
        pairs = zip(self.pooled_weights, self.own_weights, strict=True)
        return tuple(
            Layer(
                pooled,
                own,
                normalisation=self._normalisation(number),
                activation=elu if number < last else None,
            )
            for number, (pooled, own) in enumerate(pairs)
        )


class PygEncoder(nn.Module):
    """Layers of PyTorch Geometric, called as ``encoder(x, adjacency) -> h``.

    ELU is applied where the paper's encoders apply it: between layers, and after a single layer.
    Sparse features are made dense, because few of PyG's layers accept sparse ones. Only GCN uses
    edge weights, and its self-weights are always 1.

    `layer` makes one layer from its numbers of inputs and outputs, and `takes_weights` says whether
    that layer takes edge weights. The other arguments are those of `EncoderFactory`.
    """

    def __init__(
        self,
        layer: Callable[[int, int], nn.Module],
        num_features: int,
        *,
        dim: int,
        layers: int,
        generator: torch.Generator,
        takes_weights: bool = False,
    ) -> None:
        super().__init__()
        self.takes_weights = takes_weights
        widths = [num_features] + [dim] * layers
        # PyG's constructors draw from the global generator: its state is restored, and `glorot`
        # replaces the draws.
        with torch.random.fork_rng(devices=[]):
            self.layers = nn.ModuleList(
                layer(inputs, outputs) for inputs, outputs in pairwise(widths)
            )
        glorot(self, generator)

    def forward(self, x: Features, adjacency: Adjacency) -> Tensor:
        """Returns the embeddings, ``[num_nodes, dim]``."""
        h = x if isinstance(x, Tensor) else x.to_dense()
        edges: tuple[Tensor, ...] = (adjacency.edge_index(),)
        if adjacency.self_weight is not None:
            demand(
                self.takes_weights,
                "this encoder takes no edge weights; use mean, residual or gcn, "
                "or leave the weights out",
                ParameterError,
            )
            edges = adjacency.weighted_edge_index()
        for number, layer in enumerate(self.layers):
            h = layer(elu(h) if number else h, *edges)
        return elu(h) if len(self.layers) == 1 else h


def _layer(name: str, inputs: int, outputs: int) -> Any:
    import torch_geometric.nn

    return getattr(torch_geometric.nn, name)(inputs, outputs)


def _gin_layer(inputs: int, outputs: int) -> Any:
    from torch_geometric.nn import GINConv

    mlp = nn.Sequential(nn.Linear(inputs, outputs), nn.ELU(), nn.Linear(outputs, outputs))
    return GINConv(mlp, train_eps=True)


gcn = partial(PygEncoder, partial(_layer, "GCNConv"), takes_weights=True)
sage = partial(PygEncoder, partial(_layer, "SAGEConv"))
gat = partial(PygEncoder, partial(_layer, "GATConv"))
gin = partial(PygEncoder, _gin_layer)
