r"""Some rows of an adjacency, for a process that encodes these nodes and no others.

Mean pooling of own rows needs the rows of their neighbours, which other processes hold. So it first
gathers the table that is pooled; the columns of the pattern are places in the gathered table. The
backward pass does the same, since the pattern is symmetric: own rows of :math:`\hat A^\top G` are
own rows of A + I times the gathered :math:`\check D^{-1} G`. Each sum has the terms and the order
that it has in one process.

Wide tables are gathered and pooled in slabs of columns. Then what a process holds of the others'
rows has a bound, and is gone after the product.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, Self, cast

import numpy as np
import torch
from torch import Tensor

from graphcl.arrays import blocks
from graphcl.kernels.adjacency import (
    Adjacency,
    Csr,
    IntArray,
    Pattern,
    csr_matmul,
    self_weights,
)
from graphcl.kernels.buffers import empty

SLAB_ELEMENTS = 1 << 21  # gathered at a time: 8 MB
LEAST_WIDTH = 16  # columns of a slab; a row of it is one line of a cache


class Gathering(Protocol):
    """How the rows of all processes, of two copies of a graph, are put together."""

    @property
    def height(self) -> int:
        """How far a node's place in the second copy is from its place in the first."""

    @property
    def places(self) -> int:
        """How many places the gathered table has."""

    def place(self, nodes: IntArray) -> IntArray:
        """Returns the place of each node in the first copy; larger nodes have larger places."""

    def gather(self, rows: Tensor) -> Tensor:
        """Returns the gathered table; each process passes its rows of both copies."""


class BatchRows(NamedTuple):
    """The nodes of a batch, over all processes; the last layer is computed for these alone.

    Attributes:
        gather: takes own rows of the batch, of both copies, and returns those of all processes.
        row: the row of each place in what `gather` returns, ``[places]``; -1 outside of the batch.
        number: the number of each place's node in the batch, ``[places]``.
    """

    gather: Callable[[Tensor], Tensor]
    row: Tensor
    number: Tensor


@dataclass(frozen=True)
class AdjacencyRows(Adjacency):
    """Own rows of an adjacency, with the columns of all nodes.

    The attributes are those of an `Adjacency`, for own rows; columns are places in what `gathering`
    gathers. Drawing views and mean pooling work as on a whole adjacency; lists of edges do not.

    Attributes:
        edges: number of undirected edges of the whole graph.
        gathering: puts the rows of all processes together.
        batch: the nodes that `pool_rows` is for.
    """

    edges: int = field(kw_only=True)
    gathering: Gathering = field(kw_only=True)
    batch: BatchRows | None = field(default=None, kw_only=True)

    @classmethod
    def two_copies(
        cls,
        indptr: IntArray,
        indices: IntArray,
        edge_weight: Any = None,
        *,
        rows: slice,
        gathering: Gathering,
        device: torch.device,
    ) -> Self:
        """Builds own rows of two copies of a graph, side by side, from its sorted CSR arrays.

        The arrays are those of the whole graph. They may be mapped: what is copied is own rows, and
        two numbers per node for a while.
        """
        begin, end = int(indptr[rows.start]), int(indptr[rows.stop])
        own_indptr = np.asarray(indptr[rows.start : rows.stop + 1], dtype=np.int64) - begin
        columns = np.asarray(indices[begin:end], dtype=np.int64)
        weighted = edge_weight is not None
        weight, self_weight = torch.ones(len(columns)), None
        if weighted:
            weight = torch.tensor(edge_weight[begin:end], dtype=torch.float32)
            self_weight = self_weights(torch.from_numpy(own_indptr), weight).to(device)

        def index(array: Any) -> Tensor:
            return torch.tensor(array, device=device, dtype=torch.int64)

        pattern = Pattern(
            index(own_indptr),
            index(gathering.place(columns)),
            gathering.places,
            weighted=weighted,
            diagonal=index(gathering.place(np.arange(rows.start, rows.stop))),
        )
        one = cls(
            pattern,
            weight.to(device),
            index(edge_numbers(indptr, indices, rows)),
            self_weight,
            edges=len(indices) // 2,
            gathering=gathering,
        )
        both = one._twice(gathering.height, len(own_indptr) - 1)
        pattern = replace(both.pattern, senders=gathering.places)
        return replace(both, pattern=pattern, edges=2 * one.edges)

    @property
    def num_edges(self) -> int:
        """Number of undirected edges of the whole graph, dropped ones included."""
        return self.edges

    def pool(self, h: Tensor) -> Tensor:
        """Returns own rows of Â H from own rows of H; all processes call it together."""
        return self._gathered_product(self._mean_weight, h)

    def pool_transposed(self, h: Tensor) -> Tensor:
        """Returns own rows of Âᵀ H from own rows of H; all processes call it together."""
        # Each process scales its rows before they are gathered, so nobody needs others' degrees.
        return self._gathered_product(self.looped_weight, h, self.inverse_degree)

    def pool_rows(self, h: Tensor, rows: Tensor) -> Tensor:
        """Returns those of own rows of Â H that are in `batch`; all processes call it together."""
        return cast("Tensor", _PoolRows.apply(h, self, rows))  # type: ignore[no-untyped-call]

    def _gathered_product(self, values: Tensor, h: Tensor, scale: Tensor | None = None) -> Tensor:
        return self.product(self.looped.indptr, self.looped.indices, values, h, scale)

    def product(
        self,
        indptr: Tensor,
        indices: Tensor,
        values: Tensor,
        h: Tensor,
        scale: Tensor | None = None,
    ) -> Tensor:
        """Returns a CSR, whose columns are places, times the gathered table."""
        out = empty((len(indptr) - 1, h.shape[1]), h)
        width = max(LEAST_WIDTH, SLAB_ELEMENTS // self.gathering.places)
        for slab in blocks(h.shape[1], width):
            part = h[:, slab] if scale is None else h[:, slab] * scale
            table = self.gathering.gather(part)
            product = csr_matmul(indptr, indices, values, table)
            if width >= h.shape[1]:
                return product
            out[:, slab] = product
        return out


class _PoolRows(torch.autograd.Function):
    """Own rows of a batch; the backward pass gathers the batch's gradients, not all nodes'."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, adjacency: AdjacencyRows, rows: Tensor) -> Tensor:
        looped = adjacency.looped
        csr, of_entry = Csr(looped.indptr, looped.indices).rows(rows)
        values = adjacency.looped_weight[csr.entries] * adjacency.inverse_degree[rows, 0][of_entry]
        ctx.adjacency, ctx.rows, ctx.num_rows = adjacency, rows, len(h)
        return adjacency.product(csr.indptr, csr.indices, values, h)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        adjacency: AdjacencyRows = ctx.adjacency
        looped, batch = adjacency.looped, cast("BatchRows", adjacency.batch)
        table = batch.gather(grad * adjacency.inverse_degree[ctx.rows])
        # Entries of own rows whose columns are in the batch, in the order that one process sums.
        kept = (batch.row[looped.indices] >= 0).nonzero()[:, 0]
        rows, columns = looped.rows[kept], looped.indices[kept]
        order = (rows * len(table) + batch.number[columns]).argsort()
        counts = torch.bincount(rows, minlength=ctx.num_rows)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        values = adjacency.looped_weight[kept][order]
        return csr_matmul(indptr, batch.row[columns[order]], values, table), None, None


def edge_numbers(indptr: IntArray, indices: IntArray, rows: slice) -> IntArray:
    """Returns the number of the undirected edge behind each entry of some rows of a sorted CSR.

    The numbers are those of `Adjacency.edge_ids`: edges are counted in the order of their entries
    above the diagonal.
    """
    nodes = np.arange(len(indptr) - 1)
    smaller = _how_many_below(indptr, indices, nodes, nodes)
    edges_before = indptr[:-1] - (np.cumsum(smaller) - smaller)
    own = np.repeat(nodes[rows], np.diff(indptr)[rows])
    columns = indices[int(indptr[rows.start]) : int(indptr[rows.stop])]
    low, high = np.minimum(own, columns), np.maximum(own, columns)
    return np.asarray(
        edges_before[low] + _how_many_below(indptr, indices, low, high) - smaller[low]
    )


def _how_many_below(
    indptr: IntArray, indices: IntArray, rows: IntArray, values: IntArray
) -> IntArray:
    """Returns how many entries of each row are below the value beside it; all rows at once."""
    low, high = indptr[rows].copy(), indptr[rows + 1].copy()
    while (searching := low < high).any():
        middle = np.where(searching, (low + high) // 2, 0)
        below = indices[middle] < values
        low = np.where(searching & below, middle + 1, low)
        high = np.where(searching & ~below, middle, high)
    return np.asarray(low - indptr[rows])
