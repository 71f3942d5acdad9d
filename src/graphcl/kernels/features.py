"""Features on a device, dense or sparse, and their products with weights."""

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from graphcl.kernels.adjacency import csr_matmul
from graphcl.kernels.buffers import empty
from graphcl.kernels.transposed import is_faster, transposed_product


@dataclass(frozen=True)
class SparseFeatures:
    """Sparse features on one device, with the transposed pattern that the backward pass needs."""

    indptr: Tensor
    indices: Tensor
    values: Tensor
    transposed_indptr: Tensor
    transposed_indices: Tensor
    transposed_order: Tensor  # transposed_values = values[transposed_order]
    shape: tuple[int, int]

    @classmethod
    def from_csr(
        cls,
        matrix: scipy.sparse.csr_array,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> "SparseFeatures":
        """Builds the features from a canonical CSR matrix."""
        order = scipy.sparse.csr_array(
            (np.arange(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape
        ).tocsc()

        def index(array: Any) -> Tensor:
            return torch.tensor(array, device=device, dtype=torch.int64)

        return cls(
            indptr=index(matrix.indptr),
            indices=index(matrix.indices),
            values=torch.tensor(matrix.data, device=device, dtype=dtype),
            transposed_indptr=index(order.indptr),
            transposed_indices=index(order.indices),
            transposed_order=index(order.data),
            shape=cast("tuple[int, int]", matrix.shape),
        )

    def twice(self) -> "SparseFeatures":
        """Returns two copies of the table, one below the other."""
        rows, columns = self.shape
        indices = self.indices.repeat(2)
        lengths = self.indptr.diff().repeat(2)
        row_of = torch.repeat_interleave(torch.arange(2 * rows, device=indices.device), lengths)
        order = torch.argsort(indices, stable=True)
        counts = torch.bincount(indices, minlength=columns)
        return SparseFeatures(
            indptr=torch.cat([self.indptr, self.indptr[1:] + len(self.indices)]),
            indices=indices,
            values=self.values.repeat(2),
            transposed_indptr=torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
            transposed_indices=row_of[order],
            transposed_order=order,
            shape=(2 * rows, columns),
        )

    def with_values(self, values: Tensor) -> "SparseFeatures":
        """Returns the same pattern with other values."""
        return replace(self, values=values)

    def to_dense(self) -> Tensor:
        """Returns the features as a dense tensor."""
        return torch.sparse_csr_tensor(
            self.indptr, self.indices, self.values, size=self.shape, check_invariants=False
        ).to_dense()


Features = Tensor | SparseFeatures


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(h, weight)
        return torch.mm(h, weight, out=empty((len(h), weight.shape[1]), h))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor]:
        h, weight = ctx.saved_tensors
        below = None
        if ctx.needs_input_grad[0]:  # the features, input of the first layer, do not
            below = torch.mm(grad, weight.T, out=empty(h.shape, h))
        return below, h.T @ grad


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: SparseFeatures, weight: Tensor) -> Tensor:
        ctx.x = x
        return csr_matmul(x.indptr, x.indices, x.values, weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        x: SparseFeatures = ctx.x
        if grad.device.type == "cpu" and is_faster(
            len(x.values), x.shape[1], grad.shape[1], grad.dtype
        ):
            rows = (x.indptr, x.indices, x.values)
            return None, transposed_product(*rows, grad, x.shape[1])
        values = x.values[x.transposed_order]
        return None, csr_matmul(x.transposed_indptr, x.transposed_indices, values, grad)


def product(h: Tensor, weight: Tensor) -> Tensor:
    """Returns ``h @ weight``; the result and the gradient of `h` are allocated by `empty`."""
    return cast("Tensor", _Product.apply(h, weight))  # type: ignore[no-untyped-call]


def linear(x: Features, weight: Tensor) -> Tensor:
    """Returns ``x @ weight`` for dense or sparse `x`; no gradient flows into a sparse `x`."""
    if isinstance(x, Tensor):
        return x @ weight
    return cast("Tensor", _SparseLinear.apply(x, weight))  # type: ignore[no-untyped-call]
