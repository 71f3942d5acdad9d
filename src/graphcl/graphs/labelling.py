"""Labels by name: texts, mappings and pandas Series become class numbers."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError
from graphcl.graphs.interchange import to_numpy
from graphcl.store.ids import rows_of

Array = npt.NDArray[Any]
_LISTS = (list, tuple, set, frozenset)


def numbered_labels(labels: Any, ids: Any, owner: str) -> tuple[Array, tuple[Any, ...]]:
    """Returns labels as numbers, and the names of the classes if they were given by name.

    Args:
        labels: an array of numbers, which stays as it is; of texts, with None or nothing where a
            node has none; a mapping from ids to a label or to a list of labels; or a pandas Series,
            which is such a mapping unless its index is the default one.
        ids: of all nodes.
        owner: begins messages.

    Returns:
        Class numbers ``[nodes]``, or 0/1 ``[nodes, labels]`` if some node has a list; −1 where a
        node has none. Names are in sorted order.

    Raises:
        GraphError: no node has an id.
    """
    if hasattr(labels, "to_numpy") and getattr(labels, "ndim", 0) == 1 and hasattr(labels, "index"):
        values = labels.to_numpy(dtype=object)
        by_place = type(labels.index).__name__ == "RangeIndex" and len(values) == len(ids)
        labels = values if by_place else dict(zip(labels.index.tolist(), values, strict=True))
    if isinstance(labels, Mapping):
        some, rows = list(labels.values()), rows_of(labels, ids, owner, GraphError)
        if any(isinstance(one, _LISTS) for one in some):
            return _several(some, rows, len(ids))
        labels = np.full(len(ids), None, dtype=object)
        labels[rows] = some
    given = to_numpy(labels, owner)
    if given.ndim != 1 or given.dtype.kind in "biuf":
        return given, ()
    known = np.array([not _is_missing(one) for one in given.tolist()], dtype=np.bool_)
    present = given[known].tolist()
    numbers = np.full(len(given), -1.0)
    if all(isinstance(one, Real) and not isinstance(one, bool) for one in present):
        numbers[known] = present
        return numbers, ()
    names, numbers[known] = np.unique([str(one) for one in present], return_inverse=True)
    return numbers.astype(np.int64), tuple(names.tolist())


def _several(some: list[Any], rows: Array, count: int) -> tuple[Array, tuple[Any, ...]]:
    lists = [list(one) if isinstance(one, _LISTS) else [one] for one in some]
    names = sorted({name for row in lists for name in row}, key=lambda one: (str(type(one)), one))
    number = {name: place for place, name in enumerate(names)}
    table = np.full((count, len(names)), -1, np.int64)
    table[rows] = 0
    for row, own in zip(rows, lists, strict=True):
        table[row, [number[name] for name in own]] = 1
    return table, tuple(names)


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ == "NAType":  # pandas' own, which has no truth value
        return True
    return bool(value == "") or (isinstance(value, float) and np.isnan(value))
