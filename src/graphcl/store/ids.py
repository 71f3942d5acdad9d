"""Rows of nodes by id: the only place where ids become rows.

An id counts as its text: 7 and "7" are one id, and "007" is another. Of nodes with the same id, the
first is meant.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import suggestion
from graphcl.store.columns import Names

IntArray = npt.NDArray[np.int64]
MOST_COMPARED = 100_000  # ids that are searched for a suggestion
FEW_COMPARED = 4_096  # the same where many calls come, as in a service
_BLOCK = 1 << 16  # ids that are looked at at a time
_FEW = 8  # ids that are looked for one by one


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

    def find(self, wanted: Iterable[Any]) -> IntArray:
        """Returns the row of each id, −1 where no node has it."""
        given: Any = wanted if isinstance(wanted, np.ndarray) else list(wanted)
        if not self.numbers:
            return self._find_texts([str(_plain(one)) for one in given])
        if not (isinstance(given, np.ndarray) and given.dtype.kind in "iu"):
            known = [whole_number(str(_plain(one))) for one in given]
            own = np.int64 if self._ids is None else self._ids.dtype
            absent = np.array([one is None or not _holds(own, one) for one in known], bool)
            values = [0 if gone else one for gone, one in zip(absent, known, strict=True)]
            return np.where(absent, -1, self._find_numbers(np.array(values, own)))
        return self._find_numbers(given)

    def rows(self, wanted: Iterable[Any], owner: str, error: type[Exception]) -> IntArray:
        """Returns the row of each id.

        Raises:
            error: no node has the id; the message suggests a similar one.
        """
        asked = [_plain(one) for one in wanted]
        found = self.find(asked)
        if (found < 0).any():
            first = str(asked[int(np.argmax(found < 0))])
            texts = self.texts(0, FEW_COMPARED if self._kept else MOST_COMPARED)
            hint = suggestion(first, texts) or (f"; ids look like {texts[0]!r}" if texts else "")
            raise error(f"{owner}: no node has the id {first!r}{hint}")
        return found

    @cached_property
    def _order(self) -> tuple[IntArray, Any]:
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

    def _find_numbers(self, wanted: Any) -> IntArray:
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

    def _find_texts(self, wanted: list[str]) -> IntArray:
        if self._kept:
            return np.array([self._hashed(one) for one in wanted], np.int64)
        few = len(set(wanted)) <= _FEW
        if isinstance(self._ids, Names):
            place = {one: self._ids.find(one) for one in set(wanted)} if few else None
            place = _among(self._ids, wanted) if place is None else place
            return np.array([place[one] for one in wanted], np.int64)
        asked, place = set(wanted), {}
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


def rows_of(wanted: Iterable[Any], ids: Any, owner: str, error: type[Exception]) -> IntArray:
    """Returns the rows of nodes by id, as `Ids.rows` does."""
    return Ids(ids).rows(wanted, owner, error)


def whole_number(text: str) -> int | None:
    """Returns the number that a text writes in the usual way; None for 1.0, 007 and names."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 21):
        return None
    number = int(text)
    return number if str(number) == text else None


def _holds(dtype: Any, number: int) -> bool:
    limits = np.iinfo(dtype)
    return bool(limits.min <= number <= limits.max)


def _among(names: Names, wanted: list[str]) -> dict[str, int]:
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
    return dict(zip(once, rows.tolist(), strict=True))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
