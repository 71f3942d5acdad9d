r"""A relation of a typed graph on a device, and the mean over it, in either direction.

The mean of a receiver u over its senders v, with weights w, is

.. math:: \bar h_u = \frac{s_u h_u + \sum_v w_{uv} h_v}{s_u + \sum_v w_{uv}} .

Within one type the node itself is in its mean, as in the paper: its self-weight :math:`s_u` is 1,
or the mean weight of its edges (`graphcl.kernels.adjacency`). So an undirected relation of one type
has the paper's :math:`\hat A`. Between two types :math:`s_u = 0`, and a node without neighbours has
the mean 0.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from graphcl.kernels.adjacency import csr_matmul, self_weights
from graphcl.kernels.buffers import borrow


class Csr(NamedTuple):
    """The entries of a relation by receiver; `entries` are their numbers, None if in order."""

    indptr: Tensor
    indices: Tensor
    entries: Tensor | None = None

    def rows(self, rows: Tensor) -> tuple["Csr", Tensor]:
        """Returns the entries of some receivers, and the row of each entry."""
        counts = self.indptr.diff()[rows]
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        numbers = torch.arange(len(rows), device=rows.device)
        of_entry = torch.repeat_interleave(numbers, counts)
        places = torch.arange(len(of_entry), device=rows.device)
        places += (self.indptr[rows] - indptr[:-1])[of_entry]
        entries = places if self.entries is None else self.entries[places]
        return Csr(indptr, self.indices[places], entries), of_entry

    def block(self, rows: slice) -> tuple["Csr", slice]:
        """Returns the entries of a range of receivers, and which ones these are."""
        indptr = self.indptr[rows.start : rows.stop + 1]
        span = slice(int(indptr[0]), int(indptr[-1]))
        entries = None if self.entries is None else self.entries[span]
        return Csr(indptr - span.start, self.indices[span], entries), span


@dataclass(frozen=True)
class RelationAdjacency:
    """The edges of a relation on one device; a view keeps the pattern and changes the weights.

    Attributes:
        by_target: the entries by target; their order is that of `weight`.
        by_source: the same entries by source.
        weight: of each entry; 0 is an absent edge.
        num_edges: how many edges there are; each undirected edge counts once.
        edge_ids: the number of the edge behind each entry; None if each has its own.
        within: whether source and target are one type.
        self_weight: of targets, and of sources, if edges are weighted within a type; else None.
        features: a vector for each entry, or None.
    """

    by_target: Csr
    by_source: Csr
    weight: Tensor
    num_edges: int
    edge_ids: Tensor | None = None
    within: bool = False
    self_weight: tuple[Tensor, Tensor] | None = None
    features: Tensor | None = None

    @classmethod
    def of(
        cls,
        indptr: Any,
        indices: Any,
        num_sources: int,
        *,
        edge_weight: Any = None,
        edge_features: Any = None,
        edge_ids: Any = None,
        within: bool,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> "RelationAdjacency":
        """Builds it from the arrays of a `graphcl.graphs.typed.Relation`."""

        def index(array: Any) -> Tensor:
            found = np.asarray(array)
            if device.type == "cpu" and found.dtype == np.int64:
                return borrow(found)  # a graph's arrays are not copied
            return torch.tensor(found, dtype=torch.int64, device=device)

        forward = Csr(index(indptr), index(indices))
        if edge_ids is None:
            numbers = np.arange(len(indices))
            shape = (len(indptr) - 1, num_sources)
            columns = scipy.sparse.csr_array((numbers, indices, indptr), shape=shape).tocsc()
            behind = (columns.indptr, columns.indices, columns.data)
            backward = Csr(*(index(part.astype(np.int64)) for part in behind))
        else:
            backward = forward  # symmetric, and both directions of an edge have one weight
        weight = torch.ones(len(indices), dtype=dtype, device=device)
        own = None
        if edge_weight is not None:
            weight = torch.tensor(np.asarray(edge_weight), dtype=dtype, device=device)
            if within:
                entries = backward.entries
                values = weight if entries is None else weight[entries]
                own = (
                    self_weights(forward.indptr, weight),
                    self_weights(backward.indptr, values),
                )
        features = None
        if edge_features is not None:
            features = torch.as_tensor(edge_features, dtype=dtype, device=device)
        edges = len(indices) if edge_ids is None else len(indices) // 2
        ids = None if edge_ids is None else index(edge_ids)
        return cls(forward, backward, weight, edges, ids, within, own, features)

    def with_weight(self, weight: Tensor) -> "RelationAdjacency":
        """Returns the same pattern with other weights."""
        return replace(self, weight=weight)

    def csr(self, backwards: bool) -> Csr:
        """Returns the entries by receiver: targets, or sources if it is read backwards."""
        return self.by_source if backwards else self.by_target

    @cached_property
    def _values(self) -> tuple[Tensor, Tensor]:
        entries = self.by_source.entries
        return self.weight, self.weight if entries is None else self.weight[entries]

    def values(self, backwards: bool) -> Tensor:
        """Returns the weights in the order of `csr`."""
        return self._values[backwards]

    def own_weight(self, backwards: bool) -> Tensor | float:
        """Returns the receivers' self-weights, ``[receivers, 1]`` or one number for all."""
        if not self.within:
            return 0.0
        return 1.0 if self.self_weight is None else self.self_weight[backwards][:, None]

    @cached_property
    def _inverse(self) -> tuple[Tensor, Tensor]:
        found = []
        for backwards in (False, True):
            csr = self.csr(backwards)
            sums = torch.segment_reduce(self.values(backwards), "sum", offsets=csr.indptr, axis=0)[
                :, None
            ]
            sums = sums + self.own_weight(backwards)
            found.append(torch.where(sums > 0, 1 / torch.where(sums > 0, sums, 1), 0))
        return found[0], found[1]

    def inverse(self, backwards: bool) -> Tensor:
        """Returns one over each receiver's total weight, ``[receivers, 1]``; 0 where that is 0."""
        return self._inverse[backwards]

    def edge_mean(self, backwards: bool, rows: Tensor | None = None) -> Tensor:
        """Returns the mean of the edges' vectors, ``[receivers, features]``.

        The node itself, within a type, counts with its self-weight and a vector of zeros.
        """
        assert self.features is not None
        csr, values = self.csr(backwards), self.values(backwards)
        inverse = self.inverse(backwards)
        if rows is not None:
            csr, values, inverse = csr.rows(rows)[0], self.weight, inverse[rows]
            assert csr.entries is not None
            values = values[csr.entries]
        entries = csr.entries
        if entries is None:
            entries = torch.arange(len(csr.indices), device=csr.indices.device)
        return csr_matmul(csr.indptr, entries, values, self.features) * inverse


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, relation: RelationAdjacency, backwards: bool) -> Tensor:
        ctx.relation, ctx.backwards = relation, backwards
        csr, own = relation.csr(backwards), relation.own_weight(backwards)
        mean = csr_matmul(csr.indptr, csr.indices, relation.values(backwards), h)
        if relation.within:
            mean += h * own
        return mean.mul_(relation.inverse(backwards))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        relation, backwards = ctx.relation, ctx.backwards
        grad = grad * relation.inverse(backwards)
        csr = relation.csr(not backwards)
        below = csr_matmul(csr.indptr, csr.indices, relation.values(not backwards), grad)
        if relation.within:
            below += grad * relation.own_weight(backwards)
        return below, None, None


class _MeanRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, relation: RelationAdjacency, backwards: bool, rows: Tensor
    ) -> Tensor:
        csr, of_entry = relation.csr(backwards).rows(rows)
        assert csr.entries is not None
        own, inverse = relation.own_weight(backwards), relation.inverse(backwards)[rows]
        own = own[rows] if isinstance(own, Tensor) else own
        values = relation.weight[csr.entries] * inverse[of_entry, 0]
        mean = csr_matmul(csr.indptr, csr.indices, values, h)
        if relation.within:
            mean += h[rows] * (own * inverse)
        ctx.entries, ctx.rows, ctx.senders = (of_entry, csr.indices, values), rows, len(h)
        ctx.own = own * inverse if relation.within else None
        return mean

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        of_entry, indices, values = ctx.entries
        order = indices.argsort(stable=True)  # by column: the transposed matrix
        counts = torch.bincount(indices, minlength=ctx.senders)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        below = csr_matmul(indptr, of_entry[order], values[order], grad)
        if ctx.own is not None:
            below.index_add_(0, ctx.rows, grad * ctx.own)
        return below, None, None, None


def relation_mean(
    h: Tensor, relation: RelationAdjacency, *, backwards: bool, rows: Tensor | None = None
) -> Tensor:
    """Returns the module's mean over a relation, ``[receivers, d]``; differentiable in `h`.

    Args:
        h: the rows of the senders; within one type they are the receivers too.
        relation: no gradient flows into its weights.
        backwards: sources receive from targets.
        rows: the receivers that are computed; None: all.
    """
    if rows is None:
        return cast("Tensor", _Mean.apply(h, relation, backwards))  # type: ignore[no-untyped-call]
    return cast("Tensor", _MeanRows.apply(h, relation, backwards, rows))  # type: ignore[no-untyped-call]
