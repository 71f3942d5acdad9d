"""Joins the parts of a store: the whole graph, in the order that it had or that the parts have."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.arrays import Integers
from graphcl.errors import StoreError
from graphcl.store.columns import Names, entry_places, table_rows
from graphcl.store.header import MASKS, Key, Store
from graphcl.store.reader import Edges, Part, PartNodes, open_part

OF_ENTRIES = ("edge_weight", "edge_features", "edge_ids")


def whole(
    store: Store, *, restored: bool = True
) -> tuple[dict[str, dict[str, Any]], dict[Key, dict[str, Any]]]:
    """Returns the fields of all `Nodes`, and of all `Relation`s.

    One part is mapped, and not yet checked. Several are checked, and joined in memory: for graphs
    that fit.

    Args:
        store: its header.
        restored: nodes are in the order of the graph that was divided; else in that of the parts.

    Raises:
        StoreError: a part is missing or damaged.
    """
    parts = [open_part(store, number) for number in range(len(store))]
    for part in parts if len(parts) > 1 else []:
        part.check()
    rows = {name: _rows(store, parts, name) if restored else None for name in store.types}
    types = {}
    for name in store.types:
        each = [part.nodes[name] for part in parts]
        fields = each[0].fields | {"num_nodes": store.types[name].num_nodes}
        del fields["name"]
        if restored and fields.get("node_ids") is each[0].rows:
            fields.pop("node_ids", None)  # it had none
        if len(parts) > 1:
            kept = set(fields) & {"x", "y", *MASKS, "node_ids"}
            fields |= {one: in_order(table, rows[name]) for one, table in columns(each, kept)}
        types[name] = fields
    edges = {}
    for key, about in store.relations.items():
        arrays = _joined_edges([part.edges[key, False] for part in parts], key, rows)
        flags = ("undirected", "self_loops_removed")
        edges[key] = arrays | {flag: getattr(about, flag) for flag in flags}
    return types, edges


def _rows(store: Store, parts: Sequence[Part], name: str) -> Integers | None:
    """Returns the number that each node of a type had; None if numbers stayed."""
    found = [part.nodes[name].rows for part in parts]
    if len(parts) == 1 or found[0] is None:
        return None
    rows = np.concatenate([np.zeros(0, np.int64) if one is None else one for one in found])
    count = store.types[name].num_nodes
    if len(rows) != count or not np.array_equal(np.sort(rows), np.arange(count)):
        raise StoreError(f"{store.path}: the numbers in rows.npy are damaged")
    return rows


def _joined_edges(
    each: Sequence[Edges], key: Key, rows: Mapping[str, Integers | None]
) -> dict[str, Any]:
    if len(each) == 1:
        return dict(each[0])
    arrays = {name: np.concatenate([one[name] for one in each]) for name in each[0]}
    lengths = np.concatenate([np.diff(one["indptr"]) for one in each])
    arrays["indptr"] = np.concatenate([[0], lengths.cumsum()])
    if rows[key[0]] is None and rows[key[2]] is None:
        return arrays
    return reordered(arrays, rows[key[2]], rows[key[0]])


def columns(parts: Sequence[PartNodes], names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yields those of the named columns that the parts have, each in memory for all parts."""
    for name in names:
        if name in parts[0].fields:
            yield name, stacked([one.fields[name] for one in parts])


def stacked(tables: Sequence[Any]) -> Any:
    """Returns tables of one kind one below the other, in memory: arrays, features or names."""
    first = tables[0]
    if isinstance(first, Names):
        return Names.joined(tables)
    if scipy.sparse.issparse(first):
        return scipy.sparse.vstack(tables, format="csr")
    return np.concatenate(tables)


def in_order(table: Any, rows: Integers | None) -> Any:
    """Returns a table with row u at ``rows[u]``."""
    return table if rows is None else table_rows(table, np.argsort(rows))


def reordered(
    edges: Mapping[str, Any], rows: Integers | None, columns: Integers | None
) -> dict[str, Any]:
    """Returns the arrays of edges with row u at ``rows[u]``, and column v called ``columns[v]``.

    None leaves rows or columns as they are. Columns ascend within a row if they were renamed;
    entries with the same column stay in their order.
    """
    indptr, indices = np.asarray(edges["indptr"]), np.asarray(edges["indices"])
    place = np.arange(len(indptr) - 1) if rows is None else np.argsort(rows)
    lengths = np.diff(indptr)[place]
    entries = entry_places(indptr[place], lengths)
    found = indices[entries]
    if columns is not None:
        found = columns[found].astype(indices.dtype, copy=False)
        order = np.lexsort((found, np.repeat(np.arange(len(place)), lengths)))
        found, entries = found[order], entries[order]
    beside = {name: edges[name][entries] for name in OF_ENTRIES if edges.get(name) is not None}
    return {"indptr": np.concatenate([[0], lengths.cumsum()]), "indices": found, **beside}
