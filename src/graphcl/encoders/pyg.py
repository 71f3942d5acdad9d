"""Encoders of PyTorch Geometric's layers, to compare with the paper's under the same protocol.

They do not state their layers, so they only work on whole graphs: they support neither sampled
training nor inference in blocks, and their steps are not recorded on a GPU.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from graphcl.encoders.layer import glorot
from graphcl.errors import ParameterError
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.features import Features


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
            if not self.takes_weights:
                raise ParameterError(
                    "this encoder takes no edge weights; use mean, residual or gcn, "
                    "or leave the weights out"
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
