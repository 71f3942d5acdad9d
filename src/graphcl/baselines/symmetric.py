"""Products with a symmetric sparse matrix: the backward pass is the same product."""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from graphcl.kernels.csr import Adjacency, csr_matmul


class Symmetric(NamedTuple):
    """A symmetric matrix as CSR: row pointers, columns, values."""

    indptr: Tensor
    indices: Tensor
    values: Tensor

    @classmethod
    def normalised(cls, adjacency: Adjacency) -> "Symmetric":
        r"""Returns :math:`\tilde A = \check D^{-1/2} (A + I) \check D^{-1/2}`, a GCN's."""
        scale, looped = adjacency.inverse_degree[:, 0].sqrt(), adjacency.looped
        values = adjacency.looped_weight * scale[looped.rows] * scale[looped.indices]
        return cls(looped.indptr, looped.indices, values)

    @classmethod
    def plain(cls, adjacency: Adjacency) -> "Symmetric":
        """Returns A itself."""
        return cls(adjacency.indptr, adjacency.indices, adjacency.weight)

    def __matmul__(self, h: Tensor) -> Tensor:
        """Returns the product with ``[num_nodes, d]``, differentiable in it."""
        return cast("Tensor", _Product.apply(h, self))  # type: ignore[no-untyped-call]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, matrix: Symmetric) -> Tensor:
        ctx.matrix = matrix
        return csr_matmul(matrix.indptr, matrix.indices, matrix.values, h)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        matrix: Symmetric = ctx.matrix
        return csr_matmul(matrix.indptr, matrix.indices, matrix.values, grad), None
