"""Maps the arrays of a store: they are never loaded, and checked before anything relies on them.

A part has `.npy` files in a folder for each type and for each direction of a relation:

    x                       features [N, P]: float32 or float16
    x_indptr, x_indices, x_data    instead of x: sparse features
    y                       labels [N] or [N, labels], int64; a number to predict [N], float64
    train_mask, val_mask, test_mask       [N], bool
    node_ids                integers [N]; text is node_ids (UTF-8, uint8) and node_id_offsets
    rows                    the number that each node had before, if the store was divided

    indptr, indices         CSR by the nodes that receive, which are counted within the part; those
                            that send have numbers of the whole graph, ascending in each row. An
                            undirected edge is there twice.
    edge_weight             float32, of each entry
    edge_features           float32 [entries, features]
    edge_ids                of undirected edges that may have the same ends: the number of each

Nodes without ids of a store that was divided have the numbers in `rows` as ids. So
`whole` returns exactly the graph that was divided, whatever the order.

A table of which few rows changed since an earlier store may be that store's file and a patch
(`graphcl.files.patched`). `part.json` has the checksum of each array's file, or of these three.

Opening a part reads the JSON and the files' headers, which takes milliseconds for any size. It
compares both with the files' sizes, and checks the first and last entry of `indptr`. `Part.check`
scans everything that compiled loops rely on (a few seconds for 10^9 entries). `verify_part`
compares the checksums. Nothing in a store is executed, and the JSON cannot name files.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.arrays import Array, Integers
from graphcl.errors import StoreError, demand
from graphcl.files.arrays import regular_size
from graphcl.files.patched import map_table, table_files
from graphcl.files.text import check_fields
from graphcl.store.columns import Names, entry_places, table_rows
from graphcl.store.header import (
    MASKS,
    PART,
    Key,
    Store,
    StoredType,
    edges_name,
    ends,
    nodes_name,
    read_description,
    read_store,
)

SPARSE = ("x_indptr", "x_indices", "x_data")
NODE_DTYPES = {
    "x": ("float32", "float16"),
    "x_indptr": ("int64",),
    "x_indices": ("int32", "int64"),
    "x_data": ("float32",),
    "y": ("int64", "float64"),
    "train_mask": ("bool",),
    "val_mask": ("bool",),
    "test_mask": ("bool",),
    "node_ids": ("int64", "uint64", "int32", "uint8"),
    "node_id_offsets": ("int64",),
    "rows": ("int64",),
}
EDGE_DTYPES = {
    "indptr": ("int64",),
    "indices": ("int32", "int64"),
    "edge_weight": ("float32",),
    "edge_features": ("float32",),
    "edge_ids": ("int64",),
}
CHUNK_BYTES = 1 << 26
_PIECE_BYTES = 1 << 20  # bytes read at a time, which bounds a thread's memory
_SCAN = 1 << 22  # entries scanned at a time: 32 MB of temporaries at most
Edges = dict[str, Array]
Listed = Mapping[str, Sequence[str]]  # the checksums of the files of each array of a folder
OnArray = Callable[[str, int], None]


@dataclass(frozen=True, eq=False)
class PartNodes:
    """The nodes of one type in a part, mapped from disk.

    Attributes:
        type: what the store says of the type, and its ranges.
        number: which part.
        nodes: its range of nodes.
        fields: what `Nodes` of them would have, and the graph's name.
        rows: the numbers that the nodes had before they were divided; None if they stayed.
    """

    type: StoredType
    number: int
    nodes: slice
    fields: dict[str, Any]
    rows: Integers | None = None


@dataclass(frozen=True, eq=False)
class Part:
    """One part of a store, mapped from disk.

    Attributes:
        store: the store that it belongs to.
        number: which part.
        nodes: the part's rows of each type.
        edges: for each relation and direction, its arrays as the module lists them.
    """

    store: Store
    number: int
    nodes: Mapping[str, PartNodes]
    edges: Mapping[tuple[Key, bool], Edges]

    def check(self) -> None:
        """Checks what compiled loops rely on, as `Graph.check` does.

        Raises:
            StoreError: the structure is damaged; the message says where.
        """
        for name, own in self.nodes.items():
            check_features(str(self.store.nodes_folder(self.number, name)), own.fields.get("x"))
        for (key, backwards), edges in self.edges.items():
            where = str(self.store.edges_folder(self.number, key, backwards))
            senders = self.store.types[ends(key, backwards)[1]].num_nodes
            check_edges(where, edges, senders, self.store.relations[key].num_edges)


def open_part(store: Store | Path, number: int) -> Part:
    """Maps one part; no other part needs to be there.

    Raises:
        StoreError: the part is missing, damaged or of another build.
    """
    store = store if isinstance(store, Store) else read_store(store)
    nodes, edges = {}, {}
    listed = read_part(store, number)
    for place, (name, about) in enumerate(store.types.items()):
        own = about.nodes(number)
        folder, count = store.nodes_folder(number, name), own.stop - own.start
        fields = _node_fields(folder, listed[nodes_name(place)], count, about.num_features)
        rows = fields.pop("rows", None)
        if rows is not None:
            fields.setdefault("node_ids", rows)  # nodes must be found by the numbers that they had
        fields |= {"name": store.name, "class_names": about.class_names}
        nodes[name] = PartNodes(about, number, own, fields, rows)
    for place, (key, relation) in enumerate(store.relations.items()):
        for backwards in relation.backwards:
            arrays = listed[edges_name(place, backwards)]
            edges[key, backwards] = _open_edges(store, number, key, backwards, arrays)
    return Part(store, number, nodes, edges)


def read_part(store: Store, number: int) -> dict[str, Listed]:
    """Reads what a part says of its arrays, for each of its folders.

    Raises:
        StoreError: it is missing, damaged or of another build.
    """
    next(iter(store.types.values())).nodes(number)  # or there is no such part
    folder = store.part_folder(number)
    file = folder / PART
    demand(
        file.is_file(),
        f"{folder}: part {number} of {len(store)} is missing (no {PART})",
        StoreError,
    )
    values = read_description(folder, PART, "part", "graphcl_part")
    found = str(values.get("build"))
    demand(
        found == store.build,
        f"{folder}: part {number} is of another build ({found[:40]}); that of the whole is "
        f"{store.build}",
        StoreError,
    )
    demand(
        hashlib.sha256(file.read_bytes()).hexdigest() == store.digests[number],
        f"{file}: altered or damaged (its checksum differs)",
        StoreError,
    )
    expected = {nodes_name(place): NODE_DTYPES for place in range(len(store.types))}
    for place, one in enumerate(store.relations.values()):
        expected |= {edges_name(place, backwards): EDGE_DTYPES for backwards in one.backwards}
    arrays = check_fields(values, {"arrays": dict}, str(file), StoreError)["arrays"]
    listed = check_fields(arrays, dict.fromkeys(expected, dict), str(file), StoreError)
    for within, dtypes in expected.items():
        _check_listed(file, listed[within], dtypes)
    return listed


def verify_store(path: Path, on_array: OnArray = lambda *_: None) -> Store:
    """Reads the whole store and compares every file with its checksum.

    `on_array` is called after each array with its path in the store and its size in bytes.

    Raises:
        StoreError: a file differs from what was written.
    """
    store = read_store(path)
    for name, digest in store.source.beside.items():
        demand(
            (path / name).is_file(),
            f"{path / name}: missing; features were prepared by it",
            StoreError,
        )
        demand(
            file_digest(path / name) == digest,
            f"{path / name}: altered or damaged (its checksum differs)",
            StoreError,
        )
    for number in range(len(store)):
        verify_part(store, number, on_array)
    return store


def verify_part(store: Store | Path, number: int, on_array: OnArray = lambda *_: None) -> Part:
    """Opens a part, compares every byte with its checksums, and scans its structure.

    Raises:
        StoreError: the part is missing, damaged or of another build.
    """
    part = open_part(store, number)
    folder = part.store.part_folder(number)
    for within, listed in read_part(part.store, number).items():
        for name, digests in listed.items():
            size = 0
            for file, digest in zip(table_files(folder / within, name), digests, strict=True):
                size += regular_size(file, StoreError)
                demand(
                    file_digest(file) == digest,
                    f"{file}: altered or damaged (its checksum differs)",
                    StoreError,
                )
            on_array(f"{folder.name}/{within}/{name}", size)
    part.check()
    return part


def file_digest(path: Path) -> str:
    """Returns the SHA-256 of the SHA-256 digests of a file's chunks of 64 MiB, 64 hex digits.

    Chunks are hashed in parallel, so hashing a gigabyte takes about as long as reading it.
    """
    size = path.stat().st_size
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        digests = pool.map(lambda start: _chunk_digest(path, start), range(0, size, CHUNK_BYTES))
        return hashlib.sha256(b"".join(digests)).hexdigest()


def _chunk_digest(path: Path, start: int) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(start)
        for place in range(0, CHUNK_BYTES, _PIECE_BYTES):  # after the file's end, nothing is read
            digest.update(file.read(min(_PIECE_BYTES, CHUNK_BYTES - place)))
    return digest.digest()


def known_digest(file: Path) -> str:
    """Returns the checksum that a store has of one of its files; empty if it is of no store."""
    part = file.parent.parent
    if not (part / PART).is_file():
        return ""
    arrays = read_description(part, PART, "part", "graphcl_part").get("arrays", {})
    found = arrays.get(file.parent.name, {}).get(file.name.split(".")[0], [""])
    return str(found[0])


def check_features(where: str, x: Any) -> None:
    """Checks that sparse features are within their table, as `check_edges` does."""
    if scipy.sparse.issparse(x):
        _check_csr(where, "x_indptr", x.indptr, "x_indices", x.indices, x.shape[1])


def check_edges(where: str, edges: Mapping[str, Any], senders: int, num_edges: int) -> None:
    """Checks that pointers never decrease and that indices are within the graph.

    Compiled loops do not check bounds: one wrong number would make them read memory outside an
    array. Each process that uses a store checks it once; a result saved on disk could be forged.

    Raises:
        StoreError: a pointer or an index is wrong; the message names the first one.
    """
    _check_csr(where, "indptr", edges["indptr"], "indices", edges["indices"], senders)
    if edges.get("edge_ids") is not None:
        _check_range(where, "edge_ids", edges["edge_ids"], num_edges)


def _check_csr(
    where: str, pointers: str, indptr: Any, columns: str, indices: Any, limit: int
) -> None:
    for start in range(0, len(indptr) - 1, _SCAN):
        part = indptr[start : start + _SCAN + 1]
        for row in start + np.flatnonzero(part[1:] < part[:-1])[:1]:
            raise StoreError(f"{where}: {pointers} decreases at row {row}; the store is damaged")
    _check_range(where, columns, indices, limit)


def _check_range(where: str, name: str, array: Any, limit: int) -> None:
    for start in range(0, len(array), _SCAN):
        part = array[start : start + _SCAN]
        low, high = int(part.min()), int(part.max())
        if low < 0 or high >= limit:
            worst = low if low < 0 else high
            raise StoreError(f"{where}: {name} holds {worst}; expected 0 to {limit - 1}")


def _node_fields(folder: Path, listed: Listed, nodes: int, features: int) -> dict[str, Any]:
    """Maps the nodes of a type; a part may lack nodes of it."""
    arrays = {name: _map_array(folder, name, NODE_DTYPES, one) for name, one in listed.items()}
    _check_shapes(folder, arrays, nodes, features)
    kept = ("y", *MASKS, "rows")
    fields: dict[str, Any] = {name: arrays[name] for name in kept if name in arrays}
    if features:
        fields["x"] = _features(folder, arrays, features)
    if "node_id_offsets" in arrays:
        fields["node_ids"] = Names(arrays["node_id_offsets"], arrays["node_ids"])
    elif "node_ids" in arrays:
        fields["node_ids"] = arrays["node_ids"]
    return fields


def _open_edges(store: Store, number: int, key: Key, backwards: bool, listed: Listed) -> Edges:
    """Maps the edges of one direction of a relation."""
    folder, relation = store.edges_folder(number, key, backwards), store.relations[key]
    receivers = store.types[ends(key, backwards)[0]].nodes(number)
    expected = {"indptr", "indices"}
    expected |= {"edge_weight"} if relation.weighted else set()
    expected |= {"edge_features"} if relation.num_edge_features else set()
    demand(
        listed.keys() - {"edge_ids"} == expected,
        f"{folder}: must have the arrays {', '.join(sorted(expected))}",
        StoreError,
    )
    arrays = {name: _map_array(folder, name, EDGE_DTYPES, one) for name, one in listed.items()}
    entries = arrays["indices"].size
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(arrays, (entries,))
    shapes["indptr"] = (receivers.stop - receivers.start + 1,)
    shapes["edge_features"] = (entries, relation.num_edge_features)
    _require_shapes(folder, arrays, shapes, f"{entries} entries")
    _check_ends(folder, arrays, "indptr", "indices")
    demand(
        len(store) != 1 or entries == relation.num_edges * (2 if relation.undirected else 1),
        f"{folder}: has {entries} entries for {relation.num_edges} edges",
        StoreError,
    )
    return arrays


def _features(folder: Path, arrays: Mapping[str, Any], width: int) -> Any:
    """Returns features; sparse ones of these very arrays: the constructor would convert them."""
    if "x" in arrays:
        return arrays["x"]
    _check_ends(folder, arrays, "x_indptr", "x_indices")
    csr = scipy.sparse.csr_array((len(arrays["x_indptr"]) - 1, width), dtype=np.float32)
    csr.indptr, csr.indices, csr.data = (arrays[name] for name in SPARSE)
    return csr


def _check_ends(folder: Path, arrays: Mapping[str, Array], pointers: str, indices: str) -> None:
    first, last, entries = *map(int, arrays[pointers][[0, -1]]), len(arrays[indices])
    demand(
        first == 0 and last == entries,
        f"{folder}: {pointers} goes from {first} to {last}; {indices} has {entries} entries",
        StoreError,
    )


def _check_shapes(folder: Path, arrays: Mapping[str, Array], nodes: int, features: int) -> None:
    """Refuses nodes with missing arrays, or with shapes that do not fit together."""
    text, sparse = "node_id_offsets" in arrays, any(name in arrays for name in SPARSE)
    needed = [*(SPARSE if sparse else ["x"])] if features else []
    missing = [name for name in (*needed, *(["node_ids"] if text else [])) if name not in arrays]
    if missing:
        raise StoreError(f"{folder}: has no array {missing[0]!r}")
    stored = arrays["x_indices"].size if sparse else -1
    expected: dict[str, tuple[int, ...]] = {
        "x": (nodes, features),
        "x_indptr": (nodes + 1,),
        "x_indices": (stored,),
        "x_data": (stored,),
        "node_id_offsets": (nodes + 1,),
        "rows": (nodes,),
        **dict.fromkeys(MASKS, (nodes,)),
    }
    if "y" in arrays:  # one label per node, or several
        expected["y"] = (nodes, *arrays["y"].shape[1:2])
    if "node_ids" in arrays:
        expected["node_ids"] = (arrays["node_ids"].size if text else nodes,)
        demand(
            text == (arrays["node_ids"].dtype == np.uint8),
            f"{folder}: node_ids has the type {arrays['node_ids'].dtype}",
            StoreError,
        )
    _require_shapes(folder, arrays, expected, f"{nodes} nodes and {features} features")


def _require_shapes(
    folder: Path, arrays: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]], what: str
) -> None:
    for name, array in arrays.items():
        if array.shape != shapes[name]:
            raise StoreError(
                f"{folder}: {name} has shape {array.shape} of {array.dtype}, which does not fit "
                f"{what}"
            )


def _check_listed(file: Path, listed: Mapping[str, Any], dtypes: Mapping[str, Any]) -> None:
    """Checks what is said of arrays; `dtypes` are the names that there may be, and their types.

    Raises:
        StoreError: an array is unknown, or lacks a checksum.
    """
    for name, digests in listed.items():
        if name not in dtypes:
            known = ", ".join(dtypes)
            raise StoreError(f"{file}: unknown array {name[:40]!r}; known: {known}")
        check_fields(listed, {name: tuple[str, ...]}, str(file), StoreError)
        demand(
            len(digests) in (1, 3),
            f"{file}: {name} must have a checksum, or three if it is a patch",
            StoreError,
        )


def _map_array(
    folder: Path, name: str, dtypes: Mapping[str, tuple[str, ...]], digests: Sequence[str]
) -> Array:
    """Maps one table; its header, its size and its type must be right."""
    files = table_files(folder, name)
    if len(files) != len(digests):
        kind = "a whole table" if len(files) == 1 else "a patch"
        raise StoreError(f"{files[0]}: {kind}; {PART} says otherwise")
    try:
        array = map_table(folder, name, StoreError)
    except OSError as error:
        raise StoreError(f"{files[0]}: cannot be read ({error.strerror})") from None
    if str(array.dtype) not in dtypes[name]:
        known = " or ".join(dtypes[name])
        raise StoreError(f"{files[0]}: holds {array.dtype}; expected {known}")
    return array


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
        edges[key] = _joined_edges([part.edges[key, False] for part in parts], key, rows)
        edges[key] |= {
            "undirected": about.undirected,
            "self_loops_removed": about.self_loops_removed,
        }
    return types, edges


def _rows(store: Store, parts: Sequence[Part], name: str) -> Integers | None:
    """Returns the number that each node of a type had; None if numbers stayed."""
    found = [part.nodes[name].rows for part in parts]
    if len(parts) == 1 or found[0] is None:
        return None
    rows = np.concatenate([np.zeros(0, np.int64) if one is None else one for one in found])
    demand(
        np.array_equal(np.sort(rows), np.arange(store.types[name].num_nodes)),
        f"{store.path}: the numbers in rows.npy are damaged",
        StoreError,
    )
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
