r"""Layers of the systems: dropout, sparse products, graph convolutions, random views, attention.

Attention is over each node and its neighbours, the entries (i, j) of A + I. With scores s it is
:math:`o_i = \sum_j w_{ij} v_j, \; w_{ij} = \mathrm{softmax}_j\, s_{ij}`.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, leaky_relu, prelu, relu

from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import TableScaling
from graphcl.graphs.tensors import feature_tensor
from graphcl.kernels.adjacency import Adjacency, csr_matmul
from graphcl.kernels.buffers import borrow
from graphcl.kernels.features import Features, linear
from graphcl.views import drop_edges

SLOPE = 0.2  # of a GAT's LeakyReLU


def feature_dropout(x: Features, probability: float) -> Tensor:
    """Returns the features after dropout, dense.

    Sparse features need draws only for their non-zeros, about 1 % of a bag-of-words table.
    """
    if isinstance(x, Tensor):
        return dropout(x, probability)
    return x.with_values(dropout(x.values, probability)).to_dense()


def drop_values(h: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Returns `h` after dropout; `generator` must be on the device of `h`."""
    if rate == 0:
        return h
    keep = torch.rand(h.shape, generator=generator, device=h.device) >= rate
    return h * keep / (1 - rate)


def dense_csr(
    graph: Graph, device: torch.device, feature_scaling: TableScaling
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a graph on `device`: dense features, CSR row pointers and column indices."""
    graph.check()
    x = feature_tensor(graph.x, device=device, feature_scaling=feature_scaling)
    return x.to_dense(), borrow(graph.indptr).to(device), borrow(graph.indices).to(device)


def mean_with(own: Tensor, around: Tensor) -> Tensor:
    """Returns the mean of a row ``[n, d]`` and of those around it, ``[n, f, d]``."""
    return (own + around.sum(1)) / (1 + around.shape[1])


class Symmetric(NamedTuple):
    """A symmetric matrix as CSR: row pointers, columns, values.

    It equals its transpose, so the backward pass of a product is the same product.
    """

    indptr: Tensor
    indices: Tensor
    values: Tensor

    @classmethod
    def normalised(cls, adjacency: Adjacency) -> "Symmetric":
        r"""Returns :math:`\tilde A = \check D^{-1/2} (A + I) \check D^{-1/2}`, as in a GCN."""
        scale, looped = adjacency.inverse_degree[:, 0].sqrt(), adjacency.looped
        values = adjacency.looped_weight * scale[looped.rows] * scale[looped.indices]
        return cls(looped.indptr, looped.indices, values)

    @classmethod
    def plain(cls, adjacency: Adjacency) -> "Symmetric":
        """Returns A itself."""
        return cls(adjacency.indptr, adjacency.indices, adjacency.weight)

    def __matmul__(self, h: Tensor) -> Tensor:
        """Returns the product with `h`, ``[num_nodes, d]``; differentiable in `h`."""
        return cast("Tensor", _SymmetricProduct.apply(h, self))  # type: ignore[no-untyped-call]


class _SymmetricProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, matrix: Symmetric) -> Tensor:
        ctx.matrix = matrix
        return csr_matmul(matrix.indptr, matrix.indices, matrix.values, h)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        matrix: Symmetric = ctx.matrix
        return csr_matmul(matrix.indptr, matrix.indices, matrix.values, grad), None


def mask_columns(x: Features, rate: float, generator: torch.Generator) -> Features:
    """Returns a copy in which each column is zero for all nodes with probability `rate`.

    The other columns are not rescaled.
    """
    if rate == 0:
        return x
    columns, values = x.shape[1], x if isinstance(x, Tensor) else x.values
    keep = torch.rand(columns, generator=generator, device=values.device) >= rate
    if isinstance(x, Tensor):
        return x * keep
    return x.with_values(x.values * keep[x.indices])


def draw_view(
    x: Features,
    adjacency: Adjacency,
    *,
    edge_drop: float,
    feature_drop: float,
    generator: torch.Generator,
) -> tuple[Features, Adjacency]:
    """Returns a view: columns of features masked, edges dropped, degrees those that are left."""
    kept = drop_edges(adjacency, edge_drop, generator)
    return mask_columns(x, feature_drop, generator), kept


class Convolutions(nn.Module):
    r"""Graph convolutions, :math:`H' = \sigma(\mathrm{norm}(\tilde A H W + b))` one after another.

    W is drawn by Glorot's rule, b starts at 0. PReLU's slope starts at 1/4.

    It is 2.3 to 3.1 times as fast as PyTorch Geometric's `GCNConv` on Cora and Pubmed, forward and
    backward on a CPU (`python -m benchmarks.layers`): features may be sparse, and a symmetric
    matrix needs no transpose.

    Args:
        widths: of the input, then of each layer.
        draw: draws the weights.
        activation: ``relu``, or ``prelu``, with a slope of its own in each layer.
        last: whether the last layer has an activation.
        normalise: whether batch normalisation comes before the activation. Its momentum is 0.99, so
            that `eval` uses the statistics of the last view.
    """

    def __init__(
        self,
        widths: Sequence[int],
        *,
        draw: torch.Generator,
        activation: str = "relu",
        last: bool = True,
        normalise: bool = False,
    ) -> None:
        super().__init__()
        shapes = list(pairwise(widths))
        self.weights = nn.ParameterList(
            nn.init.xavier_uniform_(torch.empty(shape), generator=draw) for shape in shapes
        )
        self.biases = nn.ParameterList(torch.zeros(width) for _, width in shapes)
        self.norms = nn.ModuleList(
            nn.BatchNorm1d(width, momentum=0.99) for _, width in shapes if normalise
        )
        self.activated = len(shapes) - (not last)
        slopes = self.activated if activation == "prelu" else 0
        self.slopes = nn.ParameterList(torch.tensor([0.25]) for _ in range(slopes))

    def forward(self, x: Features, adjacency: Adjacency) -> Tensor:
        """Returns the embeddings, ``[num_nodes, widths[-1]]``."""
        return self.propagate(linear(x, self.weights[0]), Symmetric.normalised(adjacency))

    def propagate(self, product: Tensor, pool: Symmetric) -> Tensor:
        """Returns the embeddings, given the product of the features and the first weights."""
        h = product
        for layer, bias in enumerate(self.biases):
            h = pool @ (h @ self.weights[layer] if layer else h) + bias
            if self.norms:
                h = self.norms[layer](h)
            if layer < self.activated:
                h = prelu(h, self.slopes[layer]) if self.slopes else relu(h)
        return h


def dense_layer(
    inputs: int, outputs: int, *, draw: torch.Generator, bias: bool = True
) -> nn.Linear:
    """Returns a linear layer with PyTorch's usual weights, uniform in ±1/√inputs, from `draw`."""
    # On the device `meta` nothing is drawn from the global stream.
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-(inputs**-0.5), inputs**-0.5, generator=draw)
    return layer


def dot_attention(q: Tensor, k: Tensor, v: Tensor, adjacency: Adjacency) -> Tensor:
    r"""Returns the attention with :math:`s_{ij} = q_i^\top k_j`, ``[num_nodes, heads, d_v]``.

    Queries `q` and keys `k` are ``[num_nodes, heads, d]``, values `v` ``[num_nodes, heads, d_v]``.
    """
    looped = adjacency.looped
    scores = (q.index_select(0, looped.rows) * k.index_select(0, looped.indices)).sum(2)
    return _attend(scores, v, adjacency)


def additive_attention(
    a: Tensor, b: Tensor, v: Tensor, adjacency: Adjacency, kept: Tensor | None = None
) -> Tensor:
    r"""Returns the attention of a GAT, :math:`s_{ij} = \mathrm{LeakyReLU}(a_i + b_j)`.

    Scores of the receiving node `a` and of its neighbours `b` are ``[num_nodes, heads]``, values
    `v` and the result ``[num_nodes, heads, d]``. `kept`, ``[entries, heads]``, multiplies the
    weights: dropout.
    """
    looped = adjacency.looped
    scores = a.index_select(0, looped.rows) + b.index_select(0, looped.indices)
    return _attend(leaky_relu(scores, SLOPE), v, adjacency, kept)


def _attend(scores: Tensor, v: Tensor, adjacency: Adjacency, kept: Tensor | None = None) -> Tensor:
    from torch_geometric.utils import scatter, softmax

    looped = adjacency.looped
    weight = softmax(scores, looped.rows, num_nodes=len(v))
    weight = weight if kept is None else weight * kept
    around = weight[:, :, None] * v.index_select(0, looped.indices)
    return cast("Tensor", scatter(around, looped.rows, dim_size=len(v)))


def neighbour_max(m: Tensor, adjacency: Adjacency) -> Tensor:
    """Returns the maximum of ``m[num_nodes, width]`` over each node and its neighbours.

    Equal maxima share the gradient; they are common because nodes have equal features.
    """
    values = m.index_select(0, adjacency.looped.indices)
    index = adjacency.looped.rows[:, None].expand_as(values)
    return torch.full_like(m, -torch.inf).scatter_reduce(0, index, values, "amax")
