r"""The adjacency of a graph on a device, and mean pooling over neighbours.

The adjacency of an undirected graph is symmetric, and stays symmetric if both directions of an edge
are dropped together. So the backward pass of mean pooling needs no transposed copy of the pattern,
only other values:

.. math:: \hat A = \check D^{-1} (A + I), \qquad \hat A^\top = (A + I)\, \check D^{-1} .

For weighted edges, I is replaced by a diagonal of self-weights: the self-weight of a node is the
mean weight of its edges,

.. math:: \hat A_{uv} = \frac{w_{uv}}{s_u + \sum_v w_{uv}}, \qquad
          \hat A_{uu} = \frac{s_u}{s_u + \sum_v w_{uv}}, \qquad
          s_u = \frac{1}{d_u} \sum_v w_{uv} .

A node makes up 1 / (d + 1) of its mean, as without weights, and its neighbours the rest, in
proportion to their weights. Only ratios matter: weights in other units give the same result.
Dropping an edge does not change the self-weights. If every weight is 1, the result is bit-identical
to that of an unweighted graph.

Differs from the paper: its graphs are unweighted.
"""

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse
import torch
from torch import Tensor

from graphcl.kernels.buffers import empty
from graphcl.kernels.elu import elu_

IntArray = npt.NDArray[np.integer[Any]]

with warnings.catch_warnings():
    # The first CSR tensor of a process warns that the format is in beta. Users cannot change that,
    # so the warning is triggered and hidden here.
    warnings.simplefilter("ignore", UserWarning)
    torch.sparse_csr_tensor([0], [], [], size=(0, 0))


def csr_matmul(indptr: Tensor, indices: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    """Returns the product of a CSR matrix and a dense one, ``[rows, columns of dense]``."""
    csr = torch.sparse_csr_tensor(
        indptr, indices, values, size=(len(indptr) - 1, len(dense)), check_invariants=False
    )
    if dense.device.type != "cpu":
        return csr @ dense
    watched = torch.is_grad_enabled() and dense.requires_grad
    if watched or not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return cast("Tensor", torch.sparse.mm(csr, dense.contiguous(), "sum"))
    # A product that allocates its result also fills it, in pages of 4 kB. On Cora this takes three
    # times as long as MKL's product itself, which overwrites whatever `out` contains.
    out = empty((len(indptr) - 1, dense.shape[1]), dense)
    return torch.addmm(out, csr, dense.contiguous(), beta=0, out=out)


class _LoopedPattern(NamedTuple):
    """CSR pattern of A + I; `entries` gives the position of its values in [weights, self-weights].

    Without self-weights, the whole diagonal has the position of a single 1 just after the weights.
    With self-weights, the diagonal entry of node u has the position u places further on.
    """

    indptr: Tensor
    indices: Tensor
    rows: Tensor
    entries: Tensor


def looped_pattern(
    indptr: IntArray, indices: IntArray, *, first: int = 0, weighted: bool, device: torch.device
) -> _LoopedPattern:
    """Returns the pattern of A + I for the rows from `first` on, whose A is given as sorted CSR."""
    rows = np.arange(len(indptr) - 1)
    nodes, entries = rows + first, np.arange(len(indices))
    of_entry = np.repeat(rows, np.diff(indptr))
    # Each row's own node is inserted before its first larger neighbour, so rows stay sorted.
    smaller = np.bincount(of_entry[indices < of_entry + first], minlength=len(rows))
    places = indptr[:-1] + smaller
    diagonal = len(entries) + (rows if weighted else 0)
    return _LoopedPattern(
        indptr=torch.tensor(indptr + np.arange(len(indptr)), device=device),
        indices=torch.tensor(np.insert(indices, places, nodes), device=device),
        rows=torch.tensor(np.insert(of_entry, places, rows), device=device),
        entries=torch.tensor(np.insert(entries, places, diagonal), device=device),
    )


@dataclass(frozen=True)
class Adjacency:
    """A symmetric adjacency on one device, as CSR with a weight per entry.

    An entry of weight 0 is an absent edge. A view keeps the pattern of its graph and only changes
    the weights, so shapes never change and nothing is rebuilt.

    Attributes:
        indptr: row pointers, ``[num_nodes + 1]``.
        indices: column indices, ``[entries]``: each undirected edge twice.
        edge_ids: number of the undirected edge behind each entry, ``[entries]``.
        weight: weight of each entry, equal in both directions, ``[entries]``.
        looped: the pattern of A + I, which never changes.
        self_weight: self-weight of each node, ``[num_nodes]``; None if all are 1.
    """

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor
    weight: Tensor
    looped: "_LoopedPattern"
    self_weight: Tensor | None = None

    @classmethod
    def from_csr(
        cls,
        indptr: Any,
        indices: Any,
        edge_weight: Any = None,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> "Adjacency":
        """Builds the adjacency of an undirected graph from its sorted CSR arrays."""
        entries = np.arange(len(indices))
        num_nodes = len(indptr) - 1
        pattern = scipy.sparse.csr_array((entries, indices, indptr), shape=(num_nodes, num_nodes))
        # In a symmetric pattern, the k-th entry in column order mirrors the k-th in row order. The
        # entry of a pair that comes first in row order gets the edge's number, and both share it.
        mirror = pattern.tocsc().data
        edge_ids = (np.cumsum(entries <= mirror) - 1)[np.minimum(entries, mirror)]
        looped = looped_pattern(
            np.asarray(indptr), np.asarray(indices), weighted=edge_weight is not None, device=device
        )
        weight, self_weight = torch.ones(len(indices), dtype=dtype), None
        if edge_weight is not None:
            weight = torch.tensor(edge_weight, dtype=dtype)
            self_weight = self_weights(torch.tensor(indptr), weight).to(device)
        return cls(
            indptr=torch.tensor(indptr, device=device),
            indices=torch.tensor(indices, device=device),
            edge_ids=torch.tensor(edge_ids, device=device, dtype=torch.int64),
            weight=weight.to(device),
            looped=looped,
            self_weight=self_weight,
        )

    @property
    def num_nodes(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of undirected edges, dropped ones included."""
        return len(self.indices) // 2

    def twice(self) -> Self:
        """Returns two copies of the graph side by side, with no edge between them."""
        return self._twice(self.num_nodes)

    def _twice(self, columns: int) -> Self:
        """Returns two copies; the nodes of the second have their columns `columns` further on."""
        nodes, entries, looped = self.num_nodes, len(self.indices), self.looped
        # The weights of both copies come first, then the self-weights of both. So a diagonal
        # position moves past the second copy's weights; in the second copy, also past the first
        # copy's self-weights.
        diagonal = looped.entries >= entries
        nodes_before = 0 if self.self_weight is None else nodes
        return replace(
            self,
            indptr=torch.cat([self.indptr, self.indptr[1:] + entries]),
            indices=torch.cat([self.indices, self.indices + columns]),
            edge_ids=torch.cat([self.edge_ids, self.edge_ids + self.num_edges]),
            weight=self.weight.repeat(2),
            looped=_LoopedPattern(
                indptr=torch.cat([looped.indptr, looped.indptr[1:] + len(looped.indices)]),
                indices=torch.cat([looped.indices, looped.indices + columns]),
                rows=torch.cat([looped.rows, looped.rows + nodes]),
                entries=torch.cat(
                    [
                        torch.where(diagonal, looped.entries + entries, looped.entries),
                        torch.where(diagonal, looped.entries + nodes_before, looped.entries)
                        + entries,
                    ]
                ),
            ),
            self_weight=None if self.self_weight is None else self.self_weight.repeat(2),
        )

    def with_weight(self, weight: Tensor) -> "Adjacency":
        """Returns the same pattern with other weights."""
        return replace(self, weight=weight)

    def edge_index(self) -> Tensor:
        """Returns the present edges, both directions, ``[2, entries]``; for PyG's layers."""
        return self._edge_index(self.weight != 0)

    def weighted_edge_index(self) -> tuple[Tensor, Tensor]:
        """Returns the present edges and their weights, ``[entries]``."""
        present = self.weight != 0
        return self._edge_index(present), self.weight[present]

    def _edge_index(self, present: Tensor) -> Tensor:
        nodes = torch.arange(self.num_nodes, device=self.indices.device)
        rows = torch.repeat_interleave(nodes, self.indptr.diff(), output_size=len(self.indices))
        return torch.stack([self.indices[present], rows[present]])

    @cached_property
    def inverse_degree(self) -> Tensor:
        """Diagonal of the inverse degree matrix of A + I, ``[num_nodes, 1]``."""
        ones = self.weight.new_ones(self.num_nodes, 1)
        own = 1 if self.self_weight is None else self.self_weight[:, None]
        return 1 / (csr_matmul(self.indptr, self.indices, self.weight, ones) + own)

    @cached_property
    def looped_weight(self) -> Tensor:
        """Weights of the entries of A + I, in the order of `looped`."""
        own = self.weight.new_ones(1) if self.self_weight is None else self.self_weight
        return torch.cat([self.weight, own])[self.looped.entries]

    def pool(self, h: Tensor) -> Tensor:
        """Returns Â h as one sparse product, whose values include the degrees."""
        return csr_matmul(self.looped.indptr, self.looped.indices, self._mean_weight, h)

    def pool_transposed(self, h: Tensor) -> Tensor:
        """Returns Âᵀ h."""
        return csr_matmul(self.looped.indptr, self.looped.indices, self._transposed_weight, h)

    def pool_rows(self, h: Tensor, rows: Tensor) -> Tensor:
        """Returns some rows of Â h, on a CPU; differentiable."""
        return cast("Tensor", _MeanPoolRows.apply(h, self, rows))  # type: ignore[no-untyped-call]

    @cached_property
    def _mean_weight(self) -> Tensor:
        return self.looped_weight * self.inverse_degree[self.looped.rows, 0]

    @cached_property
    def _transposed_weight(self) -> Tensor:
        return self.looped_weight * self.inverse_degree[self.looped.indices, 0]


def self_weights(indptr: Tensor, weight: Tensor) -> Tensor:
    """Returns the mean weight of each node's edges, ``[num_nodes]``; 1 for a node without edges."""
    sums = torch.segment_reduce(weight, "sum", offsets=indptr, axis=0)
    degree = indptr.diff()
    return torch.where(degree > 0, sums / degree.clamp(min=1), 1)


class _MeanPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, adjacency: Adjacency, elu: bool) -> Tensor:
        ctx.adjacency = adjacency
        pooled = adjacency.pool(h)
        if elu:
            ctx.save_for_backward(elu_(pooled))
        return pooled

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        adjacency: Adjacency = ctx.adjacency
        for pooled in ctx.saved_tensors:  # one if there is an ELU, else none
            inner = empty(grad.shape, grad)
            # The derivative follows from the result: σ' = σ + 1 below zero.
            torch.ops.aten.elu_backward.grad_input(
                grad, 1.0, 1.0, 1.0, True, pooled, grad_input=inner
            )
            grad = inner
        return adjacency.pool_transposed(grad), None, None


def mean_pool(h: Tensor, adjacency: Adjacency) -> Tensor:
    r"""Returns :math:`\hat A H`: each node's mean over itself and its neighbours.

    Args:
        h: ``[num_nodes, d]``.
        adjacency: symmetric; no gradient flows into its weights.
    """
    return cast("Tensor", _MeanPool.apply(h, adjacency, False))  # type: ignore[no-untyped-call]


def entries_of_rows(indptr: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns pointers of some rows of a CSR, and the row and place of each of their entries."""
    counts = indptr.diff()[rows]
    pointers = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    of_entry = torch.repeat_interleave(torch.arange(len(rows)), counts)
    places = torch.arange(len(of_entry)) + (indptr[rows] - pointers[:-1])[of_entry]
    return pointers, of_entry, places


class _MeanPoolRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, adjacency: Adjacency, rows: Tensor) -> Tensor:
        indptr, of_entry, places = entries_of_rows(adjacency.looped.indptr, rows)
        indices = adjacency.looped.indices[places]
        values = adjacency.looped_weight[places] * adjacency.inverse_degree[rows, 0][of_entry]
        ctx.entries, ctx.num_nodes = (of_entry, indices, values), len(h)
        return csr_matmul(indptr, indices, values, h)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        of_entry, indices, values = ctx.entries
        order = indices.argsort(stable=True)  # by column: the transposed matrix
        counts = torch.bincount(indices, minlength=ctx.num_nodes)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return csr_matmul(indptr, of_entry[order], values[order], grad), None, None


def mean_pool_rows(h: Tensor, adjacency: Adjacency, rows: Tensor) -> Tensor:
    r"""Returns some rows of :math:`\hat A H`, ``[len(rows), d]``, on a CPU.

    Its cost, forward and backward, is that of the entries of these rows.

    Args:
        h: ``[num_nodes, d]``.
        adjacency: symmetric; no gradient flows into its weights.
        rows: numbers of nodes.
    """
    return adjacency.pool_rows(h, rows)


def mean_pool_elu(h: Tensor, adjacency: Adjacency) -> Tensor:
    r"""Returns :math:`\mathrm{ELU}(\hat A H)`, with the arguments of `mean_pool`."""
    return cast("Tensor", _MeanPool.apply(h, adjacency, True))  # type: ignore[no-untyped-call]
