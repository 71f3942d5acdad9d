"""Reads graphs of every kind from `.npz` files that `numpy.savez` wrote.

A file has ``edge_index`` [2, edges], and ``x`` [nodes, features] or the sparse features
``x_indptr``, ``x_indices``, ``x_data`` and ``x_shape``. It may have ``y``, ``train_mask``,
``val_mask``, ``test_mask``, ``node_ids`` and ``edge_weight`` [edges]. Pickles are never read.

A graph with types has at least one of

- ``node_type`` [nodes]: a number or a text for each node, which names its type;
- ``edge_type`` [edges]: likewise the relation of each edge;
- ``edge_index_NAME`` [2, edges]: the edges of a further relation.

It may have ``edge_features`` [edges, features]. Without ``node_type`` all nodes are of the type
``node``, and without ``edge_type`` the edges of ``edge_index`` are of the relation ``edge``. If the
types have different columns of the features, each keeps its own. Types whose features are all zero
have none. A relation that is another one read backwards is not kept twice.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError, demand, suggestion
from graphcl.files.arrays import read_npz
from graphcl.graphs.conversion import without_reverses
from graphcl.graphs.graph import Graph
from graphcl.graphs.interchange import Arrays, Kinds
from graphcl.store.header import MASKS

_OPTIONAL = ("y", *MASKS, "node_ids", "edge_weight")
_SPARSE = ("x_indptr", "x_indices", "x_data", "x_shape")
_KNOWN = {"edge_index", "x", *_SPARSE, *_OPTIONAL}
_TYPES = ("node_type", "edge_type")
_OTHER = "edge_index_"


def read_graph(
    path: Path,
    *,
    plain: bool = False,
    extras: bool = False,
    on_note: Callable[[str], None] = lambda _: None,
) -> Graph:
    """Reads the graph of a file; its name is that of the file.

    Args:
        path: the file.
        plain: leave types of nodes and edges, and further relations, unread.
        extras: other arrays are expected; else `on_note` gets a line about them, since one may be
            misspelt.
        on_note: see `extras`.
    """
    arrays: Arrays = read_npz(path, _KNOWN if plain and extras else None, GraphError)
    others = [name for name in sorted(arrays) if name.startswith(_OTHER)]
    unknown = sorted(set(arrays) - _KNOWN - {*_TYPES, "edge_features", *others})
    if unknown and not extras:
        on_note(unused_arrays(path, unknown, _KNOWN))
    given = _plain_arrays(arrays, path)
    if plain or not (others or any(name in arrays for name in _TYPES)):
        return Graph.from_edge_index(name=path.stem, **given)
    nodes, relations = _typed_arrays(arrays, given, others, path)
    return without_reverses(Graph.from_edges(nodes, relations, name=path.stem))[0]


def unused_arrays(path: Path, unknown: Sequence[str], known: Iterable[str]) -> str:
    """Returns a line about arrays of a file that are not used."""
    listed, near = ", ".join(map(repr, unknown[:8])), suggestion(unknown[0], known)
    return f"{path}: not used: unknown array {listed}{near}; known: {', '.join(sorted(known))}"


def _plain_arrays(arrays: Arrays, path: Path) -> Arrays:
    """Returns the arguments of `Graph.from_edge_index`."""
    demand("edge_index" in arrays, f"{path}: has no array 'edge_index' ([2, edges])")
    given: Arrays = {name: arrays[name] for name in _OPTIONAL if name in arrays}
    if "x" in arrays:
        x: Any = arrays["x"]
    elif all(name in arrays for name in _SPARSE):
        x = _sparse_features(arrays, path)
    else:
        raise GraphError(f"{path}: has no array 'x' ([nodes, features])")
    return {"edge_index": arrays["edge_index"], "x": x, **given}


def _sparse_features(arrays: Arrays, path: Path) -> scipy.sparse.csr_array:
    try:
        parts = (arrays["x_data"], arrays["x_indices"], arrays["x_indptr"])
        x = scipy.sparse.csr_array(parts, shape=tuple(int(n) for n in arrays["x_shape"]))
        x.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        raise GraphError(f"{path}: x_* is not a CSR matrix ({error})") from None
    return x


def _typed_arrays(
    arrays: Arrays, plain: Arrays, others: Sequence[str], path: Path
) -> tuple[Kinds, Kinds]:
    """Returns the arguments of `Graph.from_edges`."""
    x = plain["x"] if scipy.sparse.issparse(plain["x"]) else np.asarray(plain["x"])
    count = int(x.shape[0])
    types, kinds = _names(arrays, "node_type", count, "node", path)
    members = {name: np.flatnonzero(kinds == number) for number, name in enumerate(types)}
    place = np.empty(count, np.int64)
    for rows in members.values():
        place[rows] = np.arange(len(rows))
    nodes = {
        name: {"num_nodes": len(rows), "x": block, **_rows_of(plain, rows)}
        for (name, rows), block in zip(members.items(), _blocks(x, members), strict=True)
    }
    edges = np.asarray(plain["edge_index"]).astype(np.int64)
    names, of_edge = _names(arrays, "edge_type", edges.shape[-1], "edge", path)
    per_edge = {name: arrays.get(name) for name in ("edge_weight", "edge_features")}
    relations: Kinds = {}
    for number, name in enumerate(names):
        chosen = np.flatnonzero(of_edge == number)
        own = {key: value[chosen] for key, value in per_edge.items() if value is not None}
        relations |= _split(name, edges[:, chosen], own, (types, kinds, place), path)
    for array in others:
        listed = np.asarray(arrays[array], np.int64)
        name = array.removeprefix(_OTHER)
        relations |= _split(name, listed, {}, (types, kinds, place), path)
    return nodes, relations


def _names(
    arrays: Mapping[str, npt.NDArray[Any]], name: str, count: int, default: str, path: Path
) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Returns the names in an array, in order, and the number of each entry's name."""
    if name not in arrays:
        return [default], np.zeros(count, np.int64)
    found = arrays[name]
    demand(
        found.shape == (count,) and found.dtype.kind in "iuUb",
        f"{path}: {name}: expected a number or a text for each of {count}; got "
        f"{found.dtype} of shape {found.shape}",
    )
    distinct, numbers = np.unique(found, return_inverse=True)
    return [str(one) for one in distinct.tolist()], numbers.reshape(-1)


def _rows_of(plain: Mapping[str, Any], rows: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Returns labels, masks and ids of some nodes; labels only if one of them has any."""
    found = {name: np.asarray(plain[name])[rows] for name in ("node_ids",) if name in plain}
    y = np.asarray(plain["y"])[rows] if "y" in plain else None
    if y is None or ((y == -1) | (y != y)).all():  # −1 is no class, NaN no number
        return found
    masks = {name: np.asarray(plain[name]) for name in MASKS if name in plain}
    return found | {"y": y} | {name: mask[rows] for name, mask in masks.items()}


def _blocks(x: Any, members: Mapping[str, npt.NDArray[np.int64]]) -> list[Any]:
    """Returns the features of each type: its own columns, if no two types share any."""
    tables, ranges = [], []
    for rows in members.values():
        table = x[rows]
        used = np.flatnonzero(np.asarray((table != 0).sum(axis=0)).reshape(-1))
        tables.append(table)
        ranges.append((int(used[0]), int(used[-1]) + 1) if len(used) else None)
    taken = sorted(one for one in ranges if one is not None)
    apart = all(left[1] <= right[0] for left, right in pairwise(taken))
    found: list[Any] = []
    for table, columns in zip(tables, ranges, strict=True):
        if columns is None:
            found.append(None)
        else:
            found.append(table[:, slice(*columns)] if apart and len(taken) > 1 else table)
    return found


def _split(
    name: str,
    edges: npt.NDArray[np.int64],
    own: Mapping[str, Any],
    nodes: tuple[list[str], npt.NDArray[np.int64], npt.NDArray[np.int64]],
    path: Path,
) -> Kinds:
    """Returns the edges of one name, a relation for each pair of types that they join.

    `nodes` has the names of the types, the type of each node, and its place in its type.
    """
    types, kinds, place = nodes
    demand(
        edges.ndim == 2 and len(edges) == 2,
        f"{path}: relation {name!r}: expected [2, edges]; got {edges.shape}",
    )
    for end, edge in np.argwhere((edges < 0) | (edges >= len(place)))[:1]:
        raise GraphError(
            f"{path}: relation {name!r}: edge {edge} names node {edges[end, edge]}, but the nodes "
            f"are 0 to {len(place) - 1}"
        )
    pairs = kinds[edges[0]] * len(types) + kinds[edges[1]]
    found: Kinds = {}
    for pair in np.unique(pairs).tolist():
        chosen = np.flatnonzero(pairs == pair)
        arrays = {key: value[chosen] for key, value in own.items()}
        key = (types[pair // len(types)], name, types[pair % len(types)])
        found[key] = {"edge_index": place[edges[:, chosen]], **arrays}
    return found
