"""Columns of a store that are no plain array: features as small integers, names as text.

Both stand where an array stands, stay on disk, and give plain arrays when they are indexed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import StoreError


@dataclass(frozen=True, eq=False)
class ScaledFeatures:
    """A feature table in eight bits: row u is ``values[u] * scale``, one scale per column.

    Attributes:
        values: int8, ``[num_nodes, P]``.
        scale: float32, ``[P]``.
    """

    values: npt.NDArray[np.int8]
    scale: npt.NDArray[np.float32]

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
        return int(self.values.nbytes + self.scale.nbytes)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> npt.NDArray[np.float32]:
        """Returns some rows, or one, as float32."""
        chosen: npt.NDArray[np.float32] = np.multiply(
            self.values[rows], self.scale, dtype=np.float32
        )
        return chosen

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self[:].astype(dtype or np.float32, copy=False)


@dataclass(frozen=True, eq=False)
class Names:
    """Text, one name per node: UTF-8 bytes in one array, and where each name begins.

    Arrow's layout of a large string column: name u is ``text[offsets[u] : offsets[u + 1]]``.

    Attributes:
        offsets: int64, ``[num_nodes + 1]``.
        text: uint8, all names one after the other.
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

    @property
    def shape(self) -> tuple[int]:
        """``(num_nodes,)``."""
        return (len(self),)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, nodes: Any) -> Any:
        """Returns one name, or an array of the names of a slice, of node numbers or of a mask."""
        if isinstance(nodes, int | np.integer):
            return self._name(int(nodes) % len(self) if nodes < 0 else int(nodes))
        numbers = np.arange(len(self))[nodes]
        return np.array([self._name(node) for node in numbers.tolist()], dtype=np.str_)

    def __iter__(self) -> Iterator[str]:
        return (self._name(node) for node in range(len(self)))

    def tolist(self) -> list[str]:
        """Returns every name."""
        return list(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(self[:], dtype=dtype)

    def _name(self, node: int) -> str:
        start, stop = int(self.offsets[node]), int(self.offsets[node + 1])
        if not 0 <= start <= stop <= len(self.text):
            raise StoreError(f"node_ids: the name of node {node} lies at bytes {start} to {stop}")
        try:
            return self.text[start:stop].tobytes().decode()
        except UnicodeDecodeError:
            raise StoreError(f"node_ids: the name of node {node} is not UTF-8") from None
