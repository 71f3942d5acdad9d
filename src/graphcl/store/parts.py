"""Opens stores in parts: a graph that is divided among folders, for machines that hold one each.

    FOLDER/parts.json         the parts, their ranges of nodes, the build, how nodes were ordered,
                              what was divided, and the checksums of files beside the parts
    FOLDER/part-00000/        the rows of the first range: `part.json` and the arrays of a store
    FOLDER/part-00001/        …

Part p has the nodes ``start … stop − 1`` of the graph, in the numbering of the whole graph. It has
their features, labels, masks and ids, and the edges that begin at them. `indptr` counts within the
part; `indices` are numbers of the whole graph, so an edge may lead to another part. Unless numbers
stayed, `rows` has the number that each node had before; nodes without ids have it as their id. So
`whole_fields` returns exactly the graph that was divided, whatever the order.

`open_part` maps one part and needs `parts.json` beside it and no other part. A part is refused if
it is missing, differs from what was written, or comes from another build; the message names it.
Every build has an id, which follows from the checksums of its source, the number of parts and the
order: equal ids mean equal parts.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import StoreError, require
from graphcl.store.columns import Names, ScaledFeatures
from graphcl.store.reader import (
    MASKS,
    PART,
    StoreHeader,
    check_structure,
    checked_header,
    file_digest,
    map_array,
    mapped_fields,
    read_description,
    require_count,
    sparse_rows,
    verify_arrays,
)

MANIFEST = "parts.json"
KIND = "store in parts"
MARK = "graphcl_parts"
ORDERS = ("neighbours", "hash", "as-is")
MOST_PARTS = 4096  # so that `parts.json` stays small
IntArray = npt.NDArray[np.int64]


class Source(NamedTuple):
    """What parts were made of.

    Attributes:
        fingerprint: of the graph, by which a run that was trained on the parts knows it again.
        store: where the store was; empty if it is gone, as after ``build --parts``.
        beside: files in the folder that belong to no part, and their checksums.
    """

    fingerprint: str = ""
    store: str = ""
    beside: Mapping[str, str] = {}

    @classmethod
    def read(cls, file: Path, values: Mapping[str, Any]) -> "Source":
        """Returns what a file says of it.

        Raises:
            StoreError: it is damaged.
        """
        about = values.get("source")
        found = about if isinstance(about, dict) else {}
        beside = found.get("beside")
        listed: dict[str, Any] = beside if isinstance(beside, dict) else {"": None}
        texts = [found.get("fingerprint"), found.get("store"), *listed.values()]
        known = all(re.fullmatch(r"(?:[a-z]+-[0-9]+/)?[a-z]+\.[a-z]+", name) for name in listed)
        if not known or not all(isinstance(one, str) for one in texts):
            raise StoreError(f"{file}: lacks its source, or names files that are none of a store")
        return cls(found["fingerprint"][:64], found["store"][:4096], listed)

    def verify(self, folder: Path) -> None:
        """Compares the files beside the parts with their checksums.

        Raises:
            StoreError: one is missing or damaged.
        """
        for name, digest in self.beside.items():
            if not (folder / name).is_file():
                raise StoreError(f"{folder / name}: missing; features were prepared by it")
            if file_digest(folder / name) != digest:
                raise StoreError(f"{folder / name}: altered or damaged (its checksum differs)")


NOTHING = Source()


@dataclass(frozen=True, eq=False)
class Parts:
    """What `parts.json` says of a graph in parts.

    Attributes:
        path: the folder.
        name: the graph's name.
        build: the id of the build, 32 hex digits.
        order: how nodes were ordered: one of `ORDERS`.
        starts: int64, ``[parts + 1]``: part p has the nodes ``starts[p] … starts[p + 1] − 1``.
        num_edges: number of undirected edges.
        num_features: number of features.
        cut_edges: how many edges have their ends in two parts.
        digests: the checksum of each part's `part.json`.
        within: the folder in that of a part where its rows are, if they are those of a type.
        source: what was divided.
    """

    path: Path
    name: str
    build: str
    order: str
    starts: IntArray
    num_edges: int
    num_features: int
    cut_edges: int
    digests: tuple[str, ...]
    within: str = ""
    source: Source = NOTHING

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the whole graph."""
        return int(self.starts[-1])

    @property
    def cut_share(self) -> float:
        """The share of edges that have their ends in two parts."""
        return self.cut_edges / self.num_edges if self.num_edges else 0.0

    def nodes(self, part: int) -> slice:
        """Returns the range of nodes of a part."""
        require(0 <= part < len(self), "Parts", "part", f"in [0, {len(self)})", part)
        return slice(int(self.starts[part]), int(self.starts[part + 1]))

    def owner(self, nodes: Any) -> Any:
        """Returns the part of one node, or of each node of an array: a bisection of the ranges."""
        return np.searchsorted(self.starts, nodes, side="right") - 1

    def folder(self, part: int) -> Path:
        """Returns the folder of a part."""
        return self.path / part_name(part) / self.within


@dataclass(frozen=True, eq=False)
class Part:
    """One part, mapped from disk.

    Attributes:
        parts: the graph that it belongs to.
        number: which part.
        nodes: its range of nodes.
        fields: what a `Graph` of these nodes would have; `indices` are those of the whole graph.
        rows: the numbers that the nodes had before they were divided; None if they stayed.
    """

    parts: Parts
    number: int
    nodes: slice
    fields: dict[str, Any]
    rows: IntArray | None = None

    def check(self) -> None:
        """Checks what compiled loops rely on, as `Graph.check` does.

        Raises:
            StoreError: the structure is damaged; the message says where.
        """
        where = str(self.parts.folder(self.number))
        check_structure(where, self.fields, num_nodes=self.parts.num_nodes)


def part_name(part: int) -> str:
    """Returns the name of a part's folder, and of what is made of the part."""
    return f"part-{part:05d}"


def is_parts(path: Path) -> bool:
    """Returns whether `path` is a folder that looks like a store in parts."""
    return (path / MANIFEST).is_file()


def read_parts(path: Path) -> Parts:
    """Reads `parts.json`, and no part.

    Raises:
        StoreError: the folder has none, or it is damaged.
    """
    values, file = read_description(path, MANIFEST, KIND, MARK), path / MANIFEST
    listed = values.get("parts")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MOST_PARTS:
        raise StoreError(f"{file}: must list 1 to {MOST_PARTS} parts")
    for key in ("num_edges", "num_features", "cut_edges"):
        require_count(file, key, values.get(key))
    name, build = values.get("name"), values.get("build")
    if not isinstance(name, str) or not isinstance(build, str) or values.get("order") not in ORDERS:
        raise StoreError(f"{file}: lacks a name, a build or a known order")
    if not re.fullmatch(r"[0-9a-f]{32}", build):
        raise StoreError(f"{file}: build must be 32 hex digits; got {build[:40]!r}")
    starts, digests = [0], []
    for number, one in enumerate(listed):
        about: dict[str, Any] = one if isinstance(one, dict) else {}
        for key in ("start", "stop"):
            require_count(file, f"{key} of part {number}", about.get(key))
        if about["start"] != starts[-1] or about["stop"] <= about["start"]:
            raise StoreError(f"{file}: the range of part {number} does not follow the one before")
        if not isinstance(about.get("sha256"), str):
            raise StoreError(f"{file}: part {number} lacks a sha256")
        starts.append(about["stop"])
        digests.append(about["sha256"])
    if values.get("num_nodes", starts[-1]) != starts[-1]:
        raise StoreError(f"{file}: num_nodes is not the sum of the ranges, {starts[-1]}")
    numbers = (values["num_edges"], values["num_features"], values["cut_edges"])
    ranges = np.array(starts, dtype=np.int64)
    sums, source = tuple(digests), Source.read(file, values)
    named = (path, name[:200], build, values["order"], ranges)
    return Parts(*named, *numbers, sums, source=source)


def open_part(path: Path, number: int) -> Part:
    """Maps one part; no other part needs to be there.

    Raises:
        StoreError: the part is missing, damaged or of another build.
    """
    return part_of(read_parts(path), number)


def part_of(parts: Parts, number: int) -> Part:
    """Maps one part, as `open_part` does."""
    nodes, header = parts.nodes(number), _part_header(parts, number)
    fields, rows = mapped_fields(parts.folder(number), header, file=PART), None
    if "rows" in header.arrays:
        rows = map_array(parts.folder(number), "rows", header.arrays["rows"], PART)
        fields.setdefault("node_ids", rows)  # nodes must be found by the numbers that they had
    return Part(parts, number, nodes, fields, rows)


def verify_part(
    path: Path, number: int, on_array: Callable[[str, int], None] = lambda *_: None
) -> Part:
    """Opens a part, compares every byte with its checksums, and scans its structure.

    `on_array` is called after each array with its name and its size in bytes.

    Raises:
        StoreError: the part is missing, damaged or of another build.
    """
    return verified(read_parts(path), number, on_array)


def verified(parts: Parts, number: int, on_array: Callable[[str, int], None]) -> Part:
    """Opens and compares a part, as `verify_part` does."""
    part = part_of(parts, number)
    verify_arrays(parts.folder(number), _part_header(parts, number).arrays, on_array)
    part.check()
    return part


def join_parts(path: Path) -> dict[str, Any]:
    """Returns the fields of a `Graph` with all parts, in memory: for graphs that fit."""
    return joined(read_parts(path))


def joined(parts: Parts) -> dict[str, Any]:
    """Returns the rows of all parts, as `join_parts` does; one part is mapped."""
    each = [part_of(parts, number).fields for number in range(len(parts))]
    if len(each) == 1:
        return each[0]
    lengths = np.concatenate([np.diff(one["indptr"]) for one in each])
    fields = dict(each[0])
    fields["indptr"] = np.concatenate([[0], lengths.cumsum()])
    fields["self_loops_removed"] = sum(one["self_loops_removed"] for one in each)
    for name in ("indices", "edge_weight", "y", *MASKS):
        if name in fields:
            fields[name] = np.concatenate([one[name] for one in each])
    fields["x"] = _join_features([one["x"] for one in each])
    ids = [one["node_ids"] for one in each if "node_ids" in one]
    if isinstance(fields.get("node_ids"), Names):
        fields["node_ids"] = Names.of([name for names in ids for name in names])
    elif ids:
        fields["node_ids"] = np.concatenate(ids)
    return fields


def whole_fields(parts: Parts) -> tuple[dict[str, Any], IntArray | None]:
    """Returns the graph that was divided, in its own order; several parts are in memory.

    Also returns the number that each of its nodes had, by the number in the parts; None if numbers
    stayed.

    Raises:
        StoreError: the numbers are damaged.
    """
    each = [part_of(parts, number) for number in range(len(parts))]
    fields = joined(parts)
    if each[0].rows is None:
        return fields, None
    rows = np.concatenate([np.zeros(0, np.int64) if one.rows is None else one.rows for one in each])
    found = np.sort(rows)
    if len(rows) != parts.num_nodes or not np.array_equal(found, np.arange(len(rows))):
        raise StoreError(f"{parts.path}: the numbers in rows.npy are damaged")
    if each[0].fields["node_ids"] is each[0].rows:
        del fields["node_ids"]  # it had none
    return (fields if len(each) == 1 else _in_order(fields, rows)), rows


def _in_order(fields: Mapping[str, Any], rows: IntArray) -> dict[str, Any]:
    """Returns fields with row u at ``rows[u]``."""
    found, place = dict(fields), np.argsort(rows)
    kind, x = fields["indices"].dtype, fields["x"]
    edges = reordered(fields["indptr"], fields["indices"], rows, rows)
    found["indptr"], found["indices"] = edges.indptr, edges.indices.astype(kind)
    if "edge_weight" in fields:
        found["edge_weight"] = fields["edge_weight"][edges.entries]
    for name in ("y", *MASKS):
        if name in fields:
            found[name] = fields[name][place]
    if scipy.sparse.issparse(x):
        moved = reordered(x.indptr, x.indices, rows)
        found["x"] = sparse_rows(x.shape, moved.indptr, moved.indices, x.data[moved.entries])
    elif isinstance(x, ScaledFeatures):
        scales = None if x.row_scale is None else x.row_scale[place]
        found["x"] = ScaledFeatures(x.values[place], x.scale, scales)
    else:
        found["x"] = x[place]
    if isinstance(fields.get("node_ids"), Names):
        found["node_ids"] = Names.of(fields["node_ids"][place])
    elif "node_ids" in fields:
        found["node_ids"] = fields["node_ids"][place]
    return found


class Reordered(NamedTuple):
    """Rows in another order: their pointers and columns, and where each entry was."""

    indptr: IntArray
    indices: IntArray
    entries: IntArray


def reordered(
    indptr: Any, indices: Any, rows: IntArray | None, columns: IntArray | None = None
) -> Reordered:
    """Returns entries with row u at ``rows[u]``, and column v called ``columns[v]``.

    None leaves rows or columns as they are. Columns ascend within a row if they were renamed;
    entries with the same column stay in their order.
    """
    place = np.arange(len(indptr) - 1) if rows is None else np.argsort(rows)
    lengths = np.diff(indptr)[place]
    pointers = np.concatenate([[0], lengths.cumsum()])
    entries = np.repeat(np.asarray(indptr)[place] - pointers[:-1], lengths)
    entries += np.arange(len(entries))
    found = np.asarray(indices)[entries]
    if columns is not None:
        found = columns[found]
        order = np.lexsort((found, np.repeat(np.arange(len(place)), lengths)))
        found, entries = found[order], entries[order]
    return Reordered(pointers, found, entries)


def _join_features(tables: list[Any]) -> Any:
    if scipy.sparse.issparse(tables[0]):
        lengths = np.concatenate([np.diff(one.indptr) for one in tables])
        pointers = np.concatenate([[0], lengths.cumsum()])
        columns, data = (
            np.concatenate([getattr(one, name) for one in tables]) for name in ("indices", "data")
        )
        return sparse_rows((len(lengths), tables[0].shape[1]), pointers, columns, data)
    if not isinstance(tables[0], ScaledFeatures):
        return np.concatenate(tables)
    rows = None
    if any(table.row_scale is not None for table in tables):
        ones = [np.ones(len(table), np.float32) for table in tables]
        scales = [table.row_scale for table in tables]
        rows = np.concatenate(
            [one if s is None else s for one, s in zip(ones, scales, strict=True)]
        )
    return ScaledFeatures(np.concatenate([t.values for t in tables]), tables[0].scale, rows)


def read_part_description(parts: Parts, number: int, folder: Path, digest: str) -> dict[str, Any]:
    """Reads what a folder of a part says of itself, and compares it with what is said of it.

    Raises:
        StoreError: it is missing, damaged or of another build.
    """
    if not (folder / PART).is_file():
        raise StoreError(f"{folder}: part {number} of {len(parts)} is missing (no {PART})")
    values = read_description(folder, PART, "part", "graphcl_part")
    if values.get("build") != parts.build:
        found = str(values.get("build"))[:40]
        raise StoreError(
            f"{folder}: part {number} is of another build ({found}); that of the whole is "
            f"{parts.build}"
        )
    nodes = parts.nodes(number)
    place = {"part": number, "start": nodes.start, "stop": nodes.stop}
    for key, expected in place.items():
        if values.get(key) != expected:
            raise StoreError(f"{folder / PART}: {key} must be {expected}; got {values.get(key)!r}")
    if hashlib.sha256((folder / PART).read_bytes()).hexdigest() != digest:
        raise StoreError(f"{folder / PART}: altered or damaged (its checksum differs)")
    return values


def _part_header(parts: Parts, number: int) -> StoreHeader:
    folder, nodes = parts.folder(number), parts.nodes(number)
    values = read_part_description(parts, number, folder, parts.digests[number])
    header = checked_header(folder, values, PART)
    if header.num_nodes != nodes.stop - nodes.start or header.num_features != parts.num_features:
        raise StoreError(f"{folder / PART}: its counts differ from those of the whole")
    return header
