r"""The edges of a relation on a device, and the mean of each receiver over its senders.

The mean of a receiver u over its senders v, with weights w, is

.. math:: \bar h_u = \frac{s_u h_u + \sum_v w_{uv} h_v}{s_u + \sum_v w_{uv}} .

Within one type of nodes the node itself is in its mean, as in the paper. Its self-weight
:math:`s_u` is 1, so that of an undirected relation

.. math:: \hat A = \check D^{-1} (A + I), \qquad \hat A^\top = (A + I)\, \check D^{-1} .

Its adjacency is symmetric, and stays symmetric if both directions of an edge are dropped together.
So the backward pass needs no transposed copy of the pattern, only other values. Of any other
relation the same edges are kept by target and by source (`Adjacency.transposed`). Between two types
:math:`s_u = 0`, and a node without neighbours has the mean 0.

For weighted edges, the self-weight of a node is the mean weight of its edges,

.. math:: s_u = \frac{1}{d_u} \sum_v w_{uv} .

A node makes up 1 / (d + 1) of its mean, as without weights, and its neighbours the rest, in
proportion to their weights. Only ratios matter: weights in other units give the same result.
Dropping an edge does not change the self-weights. If every weight is 1, the result is bit-identical
to that of an unweighted graph.

Differs from the paper: its graphs have one type of nodes and one undirected relation without
weights.
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

from graphcl.kernels.buffers import borrow, empty
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


class Csr(NamedTuple):
    """Entries by row; `entries` are their numbers elsewhere, None if they are in that order."""

    indptr: Tensor
    indices: Tensor
    entries: Tensor | None = None

    def rows(self, rows: Tensor) -> tuple["Csr", Tensor]:
        """Returns the entries of some rows, and the row of each entry among them."""
        counts = self.indptr[rows + 1] - self.indptr[rows]
        pointers = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        of_entry = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), counts)
        places = torch.arange(len(of_entry), device=rows.device)
        places += (self.indptr[rows] - pointers[:-1])[of_entry]
        entries = places if self.entries is None else self.entries[places]
        return Csr(pointers, self.indices[places], entries), of_entry

    def block(self, rows: slice) -> tuple["Csr", slice]:
        """Returns the entries of a range of rows, and which ones these are."""
        indptr = self.indptr[rows.start : rows.stop + 1]
        span = slice(int(indptr[0]), int(indptr[-1]))
        entries = None if self.entries is None else self.entries[span]
        return Csr(indptr - span.start, self.indices[span], entries), span


class _LoopedPattern(NamedTuple):
    """CSR pattern of A + I; `entries` gives the position of its values in [weights, self-weights].

    Without self-weights, the whole diagonal has the position of a single 1 just after the weights.
    With self-weights, the diagonal entry of node u has the position u places further on. Between
    two types there is no diagonal.
    """

    indptr: Tensor
    indices: Tensor
    rows: Tensor
    entries: Tensor


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where the entries of an adjacency are; all views of a graph share it.

    Attributes:
        indptr: row pointers, ``[receivers + 1]``.
        indices: column indices, ``[entries]``, sorted in each row.
        senders: the number of columns.
        within: whether receivers and senders are the same nodes.
        weighted: whether each node has a self-weight of its own.
        diagonal: the column of each receiver itself, ascending; None: its number.
    """

    indptr: Tensor
    indices: Tensor
    senders: int
    within: bool = True
    weighted: bool = False
    diagonal: Tensor | None = None

    @cached_property
    def looped(self) -> _LoopedPattern:
        """The pattern of A + I, which sampling does not need."""
        indptr, indices = self.indptr.cpu().numpy(), self.indices.cpu().numpy()
        rows, entries = np.arange(len(indptr) - 1), np.arange(len(indices))
        of_entry, device = np.repeat(rows, np.diff(indptr)), self.indptr.device
        parts: list[Any] = [indptr, indices, of_entry, entries]
        if self.within:
            # Each row's own node is inserted before its first larger neighbour: rows stay sorted.
            nodes = rows if self.diagonal is None else self.diagonal.cpu().numpy()
            smaller = np.bincount(of_entry[indices < nodes[of_entry]], minlength=len(rows))
            places, loops = indptr[:-1] + smaller, len(entries) + rows * self.weighted
            parts = [indptr + np.arange(len(indptr))]
            pairs = ((indices, nodes), (of_entry, rows), (entries, loops))
            parts += [np.insert(of_edges, places, of_loops) for of_edges, of_loops in pairs]
        return _LoopedPattern(*(torch.tensor(part, device=device) for part in parts))

    def twice(self, columns: int) -> "Pattern":
        """Returns two copies; the second has its columns `columns` further on."""
        own = self.diagonal
        return replace(
            self,
            indptr=torch.cat([self.indptr, self.indptr[1:] + len(self.indices)]),
            indices=torch.cat([self.indices, self.indices + columns]),
            senders=self.senders + columns,
            diagonal=None if own is None else torch.cat([own, own + columns]),
        )


class _Back(NamedTuple):
    """The same edges from the other end.

    Attributes:
        pattern: their pattern.
        entries: the number of each entry.
        inverse: the place of each number.
        self_weight: of those who receive then; None if all are 1 or 0.
    """

    pattern: Pattern
    entries: Tensor
    inverse: Tensor
    self_weight: Tensor | None


@dataclass(frozen=True)
class Adjacency:
    """The edges of a relation on one device, by receiver, with a weight per entry.

    An entry of weight 0 is an absent edge. A view keeps the pattern of its graph and only changes
    the weights, so shapes never change and nothing is rebuilt.

    Attributes:
        pattern: where the entries are.
        weight: weight of each entry, ``[entries]``.
        edge_ids: number of the undirected edge behind each entry, ``[entries]``; both of its
            directions have one weight. None: each entry is an edge by itself.
        self_weight: self-weight of each receiver, ``[receivers]``; None if all are 1, or 0 between
            two types.
        features: a vector for each edge, or None.
        entries: the row of `features` of each entry, and its number if edges are drawn; None if
            they are in order.
        back: the same edges from the other end; None if that is the same, as of undirected edges.
    """

    pattern: Pattern
    weight: Tensor
    edge_ids: Tensor | None = None
    self_weight: Tensor | None = None
    features: Tensor | None = None
    entries: Tensor | None = None
    back: _Back | None = None

    @classmethod
    def from_csr(
        cls,
        indptr: Any,
        indices: Any,
        edge_weight: Any = None,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        edge_ids: Any = None,
        senders: int | None = None,
        directed: bool = False,
        edge_features: Any = None,
    ) -> "Adjacency":
        """Builds the adjacency of a relation from its sorted CSR arrays, by receiver.

        Args:
            indptr: row pointers.
            indices: the sender of each entry.
            edge_weight: of each entry; None: all are 1.
            device: where it will be.
            dtype: of weights and features.
            edge_ids: of undirected edges, the number of the edge behind each entry; None counts
                them, if no two edges have the same ends.
            senders: the number of senders, if they are of another type than receivers.
            directed: an edge counts in one direction.
            edge_features: a vector for each entry.
        """
        within, numbers = senders is None, np.arange(len(indices))
        receivers = len(indptr) - 1
        shape = (receivers, receivers if senders is None else senders)
        symmetric = within and not directed

        def index(array: Any) -> Tensor:
            found = np.asarray(array)
            if device.type == "cpu" and found.dtype == np.int64:
                return borrow(found)  # a graph's arrays are not copied
            return torch.tensor(found, dtype=torch.int64, device=device)

        pattern = Pattern(
            index(indptr), index(indices), shape[1], within, within and edge_weight is not None
        )
        weight, back, own = torch.ones(len(indices), dtype=dtype), None, None
        if edge_weight is not None:
            weight = torch.tensor(np.asarray(edge_weight), dtype=dtype)
            own = self_weights(torch.tensor(indptr), weight).to(device) if within else None
        if not symmetric or edge_ids is None:
            columns = scipy.sparse.csr_array((numbers, indices, indptr), shape=shape).tocsc()
        if not symmetric:
            other, entries = None, index(columns.data.astype(np.int64))
            pointers = columns.indptr.astype(np.int64)
            if own is not None:
                values = weight[torch.from_numpy(columns.data)]
                other = self_weights(torch.from_numpy(pointers), values).to(device)
            receiving = index(columns.indices.astype(np.int64))
            there = replace(pattern, indptr=index(pointers), indices=receiving, senders=receivers)
            back = _Back(there, entries, entries.argsort(), other)
        elif edge_ids is None:
            # In a symmetric pattern, the k-th entry in column order mirrors the k-th in row order.
            # The entry of a pair that comes first in row order gets the edge's number, and both
            # share it.
            mirror = columns.data
            edge_ids = (np.cumsum(numbers <= mirror) - 1)[np.minimum(numbers, mirror)]
        return cls(
            pattern,
            weight.to(device),
            index(np.asarray(edge_ids, np.int64)) if symmetric else None,
            own,
            None
            if edge_features is None
            else torch.as_tensor(edge_features, dtype=dtype, device=device),
            back=back,
        )

    @property
    def indptr(self) -> Tensor:
        """Row pointers, ``[receivers + 1]``."""
        return self.pattern.indptr

    @property
    def indices(self) -> Tensor:
        """Column indices, ``[entries]``: each undirected edge twice."""
        return self.pattern.indices

    @property
    def looped(self) -> _LoopedPattern:
        """The pattern of A + I, which never changes."""
        return self.pattern.looped

    @property
    def within(self) -> bool:
        """Whether receivers and senders are the same nodes."""
        return self.pattern.within

    @property
    def num_nodes(self) -> int:
        """Number of receivers."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of edges, dropped ones included; each undirected edge counts once."""
        return len(self.indices) if self.edge_ids is None else len(self.indices) // 2

    @property
    def transposed(self) -> "Adjacency":
        """The same edges, whose senders receive; itself if edges are undirected."""
        return self if self.back is None else self._transposed

    @cached_property
    def _transposed(self) -> "Adjacency":
        assert self.back is not None
        pattern, entries, inverse, own = self.back
        return replace(
            self,
            pattern=pattern,
            weight=self.weight[entries],
            self_weight=own,
            entries=entries if self.entries is None else None,
            back=_Back(self.pattern, inverse, entries, self.self_weight),
        )

    def toward(self, backwards: bool) -> "Adjacency":
        """Returns this direction, or the other one."""
        return self.transposed if backwards else self

    def twice(self) -> Self:
        """Returns two copies of the graph side by side, with no edge between them."""
        return self._twice(self.pattern.senders, self.num_nodes)

    def _twice(self, senders: int, receivers: int) -> Self:
        """Returns two copies; the nodes of the second are `senders`, or `receivers`, further on."""
        back, count = self.back, len(self.weight)
        if back is not None:
            back = _Back(
                back.pattern.twice(receivers),
                torch.cat([back.entries, back.entries + count]),
                torch.cat([back.inverse, back.inverse + count]),
                None if back.self_weight is None else back.self_weight.repeat(2),
            )
        edges = self.edge_ids
        return replace(
            self,
            pattern=self.pattern.twice(senders),
            weight=self.weight.repeat(2),
            edge_ids=None if edges is None else torch.cat([edges, edges + self.num_edges]),
            self_weight=None if self.self_weight is None else self.self_weight.repeat(2),
            features=None if self.features is None else self.features.repeat(2, 1),
            back=back,
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
        """One over each receiver's total weight, ``[receivers, 1]``; 0 where that is 0."""
        ones = self.weight.new_ones(self.pattern.senders, 1)
        own = float(self.within) if self.self_weight is None else self.self_weight[:, None]
        total = csr_matmul(self.indptr, self.indices, self.weight, ones) + own
        if self.within:
            return 1 / total
        return torch.where(total > 0, 1 / torch.where(total > 0, total, 1), 0)

    @cached_property
    def looped_weight(self) -> Tensor:
        """Weights of the entries of A + I, in the order of `looped`."""
        return self._looped_weight(self.self_weight)

    def _looped_weight(self, own: Tensor | None) -> Tensor:
        if not self.within:
            return self.weight
        own = self.weight.new_ones(1) if own is None else own
        return torch.cat([self.weight, own])[self.looped.entries]

    def pool(self, h: Tensor) -> Tensor:
        """Returns Â h as one sparse product, whose values include the degrees."""
        return csr_matmul(self.looped.indptr, self.looped.indices, self._mean_weight, h)

    def pool_transposed(self, h: Tensor) -> Tensor:
        """Returns Âᵀ h."""
        looped = self.transposed.looped
        return csr_matmul(looped.indptr, looped.indices, self._transposed_weight, h)

    def pool_rows(self, h: Tensor, rows: Tensor) -> Tensor:
        """Returns some rows of Â h, ``[len(rows), d]``, on a CPU; differentiable.

        Its cost, forward and backward, is that of the entries of these rows. No gradient flows into
        the weights.
        """
        return cast("Tensor", _MeanPoolRows.apply(h, self, rows))  # type: ignore[no-untyped-call]

    @cached_property
    def _mean_weight(self) -> Tensor:
        return self.looped_weight * self.inverse_degree[self.looped.rows, 0]

    @cached_property
    def _transposed_weight(self) -> Tensor:
        # The diagonal has the self-weights of this direction's receivers, in both.
        other = self.transposed
        values = other._looped_weight(self.self_weight)
        return values * self.inverse_degree[other.looped.indices, 0]

    def edge_mean(self, rows: Tensor | None = None) -> Tensor:
        """Returns the mean of the edges' vectors, ``[receivers, features]``, or of some rows.

        The node itself, within a type, counts with its self-weight and a vector of zeros.
        """
        assert self.features is not None
        csr = Csr(self.indptr, self.indices, self.entries)
        weight, inverse = self.weight, self.inverse_degree
        if rows is not None:
            places = Csr(self.indptr, self.indices).rows(rows)[0].entries
            csr, weight, inverse = csr.rows(rows)[0], weight[places], inverse[rows]
        entries = csr.entries
        if entries is None:
            entries = torch.arange(len(csr.indices), device=csr.indices.device)
        return csr_matmul(csr.indptr, entries, weight, self.features) * inverse


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
    r"""Returns :math:`\hat A H`: each receiver's mean over its senders and, within a type, itself.

    Args:
        h: the senders' rows, ``[senders, d]``.
        adjacency: no gradient flows into its weights.
    """
    return cast("Tensor", _MeanPool.apply(h, adjacency, False))  # type: ignore[no-untyped-call]


class _MeanPoolRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, adjacency: Adjacency, rows: Tensor) -> Tensor:
        looped = adjacency.looped
        csr, of_entry = Csr(looped.indptr, looped.indices).rows(rows)
        values = adjacency.looped_weight[csr.entries] * adjacency.inverse_degree[rows, 0][of_entry]
        ctx.entries, ctx.num_nodes = (of_entry, csr.indices, values), len(h)
        return csr_matmul(csr.indptr, csr.indices, values, h)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        of_entry, indices, values = ctx.entries
        order = indices.argsort(stable=True)  # by column: the transposed matrix
        counts = torch.bincount(indices, minlength=ctx.num_nodes)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return csr_matmul(indptr, of_entry[order], values[order], grad), None, None


def mean_pool_elu(h: Tensor, adjacency: Adjacency) -> Tensor:
    r"""Returns :math:`\mathrm{ELU}(\hat A H)`, with the arguments of `mean_pool`."""
    return cast("Tensor", _MeanPool.apply(h, adjacency, True))  # type: ignore[no-untyped-call]
