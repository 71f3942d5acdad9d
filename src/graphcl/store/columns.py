"""Ids of nodes: names as text in a store, and the rows of ids.

Names are used in place of an array. They stay on disk and return plain arrays when indexed.

This is the only place where ids become rows. An id counts as its text: 7 and "7" are one id, and
"007" is another. Of nodes with the same id, the first is meant.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np

from graphcl.arrays import Array, Integers
from graphcl.errors import StoreError, demand, suggestion
from graphcl.files.patched import overlay

MOST_COMPARED = 100_000  # ids that are searched for a suggestion
FEW_COMPARED = 4_096  # the same where many calls come, as in a service
_BLOCK = 1 << 16  # ids that are looked at at a time
_FEW = 8  # ids that are looked for one by one
_SEARCHED = 1 << 20  # names that are compared at a time
_SURROGATE = re.compile("[\ud800-\udfff]")  # what a terminal's byte that is no text becomes


@dataclass(frozen=True, eq=False)
class Names:
    """One name per node: the UTF-8 bytes of all names in one array, and where each name begins.

    This is Arrow's layout of a large string column: name u is
    ``text[offsets[u] : offsets[u + 1]]``.

    Attributes:
        offsets: int64, ``[num_nodes + 1]``.
        text: uint8, the bytes of all names in order.
    """

    offsets: Integers
    text: Array

    @classmethod
    def of(cls, names: Any) -> "Names":
        """Encodes a sequence of strings."""
        encoded = [str(name).encode() for name in names]
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), lengths.cumsum()])
        return cls(offsets, np.frombuffer(b"".join(encoded), dtype=np.uint8))

    @classmethod
    def joined(cls, several: Sequence["Names"]) -> "Names":
        """Returns names one below the other; the first, if mapped from a file, are not copied."""
        first, *rest = several
        starts = len(first.text) + np.cumsum([0, *(len(one.text) for one in rest)])
        pieces = zip(rest, starts.tolist(), strict=False)
        offsets = [one.offsets[1:] + start for one, start in pieces]
        return cls(_below(first.offsets, offsets), _below(first.text, [one.text for one in rest]))

    @classmethod
    def from_arrow(cls, column: Any) -> "Names":
        """Takes a column of texts of Arrow, which has the same layout."""
        import pyarrow

        text = column.cast(pyarrow.large_string()).combine_chunks()
        _, offsets, letters = text.buffers()
        starts = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]
        held = np.frombuffer(letters or b"", np.uint8)
        return cls(starts - starts[0], held[starts[0] : starts[-1]])

    def take(self, nodes: Integers) -> "Names":
        """Returns the names of some nodes, in their order; nothing is decoded."""
        starts = np.asarray(self.offsets)
        lengths = np.diff(starts)[nodes]
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), lengths.cumsum()])
        return Names(offsets, np.asarray(self.text)[entry_places(starts[nodes], lengths)])

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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype=dtype)

    def _name(self, node: int) -> str:
        start, stop = int(self.offsets[node]), int(self.offsets[node + 1])
        if not 0 <= start <= stop <= len(self.text):
            raise StoreError(f"node_ids: node {node} has its name at bytes {start} to {stop}")
        try:
            return self.text[start:stop].tobytes().decode()
        except UnicodeDecodeError:
            raise StoreError(f"node_ids: the name of node {node} is not UTF-8") from None


def _below(table: Any, others: list[Any]) -> Any:
    more = np.concatenate([table[:0], *others])
    return overlay(table, len(table) + np.arange(len(more)), more)


class Ids:
    """Finds nodes by their ids.

    Args:
        ids: numbers, texts or `Names`; or how many nodes there are, if ids are their rows.
        kept: whether many calls with few ids are to come. Hashes of all texts are kept then, 16
            bytes per node, made at the first call.
    """

    def __init__(self, ids: Any, *, kept: bool = False) -> None:
        self.size = ids if isinstance(ids, int) else len(ids)
        self._ids: Any = None if isinstance(ids, int) else ids
        self._kept = kept
        self.numbers = self._ids is None or (
            isinstance(self._ids, np.ndarray) and self._ids.dtype.kind in "iu"
        )

    def texts(self, start: int, stop: int) -> list[str]:
        """Returns the ids of a range of rows."""
        stop = min(stop, self.size)
        some = range(start, stop) if self._ids is None else self._ids[start:stop].tolist()
        return [str(one) for one in some]

    def find(self, wanted: Iterable[Any]) -> Integers:
        """Returns the row of each id, −1 where no node has it."""
        given: Any = wanted if isinstance(wanted, np.ndarray) else list(wanted)
        if not self.numbers:
            return self._find_texts([str(_plain(one)) for one in given])
        if not (isinstance(given, np.ndarray) and given.dtype.kind in "iu"):
            known = [whole_number(str(_plain(one))) for one in given]
            limits = np.iinfo(np.int64 if self._ids is None else self._ids.dtype)
            fits = [one is not None and limits.min <= one <= limits.max for one in known]
            values = [one if fit else 0 for fit, one in zip(fits, known, strict=True)]
            return np.where(fits, self._find_numbers(np.array(values, limits.dtype)), -1)
        return self._find_numbers(given)

    def rows(self, wanted: Iterable[Any], owner: str, error: type[Exception]) -> Integers:
        """Returns the row of each id.

        Raises:
            error: no node has the id; the message suggests a similar one.
        """
        numbers = isinstance(wanted, np.ndarray) and wanted.dtype.kind in "iu"
        asked: Any = wanted if numbers else [_plain(one) for one in wanted]
        found = self.find(asked)
        if (found < 0).any():
            first = str(asked[int(np.argmax(found < 0))])
            texts = self.texts(0, FEW_COMPARED if self._kept else MOST_COMPARED)
            bare = first.lstrip("0")
            padded = [one for one in texts if one.lstrip("0") == bare] if bare.isdecimal() else []
            hint = suggestion(first, padded or texts)
            hint = hint or (f"; ids look like {texts[0]!r}" if texts else "")
            raise error(f"{owner}: no node has the id {first!r}{hint}")
        return found

    def chosen(
        self, nodes: Any, rows: Any, owner: str, error: type[Exception]
    ) -> Integers | slice | None:
        """Returns the rows that a caller means; None if both arguments are.

        Args:
            nodes: an id or several.
            rows: instead: a row number or several, a mask of booleans, or a range, which is
                returned as it is.
            owner: who asks, for messages.
            error: what is raised.

        Raises:
            error: no node has the id or the number, or the form is another.
        """
        demand(
            nodes is None or rows is None,
            f"{owner}: nodes are ids and rows are row numbers; give one of them",
            error,
        )
        if nodes is not None:
            demand(
                not isinstance(nodes, slice) and np.asarray(nodes).dtype.kind != "b",
                f"{owner}: nodes are ids; give a mask or a range as rows=",
                error,
            )
            single = isinstance(nodes, str) or np.ndim(nodes) == 0
            return self.rows([nodes] if single else nodes, owner, error)
        if rows is None or isinstance(rows, slice):
            return rows
        given = np.atleast_1d(np.asarray(rows))
        if not given.size:
            return np.zeros(0, np.int64)
        demand(
            given.ndim == 1 and given.dtype.kind in "biu",
            f"{owner}: rows must be row numbers, a mask or a range; got {given.dtype} "
            f"{given.shape}",
            error,
        )
        if given.dtype.kind == "b":
            demand(
                len(given) == self.size,
                f"{owner}: a mask of {len(given)} for {self.size} nodes",
                error,
            )
            return np.flatnonzero(given)
        for row in given[(given < 0) | (given >= self.size)][:1]:
            raise error(f"{owner}: no row {row} among {self.size} nodes")
        return given.astype(np.int64)

    @cached_property
    def _order(self) -> tuple[Integers, Any]:
        """The rows in the order of their ids, or of the hashes of these, and ids or hashes."""
        if self.numbers:
            values: Any = np.asarray(self._ids)
        else:
            values = np.empty(self.size, np.int64)
            for start in range(0, self.size, _BLOCK):
                some = [hash(one) for one in self.texts(start, start + _BLOCK)]
                values[start : start + len(some)] = some
        order = np.argsort(values, kind="stable")
        return order, values[order]

    def _find_numbers(self, wanted: Any) -> Integers:
        if self._ids is None:
            return np.where((wanted >= 0) & (wanted < self.size), wanted, -1).astype(np.int64)
        limits = np.iinfo(self._ids.dtype)
        if wanted.dtype != self._ids.dtype:  # else both would be compared as floats
            fits = (wanted >= limits.min) & (wanted <= limits.max)
            found = self._find_numbers(np.where(fits, wanted, 0).astype(self._ids.dtype))
            return np.where(fits, found, -1)
        if not self.size or (len(wanted) <= _FEW and not self._kept):
            places = [np.flatnonzero(self._ids == one)[:1] for one in wanted]
            return np.array([int(at[0]) if len(at) else -1 for at in places], np.int64)
        order, values = self._order
        place = np.searchsorted(values, wanted).clip(max=self.size - 1)
        return np.where(values[place] == wanted, order[place], -1).astype(np.int64)

    def _find_texts(self, wanted: list[str]) -> Integers:
        if self._kept:
            return np.array([self._hashed(one) for one in wanted], np.int64)
        asked, place = set(wanted), dict[str, int]()
        few = len(asked) <= _FEW
        if isinstance(self._ids, Names) and (few or find_spec("pyarrow")):
            plain = [one for one in asked if not _SURROGATE.search(one)]  # no name has others
            place = {one: self._ids.find(one) for one in plain} if few else _among(self._ids, plain)
            return np.array([place.get(one, -1) for one in wanted], np.int64)
        for start in range(0, self.size, _BLOCK):  # a dictionary of those that are asked for alone
            for row, text in enumerate(self.texts(start, start + _BLOCK), start):
                if text in asked:
                    place.setdefault(text, row)
            if len(place) == len(asked):
                break
        return np.array([place.get(one, -1) for one in wanted], np.int64)

    def _hashed(self, wanted: str) -> int:
        order, hashes = self._order
        code = hash(wanted)
        for place in range(int(np.searchsorted(hashes, code)), self.size):
            if hashes[place] != code:
                break
            row = int(order[place])
            if self.texts(row, row + 1) == [wanted]:
                return row
        return -1


def entry_places(starts: Integers, lengths: Integers) -> Integers:
    """Returns the places of all entries of rows that begin at `starts`."""
    found: Integers = np.repeat(starts - (lengths.cumsum() - lengths), lengths)
    found += np.arange(len(found))
    return found


def table_rows(table: Any, rows: Integers) -> Any:
    """Returns rows of names, or of any array, in the form that they have."""
    return table.take(rows) if isinstance(table, Names) else table[rows]


def whole_number(text: str) -> int | None:
    """Returns the number that a text writes in the usual way; None for 1.0, 007 and names."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 21):
        return None
    number = int(text)
    return number if str(number) == text else None


def _among(names: Names, wanted: list[str]) -> dict[str, int]:
    """Returns the row of each of different texts, −1 where no node has it; no name is decoded."""
    import pyarrow
    import pyarrow.compute

    buffers = [None, *(pyarrow.py_buffer(np.asarray(one)) for one in (names.offsets, names.text))]
    listed = pyarrow.Array.from_buffers(pyarrow.large_string(), len(names), buffers)
    which = pyarrow.compute.index_in(listed, pyarrow.array(wanted, pyarrow.large_string()))
    place = which.fill_null(-1).to_numpy(zero_copy_only=False)
    there = np.flatnonzero(place >= 0)[::-1]  # of equal names, the first counts
    rows = np.full(len(wanted), -1, np.int64)
    rows[place[there]] = there
    return dict(zip(wanted, rows.tolist(), strict=True))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
