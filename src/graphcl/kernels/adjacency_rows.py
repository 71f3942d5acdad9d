r"""Some rows of an adjacency, for a process that encodes these nodes and no others.

Mean pooling of own rows needs the rows of their neighbours, which other processes hold. So it first
gathers the table that is pooled; the columns of the pattern are places in the gathered table. The
backward pass does the same, since the pattern is symmetric: own rows of :math:`\hat A^\top G` are
own rows of A + I times the gathered :math:`\check D^{-1} G`. Each sum has the terms and the order
that it has in one process.

Wide tables are gathered and pooled in slabs of columns. Then what a process holds of the others'
rows has a bound, and is gone after the product.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from graphcl.kernels.adjacency import (
    Adjacency,
    IntArray,
    csr_matmul,
    looped_pattern,
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


@dataclass(frozen=True)
class AdjacencyRows(Adjacency):
    """Own rows of an adjacency, with the columns of all nodes.

    The attributes are those of an `Adjacency`, for own rows; columns are places in what `gathering`
    gathers. Drawing views and mean pooling work as on a whole adjacency; lists of edges do not.

    Attributes:
        edges: number of undirected edges of the whole graph.
        gathering: puts the rows of all processes together.
    """

    edges: int = field(kw_only=True)
    gathering: Gathering = field(kw_only=True)

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
        looped = looped_pattern(
            own_indptr, columns, first=rows.start, weighted=weighted, device=torch.device("cpu")
        )
        weight, self_weight = torch.ones(len(columns)), None
        if weighted:
            weight = torch.tensor(edge_weight[begin:end], dtype=torch.float32)
            self_weight = self_weights(torch.from_numpy(own_indptr), weight).to(device)

        def index(array: Any) -> Tensor:
            return torch.tensor(array, device=device, dtype=torch.int64)

        one = cls(
            indptr=index(own_indptr),
            indices=index(gathering.place(columns)),
            edge_ids=index(edge_numbers(indptr, indices, rows)),
            weight=weight.to(device),
            looped=looped._replace(
                indptr=looped.indptr.to(device),
                indices=index(gathering.place(looped.indices.numpy())),
                rows=looped.rows.to(device),
                entries=looped.entries.to(device),
            ),
            self_weight=self_weight,
            edges=len(indices) // 2,
            gathering=gathering,
        )
        return replace(one._twice(gathering.height), edges=2 * one.edges)

    @property
    def num_edges(self) -> int:
        """Number of undirected edges of the whole graph, dropped ones included."""
        return self.edges

    @cached_property
    def inverse_degree(self) -> Tensor:
        """Inverse degrees of own rows in A + I, ``[rows, 1]``."""
        ones = self.weight.new_ones(self.gathering.places, 1)
        own = 1 if self.self_weight is None else self.self_weight[:, None]
        return 1 / (csr_matmul(self.indptr, self.indices, self.weight, ones) + own)

    def pool(self, h: Tensor) -> Tensor:
        """Returns own rows of Â H from own rows of H; all processes call it together."""
        return self._gathered_product(self._mean_weight, h)

    def pool_transposed(self, h: Tensor) -> Tensor:
        """Returns own rows of Âᵀ H from own rows of H; all processes call it together."""
        # Each process scales its rows before they are gathered, so nobody needs others' degrees.
        return self._gathered_product(self.looped_weight, h, self.inverse_degree)

    def _gathered_product(self, values: Tensor, h: Tensor, scale: Tensor | None = None) -> Tensor:
        out = empty(tuple(h.shape), h)
        width = max(LEAST_WIDTH, SLAB_ELEMENTS // self.gathering.places)
        for start in range(0, h.shape[1], width):
            slab = slice(start, start + width)
            part = h[:, slab] if scale is None else h[:, slab] * scale
            table = self.gathering.gather(part)
            product = csr_matmul(self.looped.indptr, self.looped.indices, values, table)
            if width >= h.shape[1]:
                return product
            out[:, slab] = product
        return out


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
    numbers: IntArray = (
        edges_before[low] + _how_many_below(indptr, indices, low, high) - smaller[low]
    )
    return numbers


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
    found: IntArray = low - indptr[rows]
    return found
