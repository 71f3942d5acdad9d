r"""Attention and maxima over the neighbours of every node, on the edges of a whole graph.

With :math:`s_{ij} = q_i^\top k_j` for each entry (i, j) of a symmetric pattern and
:math:`w_{ij} = \mathrm{softmax}_j\, s_{ij}`, attention is :math:`o_i = \sum_j w_{ij} v_j`. Its
gradient needs only q, k, v, w and o:

.. math::
    \dot v_j = \sum_i w_{ij}\, \dot o_i, \quad
    \dot s_{ij} = w_{ij} (\dot o_i^\top v_j - \dot o_i^\top o_i), \quad
    \dot q_i = \sum_j \dot s_{ij} k_j, \quad \dot k_j = \sum_i \dot s_{ij} q_i .

So w, one number per edge and head, is the only table with a row per edge that is kept for the
backward pass.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from graphcl.kernels.adjacency import Adjacency, csr_matmul


@dataclass(frozen=True)
class EdgePattern:
    """The entries of A + I on one device, sorted by row and then by column.

    Attributes:
        indptr: row pointers, ``[num_nodes + 1]``.
        rows: row of each entry, ``[entries]``.
        columns: column of each entry.
        mirror: the entry (j, i) of each entry (i, j).
    """

    indptr: Tensor
    rows: Tensor
    columns: Tensor
    mirror: Tensor

    @classmethod
    def of(cls, adjacency: Adjacency) -> "EdgePattern":
        """Returns the pattern of a graph whose edges are all present."""
        looped, num_nodes = adjacency.looped, adjacency.num_nodes
        # The pattern is symmetric, so the k-th entry by (column, row) mirrors the k-th by (row,
        # column).
        mirror = torch.argsort(looped.indices * num_nodes + looped.rows)
        return cls(looped.indptr, looped.rows, looped.indices, mirror)

    @property
    def num_nodes(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1

    def sum_to_rows(self, values: Tensor) -> Tensor:
        """Returns the sum of ``values[entries, width]`` over the entries of each row."""
        if values.is_cuda:
            return values.new_zeros(self.num_nodes, values.shape[1]).index_add_(
                0, self.rows, values
            )
        # A product with the matrix whose row i has a 1 for each entry of row i: parallel on a CPU.
        order = torch.arange(len(self.rows))
        return csr_matmul(self.indptr, order, values.new_ones(len(order)), values)

    def sum_to_columns(self, values: Tensor) -> Tensor:
        """Returns the sum of ``values[entries, width]`` over the entries of each column."""
        if values.is_cuda:
            return values.new_zeros(self.num_nodes, values.shape[1]).index_add_(
                0, self.columns, values
            )
        return csr_matmul(self.indptr, self.mirror, values.new_ones(len(self.mirror)), values)

    def max_to_rows(self, values: Tensor) -> Tensor:
        """Returns the maximum of ``values[entries, width]`` over the entries of each row."""
        lowest = values.new_full((self.num_nodes, values.shape[1]), -torch.inf)
        index = self.rows[:, None].expand_as(values)
        return lowest.scatter_reduce_(0, index, values, "amax")


class _EdgeAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, pattern: EdgePattern) -> Tensor:
        rows, columns = pattern.rows, pattern.columns
        scores = (q.index_select(0, rows) * k.index_select(0, columns)).sum(2)
        # Softmax is the same for shifted scores; less the row's maximum, `exp` cannot overflow.
        weight = scores.sub_(pattern.max_to_rows(scores).index_select(0, rows)).exp_()
        weight /= pattern.sum_to_rows(weight).index_select(0, rows)
        around = weight[:, :, None] * v.index_select(0, columns)
        out = pattern.sum_to_rows(around.flatten(1)).view_as(v)
        ctx.save_for_backward(q, k, v, weight, out)
        ctx.pattern = pattern
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, weight, out = ctx.saved_tensors
        pattern: EdgePattern = ctx.pattern
        rows, columns = pattern.rows, pattern.columns
        arriving = grad.index_select(0, rows)
        inner = (arriving * v.index_select(0, columns)).sum(2)
        grad_scores = weight * (inner - (grad * out).sum(2).index_select(0, rows))
        grad_v = pattern.sum_to_columns((weight[:, :, None] * arriving).flatten(1))
        each = grad_scores[:, :, None]
        grad_q = pattern.sum_to_rows((each * k.index_select(0, columns)).flatten(1))
        grad_k = pattern.sum_to_columns((each * q.index_select(0, rows)).flatten(1))
        return grad_q.view_as(q), grad_k.view_as(k), grad_v.view_as(v), None


class _NeighbourMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, m: Tensor, pattern: EdgePattern) -> Tensor:
        out = pattern.max_to_rows(m.index_select(0, pattern.columns))
        ctx.save_for_backward(m, out)
        ctx.pattern = pattern
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        m, out = ctx.saved_tensors
        pattern: EdgePattern = ctx.pattern
        largest = m.index_select(0, pattern.columns) == out.index_select(0, pattern.rows)
        hit = largest.to(grad.dtype)
        # Equal maxima share the gradient; they are common because nodes have equal features.
        each = grad / pattern.sum_to_rows(hit)
        return pattern.sum_to_columns(hit * each.index_select(0, pattern.rows)), None


def edge_attention(q: Tensor, k: Tensor, v: Tensor, pattern: EdgePattern) -> Tensor:
    """Returns the attention of the module's docstring over each node and its neighbours.

    Queries `q` and keys `k` are ``[num_nodes, heads, d]``; values `v` and the result are
    ``[num_nodes, heads, d_v]``.
    """
    return cast("Tensor", _EdgeAttention.apply(q, k, v, pattern))  # type: ignore[no-untyped-call]


def neighbour_max(m: Tensor, pattern: EdgePattern) -> Tensor:
    """Returns the maximum of ``m[num_nodes, width]`` over each node and its neighbours."""
    return cast("Tensor", _NeighbourMax.apply(m, pattern))  # type: ignore[no-untyped-call]
