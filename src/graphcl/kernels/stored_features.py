r"""Feature tables in the type they have on disk, read directly by the loops that use them.

Row u of the features is :math:`x_u = v_u / d_u` for stored values v (float32 or float16) and an
optional divisor d per row. Nothing is converted in advance, so a compiled loop that gathers rows of
float16 reads two bytes per value instead of four.
Rows are divided, not multiplied by 1 / d, because rows in memory are: both have the same bits.
Where a `ColumnTransform` is given, it is applied to x as rows are read.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import njit
from torch import Tensor

from graphcl.kernels.columns import ColumnTransform, as_float, row_of, size_of_rows
from graphcl.kernels.parallel import parallel, prange, serial

_BLOCK_ELEMENTS = 1 << 23  # converted at a time: 32 MB
_FEW_NODES, _FEW_NEIGHBOURS = 32, 4096  # up to these, a plain loop needs a millisecond
FEW = 64  # rows whose means take less time on one core than a second one takes to wake up


@dataclass(frozen=True)
class StoredFeatures:
    """A feature table on a CPU, which compiled loops read without conversion.

    Attributes:
        values: v, ``[num_nodes, P]``: float32 or float16.
        row_divisor: d, ``[num_nodes]`` float32; None means 1.
        transform: applied to the rows; None leaves them.
        word_divisor: the lengths of the rows' words, ``[num_nodes]``, if the transform has words.
    """

    values: Tensor
    row_divisor: Tensor | None = None
    transform: ColumnTransform | None = None
    word_divisor: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """``(num_nodes, P)``."""
        return (self.values.shape[0], self.values.shape[1])

    def rows(self, rows: Any) -> Tensor:
        """Returns some rows in float32."""
        block = self._untransformed(rows)
        if self.transform is None:
            return block
        divisors = torch.ones(1) if self.word_divisor is None else self.word_divisor[rows]
        return self.transform(block, divisors)

    def _untransformed(self, rows: Any) -> Tensor:
        block = self.values[rows].float()
        if self.row_divisor is not None:
            block = block / self.row_divisor[rows][:, None]
        return block

    def to_dense(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns the whole table on a device, converted in blocks of rows."""
        dense = torch.empty(self.shape, device=device, dtype=dtype)
        for block in self._blocks():
            dense[block] = self.rows(block).to(device)
        return dense

    def with_scaled_rows(self, scaling: str) -> "StoredFeatures":
        """Returns the table with each row divided by its size; see `size_of_rows`."""
        divisor = torch.empty(self.shape[0])
        for block in self._blocks():
            divisor[block] = size_of_rows(self.rows(block), scaling)
        return StoredFeatures(self.values, divisor)

    def with_transform(self, transform: ColumnTransform) -> "StoredFeatures":
        """Returns the table with its columns transformed; words need one pass over it."""
        divisor = None
        if transform.has_words:
            divisor = torch.empty(self.shape[0])
            for block in self._blocks():
                divisor[block] = transform.divisors(self._untransformed(block))
        return replace(self, transform=transform, word_divisor=divisor)

    def _blocks(self) -> list[slice]:
        height = max(1, _BLOCK_ELEMENTS // self.shape[1])
        return [slice(start, start + height) for start in range(0, self.shape[0], height)]

    @property
    def is_plain(self) -> bool:
        """Whether rows are float32 and mean what they say: nothing is scaled or transformed."""
        changed = self.row_divisor is not None or self.transform is not None
        return self.values.dtype == torch.float32 and not changed

    def arrays(self) -> tuple[Any, npt.NDArray[Any]]:
        """Returns values and row divisor for a compiled loop.

        Half-precision values are returned as 16-bit integers, which `as_float` reads. Without a
        divisor per row, its array is empty. With a transform, the first of the two is what
        `row_of` takes; the other changes nothing then.
        """
        values, none = self.values.numpy(), torch.empty(0).numpy()
        rows = none if self.row_divisor is None else self.row_divisor.numpy()
        bits = values.view(np.uint16) if values.dtype == np.float16 else values
        if self.transform is None:
            return bits, rows
        words = none if self.word_divisor is None else self.word_divisor.numpy()
        return self.transform.arrays(bits, rows, words), none


def mean_of_neighbourhoods(
    x: StoredFeatures,
    indptr: Tensor,
    indices: Tensor,
    nodes: Tensor,
    place: Tensor | None = None,
    *,
    within: bool = True,
) -> Tensor:
    r"""Returns some rows of :math:`\hat A X`, ``[len(nodes), P]`` in float32, on a CPU.

    Args:
        x: a table with the rows of all nodes, or of some.
        indptr: CSR row pointers of the graph.
        indices: CSR column indices.
        nodes: the nodes whose means are wanted.
        place: the row of each node of the graph in `x`; None if `x` has all nodes, in order.
        within: whether a node is in its own mean; between two types it is not, and the mean of a
            node without neighbours is 0.
    """
    out = torch.empty(len(nodes), x.shape[1])
    degrees = indptr[nodes + 1] - indptr[nodes]
    if x.is_plain and len(nodes) <= _FEW_NODES and int(degrees.sum()) <= _FEW_NEIGHBOURS:
        _plain_mean(x.values.numpy(), indptr, indices, nodes, place, within, out.numpy())
        return out
    places = torch.empty(0, dtype=torch.int64) if place is None else place
    loop = _mean_of_few if len(nodes) <= FEW else _mean
    graph = (indptr.numpy(), indices.numpy(), nodes.numpy(), places.numpy())
    loop(*x.arrays(), *graph, int(within), out.numpy())
    return out


def _plain_mean(
    values: npt.NDArray[Any],
    indptr: Tensor,
    indices: Tensor,
    nodes: Tensor,
    place: Tensor | None,
    within: bool,
    out: npt.NDArray[Any],
) -> None:
    """Computes the bits of `_mean` for a plain table: loading that takes half a second."""
    starts, ends = indptr[nodes].tolist(), indptr[nodes + 1].tolist()
    entries, places = indices.numpy(), None if place is None else place.numpy()
    for row, (node, start, end) in enumerate(zip(nodes.tolist(), starts, ends, strict=True)):
        members = np.empty(end - start + within, np.int64)
        members[within:] = entries[start:end]
        if within:
            members[0] = node
        elif start == end:
            out[row] = 0
            continue
        where = members if places is None else places[members]
        # `accumulate` adds row by row, as the loop does; `sum` adds a single column in pairs.
        total = np.add.accumulate(values[where], axis=0)[-1]
        out[row] = total * (np.float32(1) / np.float32(len(members)))


@parallel
def _mean(  # type: ignore[no-untyped-def]
    values, row_divisor, indptr, indices, nodes, places, within, out
):
    for row in prange(nodes.shape[0]):
        _mean_of_one(values, row_divisor, indptr, indices, nodes[row], places, within, out[row])


@serial
def _mean_of_few(  # type: ignore[no-untyped-def]
    values, row_divisor, indptr, indices, nodes, places, within, out
):
    for row in range(nodes.shape[0]):
        _mean_of_one(values, row_divisor, indptr, indices, nodes[row], places, within, out[row])


@njit(error_model="numpy")
def _mean_of_one(  # type: ignore[no-untyped-def]
    values, row_divisor, indptr, indices, node, places, within, out
):
    width = out.shape[0]
    scaled, moved = row_divisor.shape[0] > 0, places.shape[0] > 0
    total, buffer = np.zeros(width, np.float32), np.empty(width, np.float32)
    # The first round, one before the row's entries, is for the node itself.
    for entry in range(indptr[node] - within, indptr[node + 1]):
        other = node if entry < indptr[node] else indices[entry]
        where = places[other] if moved else other
        divisor = row_divisor[where] if scaled else np.float32(1)
        features = row_of(values, where, buffer)
        for column in range(width):
            value = as_float(features[column])
            total[column] += value / divisor if scaled else value
    members = max(indptr[node + 1] - indptr[node] + within, 1)
    factor = np.float32(1) / np.float32(members)
    for column in range(width):
        out[column] = total[column] * factor
