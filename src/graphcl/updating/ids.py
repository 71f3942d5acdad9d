"""Ids in tables, and the nodes of a graph that have them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError, counted, suggestion
from graphcl.graphs.nodes import Nodes
from graphcl.store.columns import Names
from graphcl.store.ids import Ids, whole_number

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]


class NodeIds:
    """The ids of a type, as tables that change it name them."""

    def __init__(self, nodes: Nodes) -> None:
        self._size, self._ids = nodes.num_nodes, nodes.node_ids
        self._known = Ids(nodes.num_nodes if nodes.node_ids is None else nodes.node_ids)

    def alike(self, given: Array) -> Array:
        """Returns ids as numbers if the graph's are numbers and all of these are, as texts."""
        if not self._known.numbers or given.dtype.kind in "iu":
            return given
        numbers = [whole_number(str(one)) for one in given.tolist()]
        if any(one is None or abs(one) >= 1 << 62 for one in numbers):
            return given
        return np.array(numbers, np.int64)

    def find(self, wanted: Array) -> IntArray:
        """Returns the row of each id, −1 where no node has it."""
        return self._known.find(wanted)

    def require(self, wanted: Array, table: str) -> IntArray:
        """Returns the rows of ids.

        Raises:
            GraphError: no node has one of them.
        """
        wanted = self.alike(wanted)
        rows = self.find(wanted)
        if (rows < 0).any():
            self.refuse_unknown(wanted[rows < 0], table)
        return rows

    def refuse_unknown(self, unknown: Array, table: str) -> None:
        """Raises an error that names the first of some ids which no node has."""
        first = str(unknown[0])
        ids = counted(len(unknown), "id is", "ids are")
        near = suggestion(first, self._known.texts(0, 1000))
        raise GraphError(f"{table}: {ids} not in the graph, first {first!r}{near}")

    def notes(self, new: Array) -> list[str]:
        """Returns what to say of new ids that look like a number which a node has: 1.0 and 007."""
        if not self._known.numbers or new.dtype.kind in "iu":
            return []
        texts = [str(one) for one in new.tolist()]
        meant = {text: number for text in texts if (number := _number(text)) is not None}
        rows = self.find(np.array(list(meant.values()), np.int64))
        like = [pair for pair, row in zip(meant.items(), rows.tolist(), strict=True) if row >= 0]
        if not like:
            return []
        ids = counted(len(like), "new id looks", "new ids look")
        first, number = like[0]
        return [
            f"nodes: {ids} like one that the graph has, first {first!r} like {number}: ids are "
            "taken as they are written, and these are new nodes"
        ]

    def name(self, row: int) -> str:
        """Returns the id of a row."""
        return self._known.texts(row, row + 1)[0]

    def grown(self, kept: IntArray, new: Array) -> Any:
        """Returns the ids of the nodes that stay and of the new ones, None if they are row numbers.

        Numbers and texts together are texts.
        """
        size = self._size
        if self._known.numbers and new.dtype.kind in "iu":
            old = np.arange(size) if self._ids is None else np.asarray(self._ids)
            ids = np.concatenate([old[kept], new.astype(old.dtype, copy=False)])
            plain = self._ids is None and np.array_equal(ids, np.arange(len(ids)))
            return None if plain else ids
        if not len(new) and len(kept) == size:
            return self._ids
        if isinstance(self._ids, Names):
            return _joined_names(self._ids, kept, new)
        texts = self._known.texts(0, size)
        return Names.of([*(texts[row] for row in kept.tolist()), *map(str, new.tolist())])


def _joined_names(names: Names, kept: IntArray, new: Array) -> Names:
    """Returns names of some nodes, and more below them, without a text for each."""
    more = Names.of(new.tolist())
    if len(kept) == len(names):
        text, offsets = np.asarray(names.text), np.asarray(names.offsets)
    else:
        length = np.diff(np.asarray(names.offsets)).astype(np.int64)
        chosen = np.zeros(len(names), bool)
        chosen[kept] = True
        text = np.asarray(names.text)[np.repeat(chosen, length)]
        offsets = np.concatenate([[0], length[kept].cumsum()])
    return Names(
        np.concatenate([offsets, offsets[-1] + more.offsets[1:]]), np.concatenate([text, more.text])
    )


def _number(text: str) -> int | None:
    """Returns the whole number that a text stands for, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else None
