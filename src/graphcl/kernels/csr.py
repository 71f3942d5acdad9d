r"""Sparse products: mean pooling over neighbours, and sparse features times dense weights.

The adjacency of an undirected graph is symmetric and stays so when an edge is dropped as a unit.
So the backward pass of mean pooling needs no transposed copy:

.. math:: \hat A = \check D^{-1} (A + I), \qquad \hat A^\top G = (A + I)\, \check D^{-1} G .
"""

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

with warnings.catch_warnings():
    # The first CSR tensor of a process warns that the format is in beta; users can do nothing.
    warnings.simplefilter("ignore", UserWarning)
    torch.sparse_csr_tensor([0], [], [], size=(0, 0))


def csr_matmul(indptr: Tensor, indices: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    """Returns the product of a CSR matrix and a dense one, ``[rows, columns of dense]``."""
    csr = torch.sparse_csr_tensor(
        indptr, indices, values, size=(len(indptr) - 1, len(dense)), check_invariants=False
    )
    if dense.device.type == "cpu":
        # Runs on all cores with or without MKL, and beats MKL's product by up to a fifth.
        return cast("Tensor", torch.sparse.mm(csr, dense.contiguous(), "sum"))
    return csr @ dense


@dataclass(frozen=True)
class Adjacency:
    """A symmetric adjacency on one device, as CSR with a weight per entry.

    An entry of weight 0 is an absent edge: a view keeps the pattern of its graph and changes
    weights alone, so shapes never change and nothing is rebuilt.

    Attributes:
        indptr: row pointers, ``[num_nodes + 1]``.
        indices: column indices, ``[entries]``: each undirected edge twice.
        edge_ids: number of the undirected edge behind each entry, ``[entries]``.
        weight: weight of each entry, equal in both directions, ``[entries]``.
    """

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor
    weight: Tensor

    @classmethod
    def from_csr(
        cls, indptr: Any, indices: Any, *, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> "Adjacency":
        """Builds the adjacency of an undirected graph from its sorted CSR arrays."""
        entries = np.arange(len(indices))
        num_nodes = len(indptr) - 1
        pattern = scipy.sparse.csr_array((entries, indices, indptr), shape=(num_nodes, num_nodes))
        # In a symmetric pattern, the entries in column order are the mirrors of those in row order.
        mirror = pattern.tocsc().data
        _, edge_ids = np.unique(np.minimum(entries, mirror), return_inverse=True)
        return cls(
            indptr=torch.tensor(indptr, device=device),
            indices=torch.tensor(indices, device=device),
            edge_ids=torch.tensor(edge_ids, device=device, dtype=torch.int64),
            weight=torch.ones(len(indices), device=device, dtype=dtype),
        )

    @property
    def num_nodes(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of undirected edges, dropped ones included."""
        return len(self.indices) // 2

    def with_weight(self, weight: Tensor) -> "Adjacency":
        """Returns the same pattern with other weights."""
        return replace(self, weight=weight)

    def edge_index(self) -> Tensor:
        """Returns the present edges, both directions, ``[2, entries]``; for PyG's layers."""
        nodes = torch.arange(self.num_nodes, device=self.indices.device)
        rows = torch.repeat_interleave(nodes, self.indptr.diff(), output_size=len(self.indices))
        present = self.weight != 0
        return torch.stack([self.indices[present], rows[present]])

    @cached_property
    def inverse_degree(self) -> Tensor:
        """Diagonal of the inverse degree matrix of A + I, ``[num_nodes, 1]``."""
        ones = self.weight.new_ones(self.num_nodes, 1)
        return 1 / (csr_matmul(self.indptr, self.indices, self.weight, ones) + 1)


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

    def with_values(self, values: Tensor) -> "SparseFeatures":
        """Returns the same pattern with other values."""
        return replace(self, values=values)

    def to_dense(self) -> Tensor:
        """Returns the features as a dense tensor."""
        return torch.sparse_csr_tensor(
            self.indptr, self.indices, self.values, size=self.shape, check_invariants=False
        ).to_dense()


Features = Tensor | SparseFeatures


class _MeanPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, adjacency: Adjacency) -> Tensor:
        ctx.adjacency = adjacency
        pooled = csr_matmul(adjacency.indptr, adjacency.indices, adjacency.weight, h)
        return pooled.add_(h).mul_(adjacency.inverse_degree)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        adjacency: Adjacency = ctx.adjacency
        scaled = grad * adjacency.inverse_degree
        pulled = csr_matmul(adjacency.indptr, adjacency.indices, adjacency.weight, scaled)
        return pulled.add_(scaled), None


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: SparseFeatures, weight: Tensor) -> Tensor:
        ctx.x = x
        return csr_matmul(x.indptr, x.indices, x.values, weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        x: SparseFeatures = ctx.x
        values = x.values[x.transposed_order]
        return None, csr_matmul(x.transposed_indptr, x.transposed_indices, values, grad)


def mean_pool(h: Tensor, adjacency: Adjacency) -> Tensor:
    r"""Returns :math:`\hat A H`: each node's mean over itself and its neighbours.

    Args:
        h: ``[num_nodes, d]``.
        adjacency: symmetric; the weights are not differentiated.
    """
    return cast("Tensor", _MeanPool.apply(h, adjacency))  # type: ignore[no-untyped-call]


def linear(x: Features, weight: Tensor) -> Tensor:
    """Returns ``x @ weight`` for dense or sparse `x`; sparse `x` is not differentiated."""
    if isinstance(x, Tensor):
        return x @ weight
    return cast("Tensor", _SparseLinear.apply(x, weight))  # type: ignore[no-untyped-call]
