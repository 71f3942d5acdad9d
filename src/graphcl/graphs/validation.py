"""Checks the arrays of nodes. Each error names the array, the place and the value.

Labels may be given by name: texts, mappings and pandas Series become class numbers. Or they are a
number to predict, such as a price: `is_number` tells. Then `y` is float64, with NaN where it is not
known. Classes are always integers.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from numbers import Real
from typing import Any, NoReturn

import numpy as np
import scipy.sparse

from graphcl.arrays import Array, Booleans, Floats
from graphcl.errors import GraphError, check_keys, demand
from graphcl.graphs.interchange import is_sparse, to_csr, to_numpy
from graphcl.store.columns import Ids
from graphcl.store.header import MASKS

FEW_VALUES, FEW_SHARE = 20, 0.05  # so many different whole numbers, or such a share, are classes
_LISTS = (list, tuple, set, frozenset)
_KEYS = ("x", "y", "num_nodes", "node_ids", *MASKS, "class_names", "preparation")


class NoArray:
    """A graph is no array of rows; scikit-learn's searches ask for one, to cut it into folds."""

    name: str

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise GraphError(
            f"{self.name}: a graph is not an array of rows, and cannot be cut into folds; search "
            "with a list of graphs, and with one graph by fit([graph]), cv=[([0], [0])] and "
            "scoring=graphcl.probe_scorer"
        )


def node_fields(name: str, given: Any) -> dict[str, Any]:
    """Returns the fields of `Nodes` from what `Graph.from_edges` takes for a type."""
    about: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"x": given}
    if isinstance(given, int | np.integer):
        about = {"num_nodes": given}
    about = {key: value for key, value in about.items() if value is not None}
    where = f"type {name!r}"
    check_keys(about, _KEYS, where=where, error=GraphError)
    demand(
        about.get("num_nodes") != 0 and getattr(about.get("x"), "shape", (1,))[:1] != (0,),
        f"{where}: zero nodes; leave the type and its relations out",
    )
    try:
        return {"name": name, **checked_nodes(about)}
    except GraphError as error:
        raise GraphError(f"{where}: {error}") from None


def checked_nodes(about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `Nodes`, but for the name, checked."""
    x = about.get("x")
    demand(x is not None or "num_nodes" in about, "neither x nor num_nodes is given")
    table = None if x is None else features(x)
    rows = None if table is None else int(table.shape[0])
    num_nodes = int(about.get("num_nodes", rows))
    demand(rows in (None, num_nodes), f"x: {rows} rows for {num_nodes} nodes")
    demand(num_nodes >= 1, f"{num_nodes or 'zero'} nodes; a graph needs at least one")
    of_split, several = splits({key: about.get(key) for key in MASKS}, num_nodes)
    ids = node_ids(about.get("node_ids"), num_nodes)
    y, names = labels(about.get("y"), num_nodes, ids, about.get("class_names", ()))
    return {
        "num_nodes": num_nodes,
        "x": table,
        "y": y,
        **of_split,
        "splits": several,
        "node_ids": ids,
        "class_names": names,
        "preparation": about.get("preparation"),
    }


def features(x: Any, name: str = "x", row: str = "node") -> Floats | scipy.sparse.csr_array:
    """Returns a feature table as finite float32, dense or CSR as it was given.

    `name` and `row` are what messages call the table and its rows.
    """
    sparse = is_sparse(x)
    table: Any = to_csr(x) if sparse else to_numpy(x, name)
    if table.ndim != 2:
        advice = "; a single feature is a column: x.reshape(-1, 1)" if table.ndim == 1 else ""
        raise GraphError(
            f"{name}: expected a table [num_{row}s, features]; got shape {table.shape}{advice}"
        )
    demand(table.shape[1] != 0, f"{name}: zero features; pass at least one column")
    demand(table.dtype.kind in "biuf", f"{name}: features must be numbers; got dtype {table.dtype}")
    values = table.data if sparse else table
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)  # always a copy: the graph freezes its arrays
    if not np.isfinite(values).all():
        place = np.argwhere(~np.isfinite(values))[0]
        if sparse:
            coo = table.tocoo()
            place = (coo.coords[0][place[0]], coo.coords[1][place[0]])
        original = table[int(place[0]), int(place[1])]
        raise GraphError(f"{name}: {original} at {row} {int(place[0])}, feature {int(place[1])}")
    if not sparse:
        return values
    return scipy.sparse.csr_array((values, table.indices, table.indptr), shape=table.shape)


def labels(
    y: Any, num_nodes: int, ids: Any = None, class_names: Sequence[str] = ()
) -> tuple[Array | None, tuple[str, ...]]:
    """Returns class numbers ``[num_nodes]`` or a 0/1 matrix as int64, and the names of the classes.

    Labels may be given in any form that `numbered_labels` takes; `ids` are those of the nodes. A
    node without a label has −1; with several labels per node, −1 or NaN in its whole row. A number
    to predict is float64 ``[num_nodes]``, with NaN where it is not known.
    """
    if y is None:
        return None, tuple(map(str, class_names))
    ids = np.arange(num_nodes) if ids is None else ids
    labels, names = numbered_labels(y, ids, "y")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels, _ = numbered_labels(labels[:, 0], ids, "y")
    demand(
        labels.ndim in (1, 2) and len(labels) == num_nodes,
        f"y: {len(labels) if labels.ndim else 1} labels for {num_nodes} nodes",
    )
    demand(
        labels.dtype.kind in "biuf", f"y: labels must be class numbers; got dtype {labels.dtype}"
    )
    if labels.ndim == 1 and labels.dtype.kind == "f":
        return np.array(labels, np.float64), ()
    if labels.ndim == 2 and labels.dtype.kind == "f":
        labels = np.where(np.isnan(labels).all(axis=1, keepdims=True), -1, labels)
    with np.errstate(invalid="ignore"):  # a NaN, which is refused below
        whole = labels.astype(np.int64, copy=True)
    for place in map(tuple, np.argwhere(whole != labels)[:1]):
        raise GraphError(f"y: {labels[place]} at node {place[0]} is not a class number")
    wrong = whole < -1
    if labels.ndim == 2:
        wrong = ((whole < 0) | (whole > 1)) & (whole != -1).any(axis=1, keepdims=True)
    for place in map(tuple, np.argwhere(wrong)[:1]):
        expected = "−1 (unlabelled) or more"
        if labels.ndim == 2:
            expected = "0 or 1, and −1 in the whole row of an unlabelled node"
        raise GraphError(f"y: {whole[place]} at node {place[0]}; labels are {expected}")
    return whole, tuple(map(str, names or class_names))


def numbered_labels(
    labels: Any, ids: Any, owner: str, kind: str = "auto"
) -> tuple[Array, tuple[Any, ...]]:
    """Returns labels as numbers, and the names of the classes if they were given by name.

    Args:
        labels: an array of whole numbers, which stays as it is; of other numbers or of texts, with
            NaN, None or nothing where a node has none; a mapping from ids to a label or to a list
            of labels; or a pandas Series, which is such a mapping unless its index is the default
            one.
        ids: of all nodes.
        owner: begins messages.
        kind: ``classes``, or a ``number`` to predict; ``auto`` asks `is_number`. Texts and arrays
            of whole numbers are classes then.

    Returns:
        Class numbers ``[nodes]``, or 0/1 ``[nodes, labels]`` if some node has a list; −1 where a
        node has none. Names are in sorted order. A number is float64 ``[nodes]``, with NaN.

    Raises:
        GraphError: no node has an id, or a label is no number.
    """
    if hasattr(labels, "to_numpy") and getattr(labels, "ndim", 0) == 1 and hasattr(labels, "index"):
        values = labels.to_numpy(dtype=object)
        by_place = type(labels.index).__name__ == "RangeIndex" and len(values) == len(ids)
        labels = values if by_place else dict(zip(labels.index.tolist(), values, strict=True))
    if isinstance(labels, Mapping):
        some, rows = list(labels.values()), Ids(ids).rows(labels, owner, GraphError)
        if any(isinstance(one, _LISTS) for one in some):
            return _several(some, rows, len(ids))
        labels = np.full(len(ids), None, dtype=object)
        labels[rows] = some
    given = to_numpy(labels, owner)
    if given.ndim != 1 or (given.dtype.kind in "biu" and kind != "number"):
        return given, ()
    known = np.array([not _is_missing(one) for one in given.tolist()], dtype=np.bool_)
    present, found = given[known].tolist(), np.full(len(given), np.nan)
    if kind == "number" or all(
        isinstance(one, Real) and not isinstance(one, bool) for one in present
    ):
        found[known] = as_numbers(present, owner)
        if kind == "number" or (kind == "auto" and is_number(found)):
            return found, ()
        if _are_class_numbers(found[known]):  # with NaN among them, as pandas has them
            return np.where(known, found, -1).astype(np.int64), ()
    names, found[known] = np.unique([str(one) for one in present], return_inverse=True)
    return np.where(known, found, -1).astype(np.int64), tuple(names.tolist())


def spelled_alike(names: Iterable[str]) -> list[str]:
    """Returns, in quotes, the names that differ from another one in case or in spaces alone."""
    groups: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        groups.setdefault("".join(name.split()).casefold(), []).append(repr(name))
    return [name for own in groups.values() if len(own) > 1 for name in own]


def is_number(values: Array) -> bool:
    """Returns whether values, NaN where unknown, are a number to predict rather than classes.

    They are if one of them has a fraction or is below −1. Whole numbers are if there are more than
    `FEW_VALUES` different ones, and more than `FEW_SHARE` of all, unless they are the class numbers
    0 … C − 1 without a gap; a −1 is a node without a class.
    """
    known = values[~np.isnan(values)]
    if not _are_class_numbers(known):
        return True
    distinct = np.unique(known[known >= 0])
    many = len(distinct) > max(FEW_VALUES, FEW_SHARE * len(known))
    return bool(many and distinct[-1] >= len(distinct))


def _are_class_numbers(known: Array) -> bool:
    return bool(((known == np.floor(known)) & (known >= -1) & (known < 2**53)).all())


def as_numbers(values: Iterable[Any], owner: str) -> Array:
    """Returns numbers, which may be written as texts.

    Raises:
        GraphError: a value is no number, or not finite.
    """
    try:
        found = np.array([float(one) for one in values], np.float64)
    except (TypeError, ValueError) as error:
        raise GraphError(f"{owner}: a label is not a number ({error})") from None
    for wrong in found[~np.isfinite(found)][:1]:
        raise GraphError(f"{owner}: {wrong} is not a number")
    return found


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


def several_types(z: Mapping[str, Any], owner: str) -> GraphError:
    """Returns the refusal of embeddings of several types, where those of one are needed."""
    one = next(iter(z), "")
    return GraphError(
        f"{owner}: these are embeddings of several types ({', '.join(map(str, z))}); pass those of "
        f"one, z[{one!r}], with graph.nodes[{one!r}]"
    )


def is_labelled(y: Array) -> Booleans:
    """Returns whether each node has a label; with several per node, zeros are an answer too."""
    known: Booleans = (y if y.ndim == 1 else y.min(axis=1, initial=0)) >= 0
    return known if y.dtype.kind != "f" else np.logical_not(np.isnan(y))


def masks(given: Mapping[str, Any], num_nodes: int) -> dict[str, Any]:
    """Returns boolean masks from booleans, 0/1 flags or node numbers; refuses a shared node."""
    masks = {name: _mask(mask, num_nodes, name) for name, mask in given.items()}
    for (first, mask), (second, other) in combinations(masks.items(), 2):
        both = None if mask is None or other is None else np.flatnonzero(mask & other)
        if both is not None and len(both):
            raise GraphError(f"{first} and {second} share node {both[0]}; splits are disjoint")
    return masks


def splits(given: Mapping[str, Any], num_nodes: int) -> tuple[dict[str, Any], Booleans | None]:
    """Returns the masks of the first split, and all splits ``[splits, 3, num_nodes]`` if several.

    A mask ``[num_nodes, splits]`` has a column per split; one of a single dimension is the same in
    every split.
    """
    arrays = {name: to_numpy(mask, name) for name, mask in given.items() if mask is not None}
    counts = {
        name: mask.shape[1]
        for name, mask in arrays.items()
        if mask.ndim == 2 and len(mask) == num_nodes
    }
    if not counts:
        return masks(given, num_nodes), None
    if len(set(counts.values())) > 1 or 0 in counts.values():
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise GraphError(f"masks: each needs as many columns, one per split; got {listed}")
    (count,) = set(counts.values())
    found = [
        masks(
            {name: arrays[name][:, i] if name in counts else mask for name, mask in given.items()},
            num_nodes,
        )
        for i in range(count)
    ]
    if count == 1:
        return found[0], None
    absent = np.zeros(num_nodes, dtype=np.bool_)
    table = [[absent if mask is None else mask for mask in one.values()] for one in found]
    return found[0], np.array(table)


def _mask(mask: Any, num_nodes: int, name: str) -> Booleans | None:
    if mask is None:
        return None
    given = to_numpy(mask, name)
    demand(given.ndim == 1, f"{name}: expected one dimension; got shape {given.shape}")
    if len(given) == num_nodes > 2 and np.isin(given, (0, 1)).all():
        given = given.astype(np.bool_)  # 0/1 flags: node numbers would not repeat like this
    if given.dtype == np.bool_:
        demand(len(given) == num_nodes, f"{name}: {len(given)} entries for {num_nodes} nodes")
        return given.copy()
    demand(
        given.dtype.kind in "iu" or not given.size,
        f"{name}: expected booleans or node numbers; got dtype {given.dtype}",
    )
    for node in given[(given < 0) | (given >= num_nodes)][:1]:
        raise GraphError(f"{name}: node {node} is not among 0 to {num_nodes - 1}")
    chosen = np.zeros(num_nodes, dtype=np.bool_)
    chosen[given.astype(np.int64)] = True
    return chosen


def node_ids(names: Any, num_nodes: int) -> Array | None:
    """Returns the caller's node ids, none merged; integers of too many bits become texts."""
    if names is None:
        return None
    demand(len(names) == num_nodes, f"node_ids: {len(names)} names for {num_nodes} nodes")
    listed = list(names)
    nul = [place for place, one in enumerate(listed) if isinstance(one, str) and "\0" in one]
    for place in nul[:1]:
        raise GraphError(f"node_ids: the id of node {place} contains a NUL byte; remove it")
    if len({type(name) for name in listed}) == 1 and not isinstance(listed[0], tuple):
        ids = np.array(listed)
        if isinstance(listed[0], int) and ids.dtype.kind in "fO":  # no integers of NumPy hold them
            ids = np.array(list(map(str, listed)))
    else:
        ids = np.empty(num_nodes, dtype=object)
        ids[:] = listed
    with suppress(TypeError):  # ids without a hash (lists) are not compared
        if len(set(ids.tolist())) < num_nodes:
            _refuse_same(ids.tolist())
    return ids


def _refuse_same(ids: list[Any]) -> None:
    """Refuses ids of which two are equal."""
    places: dict[Any, int] = {}
    for place, name in enumerate(ids):
        first = places.setdefault(name, place)
        if first != place:
            raise GraphError(
                f"node_ids: nodes {first} and {place} have the same id {name!r}; each node has "
                "its own"
            )
