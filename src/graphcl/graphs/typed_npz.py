"""Reads typed graphs from `.npz` files."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError
from graphcl.files.arrays import read_npz
from graphcl.graphs import interchange
from graphcl.graphs.interchange import Kinds
from graphcl.store.header import MASKS

_OTHER = "edge_index_"


def arrays_from_npz(path: Path) -> tuple[Kinds, Kinds]:
    """Returns the arguments of `Graph.from_edges` from an `.npz` file.

    The file has the arrays of a plain graph (`interchange.read_arrays`), over all nodes, and at
    least one of

    - ``node_type`` [nodes]: a number or a text for each node, which names its type;
    - ``edge_type`` [edges]: likewise the relation of each edge;
    - ``edge_index_NAME`` [2, edges]: the edges of a further relation.

    It may have ``edge_features`` [edges, features]. Without ``node_type`` all nodes are of the type
    ``node``, and without ``edge_type`` the edges of ``edge_index`` are of the relation ``edge``. If
    the types have different columns of the features, each keeps its own. Types whose features are
    all zero have none.
    """
    arrays = read_npz(path, None, GraphError)
    others = {name.removeprefix(_OTHER): name for name in sorted(arrays) if name.startswith(_OTHER)}
    if "node_type" not in arrays and "edge_type" not in arrays and not others:
        raise GraphError(
            f"{path}: has no types: neither 'node_type' nor 'edge_type' nor '{_OTHER}NAME'; "
            "it is a plain graph"
        )
    plain = interchange.read_arrays(path, extras=True)
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
    for name, array in others.items():
        listed = np.asarray(arrays[array], np.int64)
        relations |= _split(name, listed, {}, (types, kinds, place), path)
    return nodes, relations


def _names(
    arrays: Mapping[str, npt.NDArray[Any]], name: str, count: int, default: str, path: Path
) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Returns the names in an array, in order, and the number of each entry's name."""
    if name not in arrays:
        return [default], np.zeros(count, np.int64)
    found = arrays[name]
    if found.shape != (count,) or found.dtype.kind not in "iuUb":
        raise GraphError(
            f"{path}: {name}: expected a number or a text for each of {count}; got "
            f"{found.dtype} of shape {found.shape}"
        )
    distinct, numbers = np.unique(found, return_inverse=True)
    return [str(one) for one in distinct.tolist()], numbers.reshape(-1)


def _rows_of(plain: Mapping[str, Any], rows: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Returns labels, masks and ids of some nodes; labels only if one of them has any."""
    found = {name: np.asarray(plain[name])[rows] for name in ("node_ids",) if name in plain}
    y = np.asarray(plain["y"])[rows] if "y" in plain else None
    if y is None or (y == -1).all():
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
    if edges.ndim != 2 or len(edges) != 2:
        raise GraphError(f"{path}: relation {name!r}: expected [2, edges]; got {edges.shape}")
    wrong = (edges < 0) | (edges >= len(place))
    if wrong.any():
        end, edge = (int(index) for index in np.argwhere(wrong)[0])
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
