r"""Features on a device, dense or sparse, and their products with weights.

The backward product of sparse features is :math:`X^\top G`. A loop over the columns of X gathers
rows of G from all over memory. On a CPU with few cores, `transposed_product` goes over the rows of
X: it reads G once and adds multiples of its rows to rows of the result. Each core computes a slab
of the result's columns and keeps their sums in its cache. Values that dropout set to zero are
skipped.
"""

from dataclasses import dataclass, replace
from typing import Any, cast

import numba
import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.nn.functional import pad

from graphcl.kernels.adjacency import csr_matmul
from graphcl.kernels.buffers import empty
from graphcl.kernels.parallel import parallel, prange

LEAST_WORK = 1 << 22  # entries times columns; with less, compilation takes longer than it saves
LEAST_WIDTH = 64  # columns of a slab; narrower ones do not pay, as each core reads all entries
SLAB_BYTES = 1 << 22  # about what a core's own cache holds
UNIT = 64  # rows of a `stable_product` on a CPU are a multiple of it
LANES = 16  # and its columns of this


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
        parts = (part.cpu().numpy() for part in (self.values, self.indices, self.indptr))
        matrix = scipy.sparse.csr_array(tuple(parts), shape=self.shape)
        both = scipy.sparse.vstack([matrix, matrix], format="csr")
        device, dtype = self.values.device, self.values.dtype
        return SparseFeatures.from_csr(both, device=device, dtype=dtype)

    def with_values(self, values: Tensor) -> "SparseFeatures":
        """Returns the same pattern with other values."""
        return replace(self, values=values)

    def to(self, dtype: torch.dtype) -> "SparseFeatures":
        """Returns the features in a type of numbers."""
        return self.with_values(self.values.to(dtype))

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
        size = (len(x.values), x.shape[1], grad.shape[1])
        if grad.device.type == "cpu" and is_faster(*size, grad.dtype):
            return None, transposed_product(x.indptr, x.indices, x.values, grad, x.shape[1])
        values = x.values[x.transposed_order]
        return None, csr_matmul(x.transposed_indptr, x.transposed_indices, values, grad)


def product(h: Tensor, weight: Tensor) -> Tensor:
    """Returns ``h @ weight``; the result and the gradient of `h` are allocated by `empty`."""
    if torch.compiler.is_exporting():
        return h @ weight
    return cast("Tensor", _Product.apply(h, weight))  # type: ignore[no-untyped-call]


def stable_product(rows: Tensor, weight: Tensor) -> Tensor:
    """Returns rows @ weight; on a CPU the bits of a row do not depend on the other rows.

    BLAS has other loops for a single row and for the last rows of a table.
    """
    return padded_product(rows, weight)[: len(rows)]


def padded_product(rows: Tensor, weight: Tensor) -> Tensor:
    """Returns rows @ weight; on a CPU with rows of zeros below, up to a multiple of `UNIT`.

    The columns are padded meanwhile: for those that do not fill a vector, BLAS has loops that round
    a row by where it stands, on some processors.
    """
    if rows.is_cuda:
        return rows @ weight
    missing, width = -len(rows) % UNIT, weight.shape[1]
    if missing:
        rows = torch.cat([rows, rows.new_zeros(missing, rows.shape[1])])
    if width % LANES == 0:
        return rows @ weight
    whole = rows @ pad(weight, (0, -width % LANES))
    return whole[:, :width].contiguous()


def linear(x: Features, weight: Tensor) -> Tensor:
    """Returns ``x @ weight`` for dense or sparse `x`; no gradient flows into a sparse `x`."""
    if isinstance(x, Tensor):
        return x @ weight
    return cast("Tensor", _SparseLinear.apply(x, weight))  # type: ignore[no-untyped-call]


def is_faster(entries: int, rows: int, width: int, dtype: torch.dtype) -> bool:
    """Returns whether `transposed_product` is faster than a gathering product on this machine.

    X has `entries` stored values; the result is ``[rows, width]`` of type `dtype`.
    """
    slab = width // _slabs()
    fits = rows * slab * dtype.itemsize <= SLAB_BYTES
    return _slabs() > 1 and slab >= LEAST_WIDTH and fits and entries * width >= LEAST_WORK


def transposed_product(
    indptr: Tensor, indices: Tensor, values: Tensor, dense: Tensor, rows: int
) -> Tensor:
    """Returns Xᵀ G, ``[rows, width]``, for X in CSR and a dense G; all on a CPU.

    Each element is summed in the order of X's rows, whatever the number of cores.
    """
    out = torch.empty(rows, dense.shape[1], dtype=dense.dtype)
    arrays = (part.numpy() for part in (indptr, indices, values, dense.contiguous(), out))
    _add_rows(*arrays, _slabs())
    return out


def _slabs() -> int:
    """Returns at most torch's number of threads: a user who sets it limits these loops, too."""
    return min(numba.get_num_threads(), torch.get_num_threads())


@parallel
def _add_rows(  # type: ignore[no-untyped-def]
    indptr, indices, values, dense, out, parts
) -> None:
    width = dense.shape[1]
    flat = dense.ravel()
    for part in prange(parts):
        # Unsigned indices: signed ones may count from the end, and are then not vectorised.
        left = np.uint64(part * width // parts)
        columns = np.uint64((part + 1) * width // parts) - left
        sums = np.zeros(out.shape[0] * int(columns), dense.dtype)
        for row in range(len(indptr) - 1):
            source = np.uint64(row) * np.uint64(width) + left
            for entry in range(indptr[row], indptr[row + 1]):
                value = values[entry]
                if value != 0:
                    target = np.uint64(indices[entry]) * columns
                    for column in range(columns):
                        sums[target + column] += value * flat[source + column]
        for row in range(out.shape[0]):
            source = np.uint64(row) * columns
            for column in range(columns):
                out[row, left + column] = sums[source + column]
