"""The ids of the nodes of one type, to which the ends of edges are compared."""

from collections.abc import Sequence
from typing import Any

import numpy as np


class TypeIds:
    """The ids of one type's nodes.

    Args:
        name: the type.
        keys: an Arrow column, or None if the ids are 0 … count − 1.
        count: number of nodes.
    """

    def __init__(self, name: str, keys: Any, count: int) -> None:
        import pyarrow

        self.name, self.given = name, keys is not None
        self.keys = pyarrow.array(np.arange(count)) if keys is None else keys

    @property
    def kind(self) -> str:
        """The DuckDB type of the ids."""
        import pyarrow

        if pyarrow.types.is_integer(self.keys.type):
            return "UBIGINT" if pyarrow.types.is_uint64(self.keys.type) else "BIGINT"
        return "VARCHAR"

    def add(self, ids: Sequence[str]) -> None:
        """Adds nodes that only edges name, after all others."""
        import pyarrow

        chunks = self.keys.chunks if hasattr(self.keys, "chunks") else [self.keys]
        kind = self.keys.type
        try:
            added = pyarrow.array(list(ids)).cast(kind)
        except pyarrow.ArrowInvalid:  # a text among numbers: all of them are texts
            kind, added = pyarrow.string(), pyarrow.array(list(ids))
        chunks = [chunk.cast(kind) for chunk in chunks]
        self.keys, self.given = pyarrow.chunked_array([*chunks, added]), True

    def table(self) -> Any:
        """Returns keys and numbers as an Arrow table."""
        import pyarrow

        numbers = pyarrow.array(np.arange(len(self.keys)))
        return pyarrow.table({"key": self.keys, "number": numbers})
