"""Stores out: filled array by array, larger than memory if need be, there whole or not at all."""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError, ParameterError, StoreError, require
from graphcl.files.checksums import file_digest
from graphcl.store.columns import Names
from graphcl.store.reader import FORMAT, HEADER, MASKS, NAMES, is_store, open_store

FEATURE_DTYPES = ("float32", "float16", "int8")
_BLOCK_BYTES = 1 << 25  # of float32 features that are converted at a time


class StoreWriter:
    """Fills a store; used as a context manager.

        with StoreWriter(path, name="mine") as store:
            indptr = store.array("indptr", (num_nodes + 1,), np.int64)
            indptr[:] = …                       # a memory map: pages go to disk as they fill up
            store.write("indices", indices)     # or an array at once

    Names, types and shapes are those that `graphcl.store.reader` lists. Where the block ends well,
    the arrays are synced, summed and opened once, and the folder appears at `path` by one rename;
    where it ends badly, nothing is left. Space is reserved when an array is asked for, so a full
    disk is an error there and not a crash in the midst of filling.

    Args:
        path: where the store goes.
        name: what messages and reports call the graph.
        self_loops_removed: how many the input held.
        num_features: the width of sparse features, which their arrays do not say.
        overwrite: replace a store that is there. Anything else that is there is never touched.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        name: str = "graph",
        self_loops_removed: int = 0,
        num_features: int = 0,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        self.name = name
        self.self_loops_removed = self_loops_removed
        self.num_features = num_features
        self.overwrite = overwrite
        self._shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._maps: dict[str, Any] = {}

    def __enter__(self) -> Self:
        check_output(self.path, overwrite=self.overwrite)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=f".{self.path.name}.", dir=self.path.parent))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._commit()
        finally:
            self._maps.clear()
            shutil.rmtree(self.folder, ignore_errors=True)

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """Returns a writable memory map, zero-filled, that becomes the array `name`."""
        known = np.dtype(dtype).newbyteorder("<")
        require(name in NAMES, "StoreWriter", "name", f"one of {', '.join(NAMES)}", name)
        require(str(known) in NAMES[name], "StoreWriter", name, " or ".join(NAMES[name]), known)
        require(name not in self._shapes, "StoreWriter", name, "asked for once", name)
        file = self.folder / f"{name}.npy"
        mapped = np.lib.format.open_memmap(file, mode="w+", dtype=known, shape=shape)
        with file.open("r+b") as raw:
            os.posix_fallocate(raw.fileno(), 0, max(1, file.stat().st_size))
        self._shapes[name], self._maps[name] = (shape, known), mapped
        return mapped

    def write(self, name: str, values: Any) -> None:
        """Writes a whole array, of the type it has."""
        values = np.asarray(values)
        self.array(name, values.shape, values.dtype)[...] = values
        self.release(name)

    def shorten(self, name: str, length: int) -> None:
        """Cuts an array to its first `length` rows; for arrays whose length is known at the end."""
        shape, dtype = self._shapes[name]
        require(0 <= length <= shape[0], "StoreWriter", "length", f"at most {shape[0]}", length)
        self.release(name)
        new = (length, *shape[1:])
        size = int(np.prod(new, dtype=object)) * dtype.itemsize
        with (self.folder / f"{name}.npy").open("r+b") as raw:
            # numpy pads its header so that a longer shape fits in place; a shorter one does too.
            np.lib.format.read_magic(raw)
            np.lib.format.read_array_header_1_0(raw)
            offset = raw.tell()
            raw.seek(0)
            about = {"descr": dtype.str, "fortran_order": False, "shape": new}
            np.lib.format.write_array_header_1_0(raw, about)
            if raw.tell() != offset:
                raise StoreError(f"{name}: cannot be cut to {length} rows in place")
            raw.truncate(offset + size)
        self._shapes[name] = (new, dtype)

    def release(self, name: str) -> None:
        """Writes an array's pages to disk and lets go of its map; it can be shortened after."""
        mapped = self._maps.pop(name, None)
        if mapped is not None:
            mapped.flush()

    def _commit(self) -> None:
        for name in list(self._maps):
            self.release(name)
        arrays = {}
        for name, (shape, dtype) in self._shapes.items():
            file = self.folder / f"{name}.npy"
            _sync(file)
            about = {"dtype": str(dtype), "shape": list(shape), "sha256": file_digest(file)}
            arrays[name] = about
        header = {
            "graphcl_store": FORMAT,
            "name": self.name,
            "num_nodes": self._length("indptr") - 1,
            "num_features": self._num_features(),
            "self_loops_removed": self.self_loops_removed,
            "arrays": arrays,
        }
        (self.folder / HEADER).write_text(json.dumps(header, indent=2, allow_nan=False) + "\n")
        _sync(self.folder / HEADER)
        open_store(self.folder)  # what would be refused is not put there
        self.folder.chmod(0o777 & ~_umask())
        _sync(self.folder)
        _replace(self.folder, self.path)
        _sync(self.path.parent)

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

    Args:
        path: where it goes.
        fields: a graph's fields, by name; None where it has none.
        features: how dense features are kept: ``float32``; ``float16``, three digits in half the
            space; ``int8``, 255 levels between a column's largest absolute values, in a quarter.
        overwrite: replace a store that is there.
    """
    if features not in FEATURE_DTYPES:
        raise ParameterError(f"Graph.save: features must be {FEATURE_DTYPES}; got {features!r}")
    about = {"name": fields["name"], "self_loops_removed": fields["self_loops_removed"]}
    with StoreWriter(path, overwrite=overwrite, **about) as store:
        store.write("indptr", np.asarray(fields["indptr"], dtype=np.int64))
        _write_indices(store, "indices", fields["indices"], fields["x"].shape[0])
        _write_features(store, fields["x"], features)
        for name in ("y", "edge_weight", *MASKS):
            if fields.get(name) is not None:
                store.write(name, fields[name])
        if fields.get("node_ids") is not None:
            _write_names(store, fields["node_ids"])


def check_output(path: Path, *, overwrite: bool) -> None:
    """Refuses an output path before any work is done for it."""
    if path.is_dir() and any(path.iterdir()):
        if not is_store(path):
            raise StoreError(f"{path}: holds files that are no store; choose another place")
        if not overwrite:
            raise StoreError(f"{path}: already holds a store; pass overwrite, or another place")
    elif path.exists() and not path.is_dir():
        raise StoreError(f"{path}: is a file; a store is a directory")


def _write_indices(store: StoreWriter, name: str, indices: Any, limit: int) -> None:
    """Node numbers in four bytes where they fit: half the traffic of every sampled step."""
    kind = np.int32 if limit < 1 << 31 else np.int64
    out = store.array(name, (len(indices),), kind)
    for start in range(0, len(indices), _BLOCK_BYTES // 8):
        part = slice(start, start + _BLOCK_BYTES // 8)
        out[part] = indices[part]
    store.release(name)


def _write_features(store: StoreWriter, x: Any, features: str) -> None:
    if scipy.sparse.issparse(x):
        store.num_features = int(x.shape[1])
        store.write("x_indptr", np.asarray(x.indptr, dtype=np.int64))
        _write_indices(store, "x_indices", x.indices, x.shape[1])
        store.write("x_data", np.asarray(x.data, dtype=np.float32))
        return
    rows = max(1, _BLOCK_BYTES // (4 * x.shape[1]))
    blocks = [slice(start, start + rows) for start in range(0, x.shape[0], rows)]
    scale = np.ones(x.shape[1], dtype=np.float32)
    if features == "int8":
        largest = np.zeros(x.shape[1], dtype=np.float32)
        for block in blocks:
            np.maximum(largest, np.abs(x[block]).max(axis=0), out=largest)
        scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
        store.write("x_scale", scale)
    out = store.array("x", x.shape, features)
    for block in blocks:
        values = np.asarray(x[block], dtype=np.float32)
        if features == "int8":
            values = np.clip(np.rint(values / scale), -127, 127)
        with np.errstate(over="ignore"):
            out[block] = values
        if features == "float16" and not np.isfinite(out[block]).all():
            row, column = np.argwhere(~np.isfinite(out[block]))[0]
            where = f"node {block.start + row}, feature {column}"
            raise GraphError(
                f"x: {values[row, column]} at {where} does not fit float16; use float32 or int8"
            )
    store.release("x")


def _write_names(store: StoreWriter, names: Any) -> None:
    if isinstance(names, np.ndarray) and names.dtype.kind in "iu":
        kind = names.dtype if str(names.dtype) in ("int64", "uint64", "int32") else np.int64
        store.write("node_ids", names.astype(kind, copy=False))
        return
    if not isinstance(names, Names):
        wrong = [name for name in names if not isinstance(name, str)]
        if wrong:
            raise GraphError(
                f"node_ids: a store keeps whole numbers or text; got {wrong[0]!r}; make them text"
            )
        names = Names.of(names)
    store.write("node_id_offsets", names.offsets)
    store.write("node_ids", names.text)


def _replace(staging: Path, path: Path) -> None:
    if not path.exists():
        staging.rename(path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    path.rename(old / "store")
    staging.rename(path)
    shutil.rmtree(old)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
