r"""Feature tables in the type they have on disk, read directly by the loops that use them.

Row u of the features is :math:`x_u = v_u / d_u` for stored values v (float32 or float16) and an
optional divisor d per row. Nothing is converted in advance, so a compiled loop that gathers rows of
float16 reads two bytes per value instead of four.
Rows are divided, not multiplied by 1 / d, because rows in memory are: both have the same bits.
Where a `ColumnTransform` is given, it is applied to x as rows are read.

While rows are read, something may be done to each column. A value x of column c becomes
:math:`\mathrm{clip}((g(x) - s_c) \cdot f_c)`. For a column of words g divides by the length of the
row's words, the root of their sum of squares; for a column with a heavy tail :math:`g(x) =
\mathrm{sign}(x) \log(1 + |x| / u_c)`; for others g leaves x as it is.

`row_of` and `as_float` read stored rows and numbers inside compiled loops.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import njit, types
from numba.extending import overload
from torch import Tensor

from graphcl.kernels.parallel import parallel, prange, serial

Arrays = tuple[Any, ...]


@dataclass(frozen=True)
class ColumnTransform:
    """One number per column and part of the formula, ``[P]``, all on one device.

    Attributes:
        words: whether g divides by the length of the row's words; bool.
        unit: u, float32; 0 means no logarithm.
        shift: s, float32.
        factor: f, float32.
        limit: results are within plus and minus this, float32; infinite means no limit.
    """

    words: Tensor
    unit: Tensor
    shift: Tensor
    factor: Tensor
    limit: Tensor

    @property
    def has_words(self) -> bool:
        """Whether the lengths of the rows' words are needed."""
        return bool(self.words.any())

    @property
    def keeps_zeros(self) -> bool:
        """Whether a zero stays a zero in every column, so that a sparse table stays sparse."""
        return not bool(self.shift.any())

    def divisors(self, rows: Tensor) -> Tensor:
        """Returns the length of each row's words, or 1 for a row without words."""
        return size_of_rows(rows[:, self.words], "unit")

    def __call__(self, rows: Tensor, divisors: Tensor) -> Tensor:
        """Returns dense float32 rows ``[n, P]``, transformed; `divisors` is ``[n]``."""
        out = torch.where(self.words, rows / divisors[:, None], self._logarithm(rows, self.unit))
        return out.sub_(self.shift).mul_(self.factor).clamp_(-self.limit, self.limit)

    def entries(self, values: Tensor, columns: Tensor, divisors: Tensor) -> Tensor:
        """Returns the stored values of a sparse table, transformed; `columns` says where each is.

        `divisors` has the divisor of each value's row. Only for a transform that keeps zeros.
        """
        others = self._logarithm(values, self.unit[columns])
        out = torch.where(self.words[columns], values / divisors, others)
        limit = self.limit[columns]
        return out.mul_(self.factor[columns]).clamp_(-limit, limit)

    @staticmethod
    def _logarithm(values: Tensor, unit: Tensor) -> Tensor:
        logarithm = torch.log1p(values.abs() / torch.where(unit > 0, unit, 1)) * values.sign()
        return torch.where(unit > 0, logarithm, values)

    def arrays(self, values: Any, row_divisor: Any, word_divisor: Any) -> Arrays:
        """Returns what `row_of` takes for a table: how it is stored, then how it is transformed."""
        parts = (part.numpy() for part in vars(self).values())
        return (values, row_divisor, word_divisor, *parts)


def size_of_rows(rows: Tensor, scaling: str) -> Tensor:
    """Returns what ``row`` or ``unit`` divides each row by, ``[n]``: 1 where that would be 0.

    Squares are in float64: those of large or small float32 would be infinite or 0.
    """
    if scaling == "row":
        sizes = rows.abs().sum(1)
    else:
        sizes = rows.double().square().sum(1).sqrt().to(rows.dtype)
    return torch.where(sizes > 0, sizes, 1)


def as_float(value: Any) -> Any:
    """Returns a stored value as float32; in compiled loops only."""
    raise NotImplementedError


@overload(as_float, inline="always")
def _as_float(value: Any) -> Any:
    if value == types.uint16:
        return _half
    return _single


def _single(value: Any) -> Any:
    return np.float32(value)


@njit(inline="always")
def _half_bits(value):  # type: ignore[no-untyped-def]
    # With exponent and fraction at their positions in float32, the bits stand for 2^-112 times the
    # number, also for subnormals. Unlike the CPU's own conversion, this vectorises everywhere.
    bits = np.uint32(value)
    sign = np.uint32((bits & np.uint32(0x8000)) << np.uint32(16))
    rest = np.uint32((bits & np.uint32(0x7FFF)) << np.uint32(13))
    return np.uint32(sign | rest).view(np.float32) * np.float32(2.0**112)


def _half(value: Any) -> Any:
    return _half_bits(value)


def row_of(table: Any, row: Any, buffer: Any) -> Any:
    """Returns a row of a table; in compiled loops only.

    A plain table's row is returned as it is stored. A transformed table is the tuple of
    `ColumnTransform.arrays`: its row is written into `buffer`, float32 ``[P]``, which is returned.
    """
    raise NotImplementedError


@overload(row_of, inline="always")
def _row_of(table: Any, row: Any, buffer: Any) -> Any:  # noqa: ARG001 (numba passes types)
    if hasattr(table, "ndim"):
        return _plain_row
    return _transformed_row


def _plain_row(table: Any, row: Any, buffer: Any) -> Any:  # noqa: ARG001
    return table[row]


def _transformed_row(table: Any, row: Any, buffer: Any) -> Any:
    return _transformed(table, row, buffer)


@njit(error_model="numpy")
def _transformed(table, row, buffer):  # type: ignore[no-untyped-def]
    values, row_divisor, word_divisor, words, unit, shift, factor, limit = table
    stored = values[row]
    divided, counted = row_divisor.shape[0] > 0, word_divisor.shape[0] > 0
    for column in range(buffer.shape[0]):
        value = as_float(stored[column])
        if divided:
            value = value / row_divisor[row]
        if words[column] and counted:
            value = value / word_divisor[row]
        elif unit[column] > 0:
            size = np.log1p(abs(value) / unit[column])
            value = size if value > 0 else -size
        value = (value - shift[column]) * factor[column]
        buffer[column] = min(max(value, -limit[column]), limit[column])
    return buffer


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
