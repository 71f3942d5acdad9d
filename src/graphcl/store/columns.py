"""Columns of a store that are not plain arrays: features as int8, and names as text.

Both are used in place of an array. They stay on disk and return plain arrays when indexed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import StoreError

LEVELS = 127  # of either sign
_ROWS = 1 << 14
_SEARCHED = 1 << 20  # names that are compared at a time


@dataclass(frozen=True, eq=False)
class ScaledFeatures:
    """A feature table in eight bits: row u is ``values[u] * scale * row_scale[u]``.

    Attributes:
        values: int8, ``[num_nodes, P]``.
        scale: float32, ``[P]``, of the columns; from the training nodes, if there are any.
        row_scale: float32, ``[num_nodes]``: 1, or a higher power of two for a row outside the
            training nodes that exceeds their range. None means 1 everywhere.
    """

    values: npt.NDArray[np.int8]
    scale: npt.NDArray[np.float32]
    row_scale: npt.NDArray[np.float32] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """``(num_nodes, P)``."""
        return (int(self.values.shape[0]), int(self.values.shape[1]))

    @property
    def ndim(self) -> int:
        """Two."""
        return 2

    @property
    def size(self) -> int:
        """Number of values."""
        return int(self.values.size)

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        rows = 0 if self.row_scale is None else self.row_scale.nbytes
        return int(self.values.nbytes + self.scale.nbytes + rows)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> npt.NDArray[np.float32]:
        """Returns one row or several as float32."""
        chosen: npt.NDArray[np.float32] = np.multiply(
            self.values[rows], self.scale, dtype=np.float32
        )
        if self.row_scale is not None:
            chosen *= np.asarray(self.row_scale[rows])[..., None]
        return chosen

    def scaled_by(self, nodes: npt.NDArray[np.int64]) -> bool:
        """Returns whether the scales of the columns depend on the rows of `nodes` alone.

        Then the largest value of a column is in one of these rows. A column of zeros there has any
        scale.
        """
        largest = np.zeros(self.shape[1], dtype=np.int16)
        for start in range(0, len(nodes), _ROWS):
            block = self.values[nodes[start : start + _ROWS]].astype(np.int16)
            np.maximum(largest, np.abs(block).max(axis=0), out=largest)
        within = self.row_scale is None or bool((self.row_scale[nodes] == 1).all())
        return within and bool(((largest == LEVELS) | (largest == 0)).all())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self[:].astype(dtype or np.float32, copy=False)


@dataclass(frozen=True, eq=False)
class Names:
    """One name per node: the UTF-8 bytes of all names in one array, and where each name begins.

    This is Arrow's layout of a large string column: name u is
    ``text[offsets[u] : offsets[u + 1]]``.

    Attributes:
        offsets: int64, ``[num_nodes + 1]``.
        text: uint8, the bytes of all names in order.
    """

    offsets: npt.NDArray[np.int64]
    text: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, names: Any) -> "Names":
        """Encodes a sequence of strings."""
        encoded = [str(name).encode() for name in names]
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), lengths.cumsum()])
        return cls(offsets, np.frombuffer(b"".join(encoded), dtype=np.uint8))

    @classmethod
    def joined(cls, several: Sequence["Names"]) -> "Names":
        """Returns names one below the other, in memory."""
        starts = np.cumsum([0, *(len(one.text) for one in several)])
        pieces = zip(several, starts[:-1].tolist(), strict=True)
        offsets = [one.offsets[:-1] + start for one, start in pieces]
        text = np.concatenate([one.text for one in several])
        return cls(np.concatenate([*offsets, starts[-1:]]).astype(np.int64), text)

    @property
    def shape(self) -> tuple[int]:
        """``(num_nodes,)``."""
        return (len(self),)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, nodes: Any) -> Any:
        """Returns one name, or an array of names for a slice, node numbers or a mask."""
        if isinstance(nodes, int | np.integer):
            return self._name(int(nodes) % len(self) if nodes < 0 else int(nodes))
        numbers = np.arange(len(self))[nodes]
        return np.array([self._name(node) for node in numbers.tolist()], dtype=np.str_)

    def __iter__(self) -> Iterator[str]:
        return (self._name(node) for node in range(len(self)))

    def find(self, name: str) -> int:
        """Returns the first node of this name, or −1; nothing is decoded."""
        letters = np.frombuffer(name.encode(), dtype=np.uint8)
        for start in range(0, len(self), _SEARCHED):
            offsets = np.asarray(self.offsets[start : start + _SEARCHED + 1])
            nodes = np.flatnonzero(np.diff(offsets) == len(letters))
            for place, letter in enumerate(letters):
                nodes = nodes[self.text[offsets[nodes] + place] == letter]
                if not len(nodes):
                    break
            if len(nodes):
                return start + int(nodes[0])
        return -1

    def tolist(self) -> list[str]:
        """Returns all names."""
        return list(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(self[:], dtype=dtype)

    def _name(self, node: int) -> str:
        start, stop = int(self.offsets[node]), int(self.offsets[node + 1])
        if not 0 <= start <= stop <= len(self.text):
            raise StoreError(f"node_ids: node {node} has its name at bytes {start} to {stop}")
        try:
            return self.text[start:stop].tobytes().decode()
        except UnicodeDecodeError:
            raise StoreError(f"node_ids: the name of node {node} is not UTF-8") from None
