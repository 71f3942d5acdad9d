"""Writes stores array by array. They may be larger than memory, and appear whole or not at all."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError, ParameterError, StoreError, require
from graphcl.files.arrays import shorten_npy
from graphcl.files.atomic import check_new_folder, reserve, whole_folder
from graphcl.files.patched import base_file, table_files, write_table
from graphcl.store.columns import LEVELS, Names
from graphcl.store.reader import (
    DTYPES,
    FORMAT,
    HEADER,
    MASKS,
    PART,
    checked_header,
    file_digest,
    is_store,
    mapped_fields,
    read_store_header,
)

FEATURE_DTYPES = ("float32", "float16", "int8")
_BLOCK_BYTES = 1 << 25  # bytes of float32 features that are converted at a time


class ArrayWriter:
    """Fills a folder with arrays, which may be larger than memory.

    Args:
        folder: where they are written; it must be there before the first array.
        dtypes: the names that an array may have, and the types of each.
    """

    def __init__(self, folder: Path, dtypes: Mapping[str, tuple[str, ...]]) -> None:
        self.folder, self._dtypes = folder, dtypes
        self._shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._maps: dict[str, Any] = {}
        self._digests: dict[str, list[str]] = {}  # where files are another store's

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """Returns a writable memory map of zeros, which becomes the array `name`."""
        known = self._declare(name, shape, dtype)
        file = self.folder / f"{name}.npy"
        mapped = np.lib.format.open_memmap(file, mode="w+", dtype=known, shape=shape)
        reserve(file)
        self._maps[name] = mapped
        return mapped

    def _declare(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.dtype[Any]:
        """Checks an array that is to be written, and notes its shape."""
        known: np.dtype[Any] = np.dtype(dtype).newbyteorder("<")
        require(
            name in self._dtypes, "StoreWriter", "name", f"one of {', '.join(self._dtypes)}", name
        )
        types = self._dtypes[name]
        require(str(known) in types, "StoreWriter", name, " or ".join(types), known)
        require(name not in self._shapes, "StoreWriter", name, "created once", name)
        self._shapes[name] = (shape, known)
        return known

    def write(self, name: str, values: Any) -> None:
        """Writes a whole array with its own type."""
        values = np.asarray(values)
        if not values.flags.c_contiguous or not values.dtype.isnative:
            self.array(name, values.shape, values.dtype)[...] = values
            self.release(name)
            return
        # Without a map, whose pages would be filled with zeros first.
        self._declare(name, values.shape, values.dtype)
        with (self.folder / f"{name}.npy").open("wb") as file:
            np.lib.format.write_array(file, values, version=(1, 0), allow_pickle=False)

    def release(self, name: str) -> None:
        """Writes an array's pages to disk and closes its map; it can still be shortened."""
        mapped = self._maps.pop(name, None)
        if mapped is not None:
            mapped.flush()

    def describe(self) -> dict[str, dict[str, Any]]:
        """Completes all arrays, and returns the type, shape and checksum of each."""
        for name in list(self._maps):
            self.release(name)
        arrays: dict[str, dict[str, Any]] = {}
        for name, (shape, dtype) in self._shapes.items():
            digest, *patch = self._digests.get(name) or [file_digest(self.folder / f"{name}.npy")]
            arrays[name] = {"dtype": str(dtype), "shape": list(shape), "sha256": digest}
            if patch:
                arrays[name]["patch"] = patch
        return arrays


class StoreWriter(ArrayWriter):
    """Fills a store. Use it as a context manager.

        with StoreWriter(path, name="mine") as store:
            indptr = store.array("indptr", (num_nodes + 1,), np.int64)
            indptr[:] = …                       # a memory map: pages go to disk as they fill up
            store.write("indices", indices)     # or a whole array at once

    `graphcl.store.reader` lists the names, types and shapes. If the block succeeds, checksums are
    computed, the store is opened as a test and flushed to disk, and the folder appears at `path` by
    one rename. If the block fails, nothing is left. Disk space is reserved when an array is
    created, so a full disk is an error at that point and not a crash while the array is filled.

    Args:
        path: the store's folder.
        name: the graph's name in messages and reports.
        overwrite: replace an existing store. Anything else at `path` is never touched.
        part: for a part of a store in parts, what its `part.json` says beside the arrays; None for
            a store.

    Attributes:
        self_loops_removed: number of self-loops in the input; the caller sets it.
        num_features: number of features if they are sparse; their arrays do not contain it.
        class_names: names of the classes; empty if they have none.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        name: str = "graph",
        overwrite: bool = False,
        part: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(Path(path), DTYPES)  # in a hidden folder, once it is open
        self.path, self.name, self.overwrite = Path(path), name, overwrite
        self._file, self._part = (HEADER if part is None else PART), part
        self.self_loops_removed = self.num_features = 0
        self.class_names: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        check_new_folder(self.path, "store", self._file, StoreError, overwrite=self.overwrite)
        self._open = ExitStack()
        self.folder = self._open.enter_context(whole_folder(self.path))
        # Runs before the folder is put in place, so that an error in it leaves no store.
        self._open.push(self._complete)
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def adopt(self, name: str, store: Path, share: Callable[[Path, Path], None]) -> None:
        """Takes an array of another store as it is; `share` gives its file a second name."""
        about = read_store_header(store).arrays[name]
        for file in table_files(store, name):
            share(file, self.folder / file.name)
        self._shapes[name] = (tuple(about["shape"]), np.dtype(about["dtype"]).newbyteorder("<"))
        self._digests[name] = [about["sha256"], *about.get("patch", ())]

    def patch(self, name: str, table: Any, share: Callable[[Path, Path], None]) -> None:
        """Writes a table as a patch, if it is mapped from another store and few rows differ.

        Args:
            name: of the array.
            table: as `graphcl.files.patched.overlay` returns it, or any array.
            share: gives a file a second name.
        """
        self._declare(name, table.shape, table.dtype)
        files = write_table(self.folder, name, table, share)
        source, digest = base_file(table), ""
        if source is not None and files[0].samefile(source) and is_store(source.parent):
            digest = read_store_header(source.parent).arrays.get(name, {}).get("sha256", "")
        first = digest or file_digest(files[0])
        self._digests[name] = [first, *map(file_digest, files[1:])]

    def shorten(self, name: str, length: int) -> None:
        """Cuts an array to its first `length` rows, once its final length is known."""
        shape, dtype = self._shapes[name]
        require(0 <= length <= shape[0], "StoreWriter", "length", f"at most {shape[0]}", length)
        self.release(name)
        shorten_npy(self.folder / f"{name}.npy", length)
        self._shapes[name] = ((length, *shape[1:]), dtype)

    def _complete(self, kind: type[BaseException] | None, *_: object) -> None:
        """Writes `store.json`, if the block succeeded."""
        if kind is not None:
            self._maps.clear()
            return
        arrays = self.describe()
        header = {
            "graphcl_store" if self._part is None else "graphcl_part": FORMAT,
            **(self._part or {}),
            "name": self.name,
            "num_nodes": self._length("indptr") - 1,
            "num_features": self._num_features(),
            "self_loops_removed": self.self_loops_removed,
            "arrays": arrays,
        }
        if self.class_names:
            header["class_names"] = list(self.class_names)
        (self.folder / self._file).write_text(json.dumps(header, indent=2, allow_nan=False) + "\n")
        # A store that cannot be opened must not appear.
        checked = checked_header(self.folder, header, self._file)
        mapped_fields(self.folder, checked, file=self._file)

    def _length(self, name: str) -> int:
        if name not in self._shapes:
            raise StoreError(f"{self.path}: nothing was written for {name!r}")
        return self._shapes[name][0][0]

    def _num_features(self) -> int:
        if "x" in self._shapes:
            return self._shapes["x"][0][-1]
        if "x_indptr" in self._shapes and self.num_features:
            return self.num_features
        raise StoreError(f"{self.path}: nothing was written for 'x'")


def write_store(
    path: Path, fields: Mapping[str, Any], *, features: str = "float32", overwrite: bool = False
) -> None:
    """Writes the fields of a `Graph` as a store, in blocks of rows.

    `features` is the type of dense features. ``float16`` keeps three digits in half the space.
    ``int8`` has 255 levels in a quarter, scaled to each column's largest absolute value. If there
    are training nodes, it is the largest of theirs: inductive training must not depend on other
    nodes. Another node's row that exceeds it is stored coarser, by a power of two of its own.
    """
    if features not in FEATURE_DTYPES:
        raise ParameterError(f"Graph.save: features must be {FEATURE_DTYPES}; got {features!r}")
    with StoreWriter(path, name=fields["name"], overwrite=overwrite) as store:
        store.self_loops_removed = fields["self_loops_removed"]
        store.class_names = tuple(fields.get("class_names", ()))
        store.write("indptr", np.asarray(fields["indptr"], dtype=np.int64))
        _write_indices(store, "indices", fields["indices"], fields["x"].shape[0])
        write_features(store, fields["x"], features, train=fields.get("train_mask"))
        for name in ("y", "edge_weight", *MASKS):
            if fields.get(name) is not None:
                store.write(name, fields[name])
        if fields.get("node_ids") is not None:
            write_names(store, fields["node_ids"])


def _write_indices(store: StoreWriter, name: str, indices: Any, limit: int) -> None:
    """Writes indices in four bytes if they fit: sampling then reads half as much."""
    kind = np.int32 if limit < 1 << 31 else np.int64
    out = store.array(name, (len(indices),), kind)
    for start in range(0, len(indices), _BLOCK_BYTES // 8):
        part = slice(start, start + _BLOCK_BYTES // 8)
        out[part] = indices[part]
    store.release(name)


def write_features(
    store: StoreWriter, x: Any, features: str = "float32", *, train: Any = None
) -> None:
    """Writes sparse features as they are, and dense ones with the type `features`.

    `train` are the nodes, as booleans, whose rows decide the scales of int8; None means all.
    """
    if scipy.sparse.issparse(x):
        store.num_features = int(x.shape[1])
        store.write("x_indptr", np.asarray(x.indptr, dtype=np.int64))
        _write_indices(store, "x_indices", x.indices, x.shape[1])
        store.write("x_data", np.asarray(x.data, dtype=np.float32))
        return
    rows = max(1, _BLOCK_BYTES // (4 * x.shape[1]))
    blocks = [slice(start, start + rows) for start in range(0, x.shape[0], rows)]
    if features == "int8":
        _write_levels(store, x, blocks, train)
        return
    out = store.array("x", x.shape, features)
    for block in blocks:
        values = np.asarray(x[block], dtype=np.float32)
        with np.errstate(over="ignore"):
            out[block] = values
        if features == "float16" and not np.isfinite(out[block]).all():
            row, column = np.argwhere(~np.isfinite(out[block]))[0]
            where = f"node {block.start + row}, feature {column}"
            raise GraphError(
                f"x: {values[row, column]} at {where} does not fit in float16; use float32 or int8"
            )
    store.release("x")


def _write_levels(store: StoreWriter, x: Any, blocks: list[slice], train: Any) -> None:
    """Writes features as int8 with a scale per column, and per row where one exceeds them."""
    largest, of_all = np.zeros((2, x.shape[1]), dtype=np.float32)
    for block in blocks:
        sizes = np.abs(np.asarray(x[block], dtype=np.float32))
        np.maximum(of_all, sizes.max(axis=0), out=of_all)
        seen = sizes if train is None else sizes[np.asarray(train[block])]
        np.maximum(largest, seen.max(axis=0, initial=0), out=largest)
    # Where all training nodes have 0, any scale leaves them 0: the others may choose it.
    scale = np.where(largest > 0, largest, of_all) / np.float32(LEVELS)
    scale = np.where(scale >= np.finfo(np.float32).tiny, scale, 1).astype(np.float32)
    store.write("x_scale", scale)
    out, row_scale = store.array("x", x.shape, np.int8), np.ones(x.shape[0], dtype=np.float32)
    for block in blocks:
        out[block], row_scale[block] = row_levels(x[block], scale)
    store.release("x")
    if (row_scale > 1).any():
        store.write("x_row_scale", row_scale)


def row_levels(
    x: Any, scale: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Returns rows in eight bits by the scales of their columns, and the scale of each row."""
    levels = np.asarray(x, dtype=np.float64) / scale
    # Half a level beyond the last is still rounded to it.
    excess = np.clip(np.abs(levels).max(axis=1) / (LEVELS + 0.5), 1, 2.0**126)
    rows = np.exp2(np.ceil(np.log2(excess))).astype(np.float32)
    levels /= rows[:, None]
    return np.clip(np.rint(levels), -LEVELS, LEVELS).astype(np.int8), rows


def write_names(store: StoreWriter, names: Any) -> None:
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
