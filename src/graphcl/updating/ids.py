"""Ids in tables, and the nodes of a graph that have them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError, counted, suggestion
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.store.columns import Names

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]


class NodeIds:
    """Finds nodes of a graph, or of a type, by their ids.

    Numbers are compared as numbers, else as texts.
    """

    def __init__(self, graph: Graph | Nodes) -> None:
        self._graph = graph
        ids = graph.node_ids
        self._ids: Any = ids
        self._numbers = ids is None or (isinstance(ids, np.ndarray) and ids.dtype.kind in "iu")
        self._order: IntArray | None = None
        if self._numbers and ids is not None:
            self._order = np.argsort(np.asarray(ids), kind="stable")
        self._places: dict[str, int] | None = None

    def alike(self, given: Array) -> Array:
        """Returns ids as numbers if the graph's are numbers and all of these are, as texts."""
        if not self._numbers or given.dtype.kind in "iu":
            return given
        texts = [str(one) for one in given.tolist()]
        plain = (one.removeprefix("-") for one in texts)
        if not all(one.isascii() and one.isdecimal() and len(one) < 19 for one in plain):
            return given
        numbers = [int(one) for one in texts]
        return np.array(numbers, np.int64) if [str(one) for one in numbers] == texts else given

    def find(self, wanted: Array) -> IntArray:
        """Returns the row of each id, −1 where no node has it."""
        if not len(wanted):
            return np.zeros(0, np.int64)
        size = self._graph.num_nodes
        if self._numbers and wanted.dtype.kind in "iu":
            if self._order is None:
                known = (wanted >= 0) & (wanted < size)
                return np.where(known, wanted, -1).astype(np.int64)
            listed = np.asarray(self._ids)[self._order]
            place = np.searchsorted(listed, wanted).clip(max=size - 1)
            return np.where(listed[place] == wanted, self._order[place], -1).astype(np.int64)
        if isinstance(self._ids, Names):
            return _find_names(self._ids, [str(name) for name in wanted.tolist()])
        if self._places is None:
            ids = range(size) if self._ids is None else self._ids.tolist()
            self._places = {}
            for row, name in enumerate(ids):
                self._places.setdefault(str(name), row)
        places = self._places
        return np.array([places.get(str(name), -1) for name in wanted.tolist()], np.int64)

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
        first, size = str(unknown[0]), self._graph.num_nodes
        some = range(min(size, 1000)) if self._ids is None else self._ids[:1000].tolist()
        ids = counted(len(unknown), "id is", "ids are")
        near = suggestion(first, [str(one) for one in some])
        raise GraphError(f"{table}: {ids} not in the graph, first {first!r}{near}")

    def notes(self, new: Array) -> list[str]:
        """Returns what to say of new ids that look like a number which a node has: 1.0 and 007."""
        if not self._numbers or new.dtype.kind in "iu":
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
        return str(row if self._ids is None else self._ids[row])

    def grown(self, kept: IntArray, new: Array) -> Any:
        """Returns the ids of the nodes that stay and of the new ones, None if they are row numbers.

        Numbers and texts together are texts.
        """
        size = self._graph.num_nodes
        if self._numbers and new.dtype.kind in "iu":
            old = np.arange(size) if self._ids is None else np.asarray(self._ids)
            ids = np.concatenate([old[kept], new.astype(old.dtype, copy=False)])
            plain = self._ids is None and np.array_equal(ids, np.arange(len(ids)))
            return None if plain else ids
        if not len(new) and len(kept) == size:
            return self._ids
        if isinstance(self._ids, Names):
            return _joined_names(self._ids, kept, new)
        listed = range(size) if self._ids is None else self._ids.tolist()
        texts = [str(one) for one in listed]
        return Names.of([*(texts[row] for row in kept.tolist()), *map(str, new.tolist())])


def _find_names(names: Names, wanted: list[str]) -> IntArray:
    """Returns the row of each text, −1 where no node has it; no name is decoded."""
    import pyarrow
    import pyarrow.compute

    buffers = [None, *(pyarrow.py_buffer(np.asarray(one)) for one in (names.offsets, names.text))]
    listed = pyarrow.Array.from_buffers(pyarrow.large_string(), len(names), buffers)
    once = list(dict.fromkeys(wanted))
    which = pyarrow.compute.index_in(listed, pyarrow.array(once, pyarrow.large_string()))
    place = which.fill_null(-1).to_numpy(zero_copy_only=False)
    there = np.flatnonzero(place >= 0)[::-1]  # of equal names, the first counts
    rows = np.full(len(once), -1, np.int64)
    rows[place[there]] = there
    number = dict(zip(once, rows.tolist(), strict=True))
    return np.array([number[name] for name in wanted], np.int64)


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
