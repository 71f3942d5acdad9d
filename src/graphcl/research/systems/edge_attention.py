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

The attention of a GAT has :math:`s_{ij} = \mathrm{LeakyReLU}(a_i + b_j)` instead, and drops some of
the weights: :math:`o_i = \sum_j m_{ij} w_{ij} v_j`. Its gradient is

.. math::
    \dot v_j = \sum_i m_{ij} w_{ij}\, \dot o_i, \quad
    \dot w_{ij} = m_{ij}\, \dot o_i^\top v_j, \quad
    \dot s_{ij} = w_{ij} \Big(\dot w_{ij} - \sum_k w_{ik} \dot w_{ik}\Big), \quad
    \dot a_i = \sum_j \dot s_{ij} s'_{ij}, \quad \dot b_j = \sum_i \dot s_{ij} s'_{ij} .
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from graphcl.kernels.adjacency import Adjacency, csr_matmul

SLOPE = 0.2  # of a GAT's LeakyReLU
_ENTRIES = 1 << 18  # of a table with a row per edge that is as wide as v


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


class _AdditiveAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, v: Tensor, kept: Tensor | None, pattern: EdgePattern
    ) -> Tensor:
        rows, columns = pattern.rows, pattern.columns
        scores = a.index_select(0, rows) + b.index_select(0, columns)
        slope = (scores > 0).to(scores.dtype).mul_(1 - SLOPE).add_(SLOPE)
        scores *= slope
        weight = scores.sub_(pattern.max_to_rows(scores).index_select(0, rows)).exp_()
        weight /= pattern.sum_to_rows(weight).index_select(0, rows)
        ctx.save_for_backward(v, weight, slope, kept)
        ctx.pattern = pattern
        return _per_head(pattern.indptr, columns, weight if kept is None else weight * kept, v)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        v, weight, slope, kept = ctx.saved_tensors
        pattern: EdgePattern = ctx.pattern
        used = weight if kept is None else weight * kept
        # By symmetry, row j of the transposed matrix has the entries (i, j), mirrored.
        mirrored = used.index_select(0, pattern.mirror)
        grad_v = _per_head(pattern.indptr, pattern.columns, mirrored, grad)
        grad_weight = torch.empty_like(weight)
        for start in range(0, len(weight), _ENTRIES):  # bounds the memory of the two gathers
            part = slice(start, start + _ENTRIES)
            arriving = grad.index_select(0, pattern.rows[part])
            around = v.index_select(0, pattern.columns[part])
            grad_weight[part] = (arriving * around).sum(2)
        if kept is not None:
            grad_weight *= kept
        inner = pattern.sum_to_rows(weight * grad_weight).index_select(0, pattern.rows)
        grad_scores = weight * (grad_weight - inner) * slope
        grad_a, grad_b = pattern.sum_to_rows(grad_scores), pattern.sum_to_columns(grad_scores)
        return grad_a, grad_b, grad_v, None, None


def _per_head(indptr: Tensor, indices: Tensor, weight: Tensor, v: Tensor) -> Tensor:
    """Returns the product of each head's sparse matrix and its values, ``[num_nodes, heads, d]``.

    Nothing with a row per edge that is as wide as `v` is made.
    """
    heads = [
        csr_matmul(indptr, indices, weight[:, head].contiguous(), v[:, head].contiguous())
        for head in range(v.shape[1])
    ]
    return torch.stack(heads, 1)


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


def additive_attention(
    a: Tensor, b: Tensor, v: Tensor, pattern: EdgePattern, kept: Tensor | None = None
) -> Tensor:
    """Returns the attention of a GAT over each node and its neighbours, ``[num_nodes, heads, d]``.

    Scores of the receiving node `a` and of its neighbours `b` are ``[num_nodes, heads]``, values
    `v` ``[num_nodes, heads, d]``. `kept`, ``[entries, heads]``, multiplies the weights: dropout.
    """
    return cast("Tensor", _AdditiveAttention.apply(a, b, v, kept, pattern))  # type: ignore[no-untyped-call]


def neighbour_max(m: Tensor, pattern: EdgePattern) -> Tensor:
    """Returns the maximum of ``m[num_nodes, width]`` over each node and its neighbours."""
    return cast("Tensor", _NeighbourMax.apply(m, pattern))  # type: ignore[no-untyped-call]
