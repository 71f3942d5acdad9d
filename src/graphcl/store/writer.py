"""Writes stores array by array. They may be larger than memory, and appear whole or not at all."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError, ParameterError, StoreError, demand
from graphcl.files.arrays import create_npy, shorten_npy
from graphcl.files.atomic import check_new_folder, whole_folder
from graphcl.files.patched import (
    Share,
    base_file,
    stored_files,
    table_files,
    write_lists,
    write_table,
)
from graphcl.store.columns import Names
from graphcl.store.header import (
    FORMAT,
    HEADER,
    MASKS,
    NOTHING,
    PART,
    Key,
    Store,
    StoredRelation,
    StoredType,
    edges_name,
    nodes_name,
    part_name,
    write_header,
)
from graphcl.store.reader import (
    file_digest,
    known_digest,
    open_part,
)

FEATURE_DTYPES = ("float32", "float16")
_BLOCK_BYTES = 1 << 25  # bytes of float32 features that are converted at a time


class ArrayWriter:
    """Fills a folder of a store with arrays, which may be larger than memory.

    Args:
        folder: where they are written.
        share: gives a file a second name; if given, arrays that are mapped from files share these,
            and of a table of which few rows changed a patch is written (`graphcl.files.patched`).
        before: with `share`: the same folder of the store that this one changes.

    Attributes:
        num_features: number of features if they are sparse; their arrays do not contain it.
    """

    def __init__(
        self,
        folder: Path,
        share: Share | None = None,
        before: Path | None = None,
    ) -> None:
        self.folder, self.num_features = folder, 0
        self._share, self._before = share, before
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._maps: dict[str, Any] = {}
        self._digests: dict[str, list[str]] = {}  # where files are another store's

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """Returns a writable memory map of zeros, which becomes the array `name`."""
        self._shapes[name], known = shape, np.dtype(dtype).newbyteorder("<")
        mapped = self._maps[name] = create_npy(self.folder / f"{name}.npy", shape, known)
        return mapped

    def write(self, name: str, values: Any) -> None:
        """Writes a whole array with its own type."""
        values = np.asanyarray(values)
        if self._share is not None:
            files = write_table(self.folder, name, values, self._share)
            self._shared(name, values, files, base_file(values))
            return
        if not values.flags.c_contiguous or not values.dtype.isnative:
            self.array(name, values.shape, values.dtype)[...] = values
            self.release(name)
            return
        # Without a map, whose pages would be filled with zeros first.
        self._shapes[name] = values.shape
        with (self.folder / f"{name}.npy").open("wb") as file:
            np.lib.format.write_array(file, values, version=(1, 0), allow_pickle=False)

    def write_lists(self, tables: Mapping[str, Any], *, narrow: bool) -> None:
        """Writes lists in CSR form: pointers, indices, then whatever has a row for each index.

        Of lists in which few rows differ from those of the store before, a patch is written.
        `narrow` writes indices in four bytes, which must fit: sampling then reads half as much.
        """
        (pointers, indptr), (name, indices), *_ = tables.items()
        kind: Any = np.int32 if narrow else np.int64
        tables = {**tables, pointers: np.asanyarray(indptr, dtype=np.int64)}
        files = None
        if self._share is not None and self._before is not None and indices.dtype == kind:
            known = all(map(stored_files, tables.values()))  # nothing has changed
            files = None if known else write_lists(self.folder, self._before, tables, self._share)
        for one, table in tables.items():
            if files is not None and self._before is not None:
                self._shared(one, table, files[one], table_files(self._before, one)[0])
            elif one == name and indices.dtype != kind:
                self.array(name, indices.shape, kind)[...] = indices
                self.release(name)
            else:
                self.write(one, table)

    def _shared(self, name: str, values: Any, files: tuple[Path, ...], source: Path | None) -> None:
        """Notes an array whose first file may be one of an earlier store, and its checksums."""
        self._shapes[name], known = values.shape, ""
        if source is not None and files[0].samefile(source):
            known = known_digest(source)
        self._digests[name] = [known or file_digest(files[0]), *map(file_digest, files[1:])]

    def release(self, name: str) -> None:
        """Writes an array's pages to disk and closes its map; it can still be shortened."""
        mapped = self._maps.pop(name, None)
        if mapped is not None:
            mapped.flush()

    def shorten(self, name: str, length: int) -> None:
        """Cuts an array to its first `length` rows, once its final length is known."""
        shape = self._shapes[name]
        self.release(name)
        shorten_npy(self.folder / f"{name}.npy", length)
        self._shapes[name] = (length, *shape[1:])

    def read(self, name: str) -> npt.NDArray[Any]:
        """Maps an array that has been written."""
        self.release(name)
        found: npt.NDArray[Any] = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of an array; empty if there is none."""
        return self._shapes.get(name, ())

    def digests(self) -> dict[str, list[str]]:
        """Completes all arrays, and returns the checksums of the files of each."""
        for name in list(self._maps):
            self.release(name)
        return {
            name: self._digests.get(name) or [file_digest(self.folder / f"{name}.npy")]
            for name in self._shapes
        }


class StoreWriter:
    """Fills a store. Use it as a context manager.

        with StoreWriter(path, name="mine") as store:
            (nodes,) = store.add_type("node", [0, num_nodes])
            nodes.write("x", x)                 # a whole array at once
            (edges,) = store.add_relation(("node", "edge", "node"), undirected=True)
            indptr = edges.array("indptr", (num_nodes + 1,), np.int64)
            indptr[:] = …                       # a memory map: pages go to disk as they fill up

    `graphcl.store.reader` lists the names, types and shapes. If the block succeeds, checksums are
    computed, the store is opened as a test and flushed to disk, and the folder appears at `path` by
    one rename. If the block fails, nothing is left. Disk space is reserved when an array is
    created, so a full disk is an error at that point and not a crash while the array is filled.

    Args:
        path: the store's folder.
        name: the graph's name in messages and reports.
        parts: how many.
        overwrite: replace an existing store. Anything else at `path` is never touched.
        share: see `ArrayWriter`.
        before: the store that this one changes, see `ArrayWriter`.

    Attributes:
        folder: where the store is until it is complete.
        order: how nodes were ordered for the parts.
        build: the id of the build; without one it follows from the checksums of all arrays.
        source: what was divided.
        types: what was added so far.
        relations: likewise.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        name: str = "graph",
        parts: int = 1,
        overwrite: bool = False,
        share: Share | None = None,
        before: Path | None = None,
    ) -> None:
        self.path, self.name, self.overwrite = Path(path), name, overwrite
        self._share, self._before = share, before
        self.order, self.build, self.source = "as-is", "", NOTHING
        self._parts = parts
        self.types: dict[str, StoredType] = {}
        self.relations: dict[Key, StoredRelation] = {}
        self._writers: dict[str, list[ArrayWriter]] = {}  # of each folder, one for each part

    def __enter__(self) -> Self:
        check_new_folder(self.path, "store", HEADER, StoreError, overwrite=self.overwrite)
        self._open = ExitStack()
        self.folder = self._open.enter_context(whole_folder(self.path))
        # Runs before the folder is put in place, so that an error in it leaves no store.
        self._open.push(self._complete)
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def add_type(
        self, name: str, starts: Sequence[int], class_names: Sequence[str] = ()
    ) -> list[ArrayWriter]:
        """Adds a type of nodes, and returns what writes its arrays, for each part.

        Args:
            name: of the type.
            starts: the first node of each part, and the number of nodes.
            class_names: of its classes; empty if they have none.
        """
        ranges = np.asarray(starts, np.int64)
        self.types[name] = StoredType(self.folder, "", name, 0, ranges, tuple(class_names))
        return self._added(nodes_name(len(self.types) - 1))

    def add_relation(
        self, key: Key, *, undirected: bool, self_loops_removed: int = 0
    ) -> list[ArrayWriter]:
        """Adds a relation, and returns what writes its edges by target, for each part."""
        self.relations[key] = StoredRelation(
            key, undirected, False, False, 0, 0, self_loops_removed=self_loops_removed
        )
        return self._added(edges_name(len(self.relations) - 1))

    def add_reverse(self, key: Key) -> list[ArrayWriter]:
        """Returns what writes the edges of the last relation by source, for each part."""
        self.relations[key] = replace(self.relations[key], both=True)
        return self._added(edges_name(len(self.relations) - 1, True))

    def drop_relation(self, key: Key) -> None:
        """Takes the last relation back."""
        del self.relations[key]
        for writer in self._writers.pop(edges_name(len(self.relations))):
            shutil.rmtree(writer.folder)

    def set_cut(self, key: Key, cut_edges: int) -> None:
        """Notes how many edges of a relation have their ends in two parts."""
        self.relations[key] = replace(self.relations[key], cut_edges=cut_edges)

    def beside(self, name: str) -> Path:
        """Returns the folder of files about a type or relation that belong to no part."""
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name

    def _added(self, within: str) -> list[ArrayWriter]:
        parts = [part_name(number) for number in range(self._parts)]
        folders = [self.folder / part / within for part in parts]
        for folder in folders:
            folder.mkdir(parents=True)
        self._writers[within] = [
            ArrayWriter(folder, self._share, self._before and self._before / part / within)
            for folder, part in zip(folders, parts, strict=True)
        ]
        return self._writers[within]

    def _complete(self, kind: type[BaseException] | None, *_: object) -> None:
        """Writes `part.json` and `store.json`, if the block succeeded."""
        if kind is not None:
            self._writers.clear()
            return
        parts = [
            {within: each[number].digests() for within, each in self._writers.items()}
            for number in range(self._parts)
        ]
        build = self.build or build_id({"name": self.name, "arrays": parts})
        digests = []
        for number, arrays in enumerate(parts):
            about = {"graphcl_part": FORMAT, "build": build, "arrays": arrays}
            text = json.dumps(about, indent=1, allow_nan=False) + "\n"
            (self.folder / part_name(number) / PART).write_text(text)
            digests.append(hashlib.sha256(text.encode()).hexdigest())
        types = {
            name: self._described(at, one) for at, (name, one) in enumerate(self.types.items())
        }
        relations = {
            key: self._counted(at, one) for at, (key, one) in enumerate(self.relations.items())
        }
        found = {
            f"{one.parent.name}/{one.name}": file_digest(one)
            for one in sorted(self.folder.glob("[nr]*-*/*"))
        }
        source = self.source._replace(beside=found)
        store = Store(
            self.folder, self.name, build, self.order, types, relations, tuple(digests), source
        )
        write_header(store, self.folder)
        for number in range(self._parts):  # a store that cannot be opened must not appear
            open_part(self.folder, number)

    def _described(self, place: int, one: StoredType) -> StoredType:
        first = self._writers[nodes_name(place)][0]
        width = first.shape("x")[-1] if first.shape("x") else first.num_features
        return replace(one, num_features=width)

    def _counted(self, place: int, one: StoredRelation) -> StoredRelation:
        each = self._writers[edges_name(place)]
        for name in ("indptr", "indices"):
            demand(
                all(writer.shape(name) for writer in each),
                f"{self.path}: nothing was written for {name!r}",
                StoreError,
            )
        entries = sum(writer.shape("indices")[0] for writer in each)
        return replace(
            one,
            weighted=bool(each[0].shape("edge_weight")),
            num_edge_features=(each[0].shape("edge_features") or (0,))[-1],
            num_edges=entries // 2 if one.undirected else entries,
        )


def build_id(about: Mapping[str, Any]) -> str:
    """Returns the id of a build from what decides it."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


def write_nodes(
    writer: ArrayWriter, fields: Mapping[str, Any], features: str | None = "float32"
) -> None:
    """Writes the fields of `Nodes`, in blocks of rows.

    `features` is the type of dense features; None leaves them as they are. ``float16`` keeps three
    digits in half the space.
    """
    demand(
        features in (None, *FEATURE_DTYPES),
        f"Graph.save: features must be {FEATURE_DTYPES}; got {features!r}",
        ParameterError,
    )
    if fields.get("x") is not None:
        write_features(writer, fields["x"], features)
    for name in ("y", *MASKS):
        if fields.get(name) is not None:
            writer.write(name, fields[name])
    if fields.get("node_ids") is not None:
        write_names(writer, fields["node_ids"])


def write_edges(writer: ArrayWriter, fields: Mapping[str, Any], *, narrow: bool) -> None:
    """Writes the fields of a `Relation`.

    `narrow` writes indices in four bytes, which must fit: sampling then reads half as much.
    """
    beside = [name for name in ("edge_weight", "edge_features") if fields.get(name) is not None]
    writer.write_lists(
        {name: fields[name] for name in ("indptr", "indices", *beside)}, narrow=narrow
    )
    if fields.get("edge_ids") is not None:
        writer.write("edge_ids", fields["edge_ids"])


def write_features(store: ArrayWriter, x: Any, features: str | None = "float32") -> None:
    """Writes sparse features as they are, and dense ones with the type `features`, or their own."""
    if scipy.sparse.issparse(x):
        store.num_features = int(x.shape[1])
        lists = {"x_indptr": x.indptr, "x_indices": x.indices}
        lists["x_data"] = np.asanyarray(x.data, dtype=np.float32)
        store.write_lists(lists, narrow=x.shape[1] < 1 << 31)
        return
    if features is None:
        store.write("x", x)
        return
    rows = max(1, _BLOCK_BYTES // (4 * x.shape[1]))
    out = store.array("x", x.shape, features)
    for start in range(0, x.shape[0], rows):
        block = slice(start, start + rows)
        values = np.asarray(x[block], dtype=np.float32)
        with np.errstate(over="ignore"):
            out[block] = values
        if features == "float16" and not np.isfinite(out[block]).all():
            row, column = np.argwhere(~np.isfinite(out[block]))[0]
            where = f"node {start + row}, feature {column}"
            raise GraphError(
                f"x: {values[row, column]} at {where} does not fit in float16; use float32"
            )
    store.release("x")


def write_names(store: ArrayWriter, names: Any) -> None:
    """Writes node ids: integers, or strings as UTF-8."""
    if isinstance(names, np.ndarray) and names.dtype.kind in "iu":
        kind = names.dtype if str(names.dtype) in ("int64", "uint64", "int32") else np.int64
        store.write("node_ids", names.astype(kind, copy=False))
        return
    if not isinstance(names, Names):
        wrong = [name for name in names if not isinstance(name, str)]
        if wrong:
            raise GraphError(
                f"node_ids: a store keeps integers or strings; got {wrong[0]!r}; convert them"
            )
        names = Names.of(names)
    store.write("node_id_offsets", names.offsets)
    store.write("node_ids", names.text)
