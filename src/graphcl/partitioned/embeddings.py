"""Reads the shards that `graphcl embed RUN PARTS` wrote, as one table that is never loaded.

The table is used in place of an array ``[nodes, dim]``: it has a shape, and rows are read when they
are asked for. `.npy` shards are mapped. Of `.parquet` shards one group of rows is decoded at a
time, 65,536 as we write them, and the last one is kept; so rows in order are decoded once.

A set of shards is refused if a file is missing, torn, or not the one that was written with the
others. Opening compares sizes, counts of rows, and a checksum of each file's first and last 64 kB;
that takes milliseconds for any size. This module imports no torch.

The embeddings of a typed graph are such a folder for each type, within one folder.

The nodes of the parts, without edges and features, are in memory: ids, labels, split and degrees,
some 20 bytes per node and the ids; a graph of 10^8 nodes takes 3 GB.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphcl.arrays import Array, Floats, Integers, blocks
from graphcl.errors import GraphCLError, RunError, demand, import_extra
from graphcl.files.arrays import map_npy, regular_size
from graphcl.files.text import check_fields
from graphcl.graphs.nodes import Nodes
from graphcl.store.columns import Names
from graphcl.store.header import (
    MASKS,
    MOST_PARTS,
    StoredType,
    ends,
    part_name,
    read_description,
    read_store,
)

FILE = "shards.json"
KIND = "folder of embeddings in shards"
MARK = "graphcl_shards"
TYPED_MARK = "graphcl_typed_shards"
READABLE = (".npy", ".parquet")
_SHARDS = {"name": str, "build": str, "model": str, "dim": int, "num_nodes": int}
_SHARDS |= {"shards": tuple[dict, ...]}  # type: ignore[type-arg]
_SHARD = {"file": str, "start": int, "stop": int, "bytes": int, "ends": str}
END_BYTES = 1 << 16  # of a file's first and last bytes that are compared
_GATHERED = 1 << 14  # rows that are gathered at a time


@dataclass(frozen=True, eq=False)
class ShardedEmbeddings:
    """Embeddings in shards, in the numbering of the parts.

    Attributes:
        path: the folder.
        name: the graph's name.
        build: the id of the build of the parts that were embedded.
        model: the checksum of the weights that made them.
        starts: where the rows of each shard begin, and the number of nodes, ``[shards + 1]``.
        dim: the width.
    """

    path: Path
    name: str
    build: str
    model: str
    starts: Integers
    dim: int
    shards: tuple["_NpyShard | _ParquetShard", ...]
    ndim = 2
    dtype = np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, int]:
        """``(nodes, dim)``."""
        return (len(self), self.dim)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, rows: Any) -> Floats:
        """Returns one row, or those of a slice, of row numbers or of a mask, in memory."""
        if isinstance(rows, slice):
            return self._some(np.arange(*rows.indices(len(self))))
        numbers = np.asarray(rows)
        if numbers.dtype == np.bool_:
            demand(
                numbers.shape == (len(self),),
                f"a mask {numbers.shape} for {len(self)} rows",
                IndexError,
            )
            numbers = np.flatnonzero(numbers)
        numbers = np.where(numbers < 0, numbers + len(self), numbers).astype(np.int64)
        demand(
            not numbers.size or 0 <= numbers.min() <= numbers.max() < len(self),
            f"a row outside 0 … {len(self) - 1}",
            IndexError,
        )
        found = self._some(numbers.reshape(-1))
        return found if numbers.ndim else found[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:].astype(dtype or np.float32, copy=False)

    def node_ids(self) -> Array | Names | None:
        """Returns the ids of all rows, in memory; None for `.npy` shards, which have none."""
        found = [shard.ids() for shard in self.shards]
        if any(ids is None for ids in found):
            return None
        if isinstance(found[0], Names):
            return Names.joined([ids for ids in found if isinstance(ids, Names)])
        return np.concatenate([np.asarray(ids) for ids in found])

    def _some(self, numbers: Array) -> Floats:
        """Reads rows in ascending order, wherever they were asked for."""
        found = np.empty((len(numbers), self.dim), np.float32)
        order = np.argsort(numbers, kind="stable")
        places = np.searchsorted(numbers[order], self.starts)
        for number, shard in enumerate(self.shards):
            mine = order[places[number] : places[number + 1]]
            local = numbers[mine] - self.starts[number]
            for some in blocks(len(mine), _GATHERED):
                found[mine[some]] = shard.rows(local[some])
        return found


def shard_types(path: Path) -> list[str]:
    """Returns the types whose embeddings a folder has; none of a plain graph.

    Raises:
        RunError: it is not a folder of shards, or is damaged.
    """
    try:
        about = read_description(path, FILE, KIND, TYPED_MARK, RunError)
    except RunError:
        read_description(path, FILE, KIND, MARK, RunError)
        return []
    found = check_fields(about, {"types": tuple[str, ...]}, str(path / FILE), RunError)
    return list(found["types"])


def type_shards(path: Path, name: str) -> Path:
    """Returns the folder with the shards of a type.

    Raises:
        RunError: there are none of this type.
    """
    names = shard_types(path)
    listed = f"; it has {', '.join(names)}" if names else ""
    demand(name in names, f"{path}: has no embeddings of the type {name!r}{listed}", RunError)
    return path / type_name(names.index(name))


def type_name(place: int) -> str:
    """Returns the name of the folder of a type among those of all types."""
    return f"type-{place}"


def open_shards(path: Path) -> ShardedEmbeddings:
    """Opens a folder of shards and reads no embedding.

    Raises:
        RunError: there is none, or a shard is missing, torn, or not of this set; or it has those of
            several types.
    """
    names = shard_types(path)
    folders = ", ".join(f"{type_name(at)} ({name})" for at, name in enumerate(names))
    demand(
        not names, f"{path}: has embeddings of several types, in its folders {folders}", RunError
    )
    values = read_description(path, FILE, KIND, MARK, RunError)
    about = check_fields(values, _SHARDS, str(path / FILE), RunError)
    where, dim, nodes = f"{path / FILE}: shard", about["dim"], about["num_nodes"]
    listed = [check_fields(one, _SHARD, where, RunError) for one in about["shards"]]
    demand(
        dim > 0 and 1 <= len(listed) <= MOST_PARTS,
        f"{path / FILE}: must list 1 to {MOST_PARTS} shards, with a dim above 0",
        RunError,
    )
    suffix = Path(listed[0]["file"]).suffix
    demand(
        suffix in READABLE,
        f"{path}: has {suffix or 'unknown'} shards; embeddings are read of "
        f"{' and '.join(READABLE)}",
        RunError,
    )
    starts, shards = [0], []
    for number, entry in enumerate(listed):
        name = f"{part_name(number)}{suffix}"
        demand(
            entry["file"] == name and entry["start"] == starts[-1] <= entry["stop"],
            f"{path / FILE}: shard {number} does not follow the one before",
            RunError,
        )
        starts.append(entry["stop"])
        shape = (starts[-1] - starts[-2], dim)
        shards.append(_open(path / name, number, len(listed), entry, shape))
    demand(
        starts[-1] == nodes,
        f"{path / FILE}: its shards have {starts[-1]} rows; num_nodes is {nodes}",
        RunError,
    )
    name, build, model = (about[key][:200] for key in ("name", "build", "model"))
    ranges = np.array(starts, np.int64)
    return ShardedEmbeddings(path, name, build, model, ranges, dim, tuple(shards))


def ends_digest(path: Path) -> str:
    """Returns a checksum of a file's size and its first and last 64 kB."""
    size, digest = path.stat().st_size, hashlib.sha256()
    digest.update(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(END_BYTES))
        file.seek(max(0, size - END_BYTES), os.SEEK_SET)
        digest.update(file.read(END_BYTES))
    return digest.hexdigest()


def _open(
    path: Path, number: int, count: int, entry: dict[str, Any], shape: tuple[int, int]
) -> "_NpyShard | _ParquetShard":
    try:
        size = regular_size(path, RunError)
    except FileNotFoundError:
        raise RunError(f"{path}: shard {number} of {count} is missing") from None
    demand(
        entry["bytes"] == size,
        f"{path}: torn: has {size} bytes; {FILE} says {entry['bytes']}",
        RunError,
    )
    demand(
        entry["ends"] == ends_digest(path),
        f"{path}: is not the shard that was written with the others, or is damaged",
        RunError,
    )
    return (_NpyShard if path.suffix == ".npy" else _ParquetShard)(path, shape)


class _NpyShard:
    """A mapped array."""

    def __init__(self, path: Path, shape: tuple[int, int]) -> None:
        self._array = map_npy(path, RunError)
        demand(
            self._array.shape == shape and self._array.dtype == np.float32,
            f"{path}: holds {self._array.dtype} {self._array.shape}; {FILE} says float32 {shape}",
            RunError,
        )

    def rows(self, numbers: Array) -> Floats:
        """Returns rows by their numbers, ascending."""
        return np.asarray(self._array[numbers])

    def ids(self) -> None:
        """An array has none."""


class _ParquetShard:
    """A Parquet file, of which one group of rows is held."""

    def __init__(self, path: Path, shape: tuple[int, int]) -> None:
        arrow = ("pyarrow", "pyarrow.parquet")
        pyarrow = import_extra(*arrow, feature="reading .parquet", extra="parquet")
        self._path, self._dim = path, shape[1]
        self._failures = (pyarrow.ArrowException, OSError)
        try:
            self._file = pyarrow.parquet.ParquetFile(path, memory_map=True)
            kind = self._file.schema_arrow.field("embedding").type
            self._file.schema_arrow.field("id")
        except (*self._failures, KeyError) as error:
            raise self._damaged(error) from None
        about = self._file.metadata
        fixed = pyarrow.types.is_fixed_size_list(kind) and kind.value_type == pyarrow.float32()
        demand(
            about.num_rows == shape[0] and fixed and kind.list_size == shape[1],
            f"{path}: holds {about.num_rows} rows of {kind}; {FILE} says {shape[0]} of {shape[1]} "
            "floats",
            RunError,
        )
        counts = [about.row_group(one).num_rows for one in range(about.num_row_groups)]
        self._starts = np.cumsum([0, *counts])
        self._held: tuple[int, Floats] | None = None

    def rows(self, numbers: Array) -> Floats:
        """Returns rows by their numbers, ascending."""
        groups = np.searchsorted(self._starts, numbers, side="right") - 1
        pieces = [
            self._group(group)[numbers[groups == group] - self._starts[group]]
            for group in np.unique(groups).tolist()
        ]
        return np.concatenate(pieces)

    def ids(self) -> Array | Names:
        """Returns the column of ids."""
        import pyarrow

        try:
            column = self._file.read(columns=["id"])["id"]
        except self._failures as error:
            raise self._damaged(error) from None
        demand(not column.null_count, f"{self._path}: an id is missing", RunError)
        if pyarrow.types.is_integer(column.type):
            return np.asarray(column)
        return Names.from_arrow(column)

    def _group(self, group: int) -> Floats:
        if self._held is None or self._held[0] != group:
            self._held = None  # before the next one is decoded
            try:
                table = self._file.read_row_group(group, columns=["embedding"])
            except self._failures as error:
                raise self._damaged(error) from None
            column = table["embedding"]
            pieces = [one.flatten().to_numpy().reshape(-1, self._dim) for one in column.chunks]
            rows = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            demand(
                len(rows) == self._starts[group + 1] - self._starts[group],
                f"{self._path}: an embedding is missing",
                RunError,
            )
            self._held = (group, rows)
        return self._held[1]

    def _damaged(self, error: BaseException) -> GraphCLError:
        reason = " ".join(str(error).split())[:120]
        return RunError(f"{self._path}: not a readable shard ({reason})")


@dataclass(frozen=True, eq=False)
class PartsNodes(Nodes):
    """The nodes of a type of a store in parts, in the order of the parts, with degrees.

    Attributes:
        parts: which part has which.
    """

    parts: StoredType | None = None


def read_parts_nodes(path: Path, name: str | None = None) -> PartsNodes:
    """Reads the nodes of a type, or of the only one, of all parts; a degree counts all relations.

    Raises:
        RunError: there is no such type.
        StoreError: a part is missing, damaged or of another build.
    """
    from graphcl.store.reader import (
        columns,  # both take a while to import
        open_part,
    )

    store = read_store(path)
    if name is None:
        (name,) = store.types
    demand(
        name in store.types,
        f"{path}: has no type {name!r}; its types: {', '.join(store.types)}",
        RunError,
    )
    about = store.types[name]
    parts = [open_part(store, number) for number in range(len(store))]
    degree = np.zeros(about.num_nodes, np.int32)
    for part in parts:
        for (key, backwards), edges in part.edges.items():
            if ends(key, backwards)[0] == name:
                degree[part.nodes[name].nodes] += np.diff(edges["indptr"]).astype(np.int32)
    joined = dict(columns([part.nodes[name] for part in parts], ("y", *MASKS, "node_ids")))
    more: dict[str, Any] = {"class_names": about.class_names, "degree": degree, "parts": about}
    return PartsNodes(name, about.num_nodes, **joined, **more)


def check_same_build(shards: ShardedEmbeddings, nodes: PartsNodes) -> None:
    """Refuses shards that are not of these parts.

    Raises:
        RunError: they are of another build.
    """
    parts = nodes.parts
    assert parts is not None  # of a store in parts
    demand(
        shards.build == parts.build and len(shards) == parts.num_nodes,
        f"{shards.path}: embeddings of the build {shards.build}; {parts.path} has the build "
        f"{parts.build}",
        RunError,
    )
