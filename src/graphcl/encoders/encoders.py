r"""Encoders: :math:`f(X, A) = H`, one embedding per node.

Every encoder is a module called as ``encoder(x, adjacency) -> h`` and is chosen by name in
`build_encoder`. `mean` and `residual` are the paper's; the others wrap PyTorch Geometric's layers
so that they can be compared under the same protocol.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from graphcl.errors import ParameterError, require, suggestion
from graphcl.kernels.csr import Adjacency, Features, linear, mean_pool, mean_pool_elu, product


class MeanPoolingEncoder(nn.Module):
    r"""The paper's transductive encoders.

    One layer: :math:`f(X, A) = \sigma(\hat A X W^{(0)})`. Two:
    :math:`f(X, A) = \hat A\, \sigma(\hat A X W^{(0)})\, W^{(1)}`, and so on for more, with
    :math:`\hat A = \check D^{-1}(A + I)`, :math:`\sigma` = ELU, Glorot weights and no bias.

    Args:
        num_features: P, the width of the input.
        dim: P', the width of every layer and of the embedding.
        layers: L.
        generator: draws the weights.
    """

    recordable = True  # its shapes depend on no draw: a CUDA graph can hold a step

    def __init__(
        self, num_features: int, *, dim: int, layers: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        widths = [num_features] + [dim] * layers
        self.weights = nn.ParameterList(
            torch.empty(inputs, outputs) for inputs, outputs in pairwise(widths)
        )
        glorot(self, generator)

    def forward(self, x: Features, adjacency: Adjacency) -> Tensor:
        """Returns the embeddings, ``[num_nodes, dim]``."""
        weights = list(self.weights)
        if isinstance(x, Tensor) and x.shape[1] <= weights[0].shape[1]:
            h = elu(mean_pool(x, adjacency) @ weights[0])  # pooled inputs: no backward product
        else:
            h = mean_pool_elu(linear(x, weights[0]), adjacency)
        for number, weight in enumerate(weights[1:], 2):
            h = product(mean_pool(h, adjacency), weight)
            h = elu(h) if number < len(weights) else h
        return h


class ResidualEncoder(nn.Module):
    r"""The paper's inductive encoder: mean pooling with residual units.

    .. math::
        H^{(1)} &= \sigma(\hat A X W_1^{(0)} + X W_2^{(0)}) \\
        H^{(2)} &= \sigma(\hat A H^{(1)} W_1^{(1)} + H^{(1)} W_2^{(1)}) \\
        f(X, A) &= \hat A H^{(2)} W_1^{(2)} + H^{(2)} W_2^{(2)}

    Written here for three layers as in the paper; any number goes, and the last has no activation.
    :math:`\sigma` = ELU, Glorot weights and no bias.

    Args:
        num_features: P, the width of the input.
        dim: P', the width of every layer and of the embedding.
        layers: L.
        generator: draws the weights.
    """

    recordable = True  # its shapes depend on no draw: a CUDA graph can hold a step

    def __init__(
        self, num_features: int, *, dim: int, layers: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        shapes = list(pairwise([num_features] + [dim] * layers))
        self.pooled_weights = nn.ParameterList(torch.empty(shape) for shape in shapes)  # W_1
        self.own_weights = nn.ParameterList(torch.empty(shape) for shape in shapes)  # W_2
        glorot(self, generator)

    def forward(self, x: Features, adjacency: Adjacency) -> Tensor:
        """Returns the embeddings, ``[num_nodes, dim]``."""
        weights = list(zip(self.pooled_weights, self.own_weights, strict=True))
        h = _residual_unit(x, *weights[0], adjacency)
        for pair in weights[1:]:
            h = _residual_unit(elu(h), *pair, adjacency)
        return h


def _residual_unit(h: Features, pooled: Tensor, own: Tensor, adjacency: Adjacency) -> Tensor:
    """Returns Â H W_1 + H W_2, pooling on the narrower side of W_1.

    On equal widths it pools after the product: ÂH would be one more activation to keep.
    """
    if isinstance(h, Tensor) and pooled.shape[0] < pooled.shape[1]:
        return torch.addmm(h @ own, mean_pool(h, adjacency), pooled)
    return mean_pool(linear(h, pooled), adjacency) + linear(h, own)


class PygEncoder(nn.Module):
    """Layers of PyTorch Geometric under this package's protocol.

    ELU stands where the paper's encoders have it: between layers, and after a single one.
    Features that came in sparse are made dense: few of PyG's layers take sparse ones. Of them GCN
    alone takes edge weights, in its own way: its self-weights are 1.
    """

    def __init__(
        self,
        layer: Callable[[int, int], nn.Module],
        num_features: int,
        *,
        dim: int,
        layers: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.takes_weights = layer is _gcn
        widths = [num_features] + [dim] * layers
        # PyG's constructors draw from the global stream; it is put back, and the draws replaced.
        with torch.random.fork_rng(devices=[]):
            self.layers = nn.ModuleList(
                layer(inputs, outputs) for inputs, outputs in pairwise(widths)
            )
        glorot(self, generator)

    def forward(self, x: Features, adjacency: Adjacency) -> Tensor:
        """Returns the embeddings, ``[num_nodes, dim]``."""
        h = x if isinstance(x, Tensor) else x.to_dense()
        edges: tuple[Tensor, ...] = (adjacency.edge_index(),)
        if adjacency.own is not None:
            if not self.takes_weights:
                raise ParameterError(
                    "this encoder takes no edge weights; use mean, residual or gcn, "
                    "or leave the weights out"
                )
            edges = adjacency.weighted_edge_index()
        for number, layer in enumerate(self.layers):
            h = layer(elu(h) if number else h, *edges)
        return elu(h) if len(self.layers) == 1 else h


def glorot(module: nn.Module, generator: torch.Generator) -> None:
    """Draws every weight matrix of `module` by Glorot's rule; vectors that are biases become 0."""
    for name, parameter in module.named_parameters():
        if parameter.ndim >= 2:
            nn.init.xavier_uniform_(parameter, generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def _gcn(inputs: int, outputs: int) -> nn.Module:
    from torch_geometric.nn import GCNConv

    return cast("nn.Module", GCNConv(inputs, outputs))


def _sage(inputs: int, outputs: int) -> nn.Module:
    from torch_geometric.nn import SAGEConv

    return cast("nn.Module", SAGEConv(inputs, outputs))


def _gat(inputs: int, outputs: int) -> nn.Module:
    from torch_geometric.nn import GATConv

    return cast("nn.Module", GATConv(inputs, outputs))


def _gin(inputs: int, outputs: int) -> nn.Module:
    from torch_geometric.nn import GINConv

    mlp = nn.Sequential(nn.Linear(inputs, outputs), nn.ELU(), nn.Linear(outputs, outputs))
    return cast("nn.Module", GINConv(mlp, train_eps=True))


_PYG_LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "gcn": _gcn,
    "sage": _sage,
    "gat": _gat,
    "gin": _gin,
}
ENCODERS = ("mean", "residual", *_PYG_LAYERS)


def build_encoder(
    name: str,
    num_features: int,
    *,
    dim: int = 512,
    layers: int = 2,
    generator: torch.Generator,
) -> nn.Module:
    """Returns a freshly initialised encoder on the CPU.

    Args:
        name: one of `ENCODERS`.
        num_features: P, the width of the input.
        dim: P', the width of every layer and of the embedding.
        layers: L.
        generator: a CPU generator; it alone decides the weights.
    """
    require(dim >= 1, "build_encoder", "dim", "at least 1", dim)
    require(layers >= 1, "build_encoder", "layers", "at least 1", layers)
    shape: dict[str, Any] = {"dim": dim, "layers": layers, "generator": generator}
    if name == "mean":
        return MeanPoolingEncoder(num_features, **shape)
    if name == "residual":
        return ResidualEncoder(num_features, **shape)
    if name in _PYG_LAYERS:
        return PygEncoder(_PYG_LAYERS[name], num_features, **shape)
    known = ", ".join(ENCODERS)
    raise ParameterError(f"unknown encoder {name!r}; known: {known}{suggestion(name, ENCODERS)}")
