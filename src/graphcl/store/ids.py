"""Rows of nodes by id."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import suggestion
from graphcl.store.columns import Names

Array = npt.NDArray[Any]
MOST_COMPARED = 100_000  # ids that are searched for a suggestion
_BLOCK = 1 << 16  # ids that are looked at at a time


def rows_of(wanted: Iterable[Any], ids: Any, owner: str, error: type[Exception]) -> Array:
    """Returns the rows of nodes by id. An id counts as its text, so 7 and "7" are one.

    Of nodes with the same id, the first is meant. Ids are looked at in blocks: a dictionary holds
    those that are asked for alone.

    Raises:
        error: no node has the id; the message suggests a similar one.
    """
    asked = [str(_plain(one)) for one in wanted]
    place = _found(set(asked), ids)
    for one in asked:
        if one not in place:
            texts = _texts(ids[:MOST_COMPARED])
            near = suggestion(one, texts)
            hint = near or (f"; ids look like {texts[0]!r}" if texts else "")
            raise error(f"{owner}: no node has the id {one!r}{hint}")
    return np.array([place[one] for one in asked], dtype=np.int64)


def _found(asked: set[str], ids: Any) -> dict[str, int]:
    if isinstance(ids, Names) and len(asked) <= 8:  # a search in bytes, faster than a few decodings
        rows = {text: ids.find(text) for text in asked}
        return {text: row for text, row in rows.items() if row >= 0}
    place: dict[str, int] = {}
    for start in range(0, len(ids), _BLOCK):
        for row, text in enumerate(_texts(ids[start : start + _BLOCK]), start):
            if text in asked and text not in place:
                place[text] = row
        if len(place) == len(asked):
            break
    return place


def _texts(ids: Any) -> list[str]:
    return [str(one) for one in ids.tolist()]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
