"""Opens stores: a graph on disk as plain arrays, mapped into memory and never loaded.

A store is a folder of `.npy` files with a `store.json` that lists their types and shapes:

    indptr, indices         CSR: each undirected edge twice, rows sorted; int64, and int32 (int64)
    x [, x_scale]           features [N, P]: float32, float16, or int8 with a float32 per column
    x_row_scale             of int8, if a row exceeds the columns' range: a power of two per row
    x_indptr, x_indices, x_data    instead of x: sparse features
    y                       labels [N] or [N, labels], int64
    train_mask, val_mask, test_mask       [N], bool
    node_ids                integers [N]; text is node_ids (UTF-8, uint8) and node_id_offsets
    edge_weight             float32, aligned with indices

A table of which few rows changed since an earlier store may be that store's file and a patch
(`graphcl.files.patched`); `store.json` then has checksums of the patch under ``patch``.

Opening a store reads the JSON and the files' headers, which takes milliseconds for any size. It
compares both with the files' sizes, and checks the first and last entry of `indptr`.
`check_structure` scans everything that compiled loops rely on (a few seconds for 10^9 entries).
`verify_store` compares the checksums. Nothing in a store is executed, and the JSON cannot name
files.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import InvalidInputError, StoreError
from graphcl.files.arrays import regular_size
from graphcl.files.patched import map_table, table_files
from graphcl.files.text import TEXT_BYTES, read_text
from graphcl.store.columns import Names, ScaledFeatures

FORMAT = 1
HEADER = "store.json"
PART = "part.json"  # describes a part of a store that is in parts; see `graphcl.store.parts`
DTYPES = {
    "indptr": ("int64",),
    "indices": ("int32", "int64"),
    "edge_weight": ("float32",),
    "x": ("float32", "float16", "int8"),
    "x_scale": ("float32",),
    "x_row_scale": ("float32",),
    "x_indptr": ("int64",),
    "x_indices": ("int32", "int64"),
    "x_data": ("float32",),
    "y": ("int64",),
    "train_mask": ("bool",),
    "val_mask": ("bool",),
    "test_mask": ("bool",),
    "node_ids": ("int64", "uint64", "int32", "uint8"),
    "node_id_offsets": ("int64",),
    "rows": ("int64",),  # of a part alone: see `graphcl.store.parts`
}
MASKS = ("train_mask", "val_mask", "test_mask")
CHUNK_BYTES = 1 << 26
_PIECE_BYTES = 1 << 20  # bytes read at a time, which bounds a thread's memory
_SCAN = 1 << 22  # entries scanned at a time: 32 MB of temporaries at most


class StoreHeader(NamedTuple):
    """The content of `store.json`; every number in it is compared with the files."""

    name: str
    num_nodes: int
    num_features: int
    self_loops_removed: int
    arrays: dict[str, dict[str, Any]]
    class_names: tuple[str, ...] = ()


def is_store(path: Path) -> bool:
    """Returns whether `path` is a folder that looks like a store."""
    return (path / HEADER).is_file()


def open_store(path: Path) -> dict[str, Any]:
    """Returns the fields of a `Graph`, mapped from a store.

    Raises:
        StoreError: a file is missing, or does not match `store.json`.
    """
    return mapped_fields(path, read_store_header(path))


def mapped_fields(path: Path, header: StoreHeader, *, file: str = HEADER) -> dict[str, Any]:
    """Maps the arrays that a header lists; `file` is the header's name in messages."""
    arrays = {name: map_array(path, name, about, file) for name, about in header.arrays.items()}
    _check_shapes(path, header, arrays)
    indptr, indices = arrays["indptr"], arrays["indices"]
    if int(indptr[0]) != 0 or int(indptr[-1]) != len(indices):
        ends = f"{int(indptr[0])} to {int(indptr[-1])}"
        raise StoreError(f"{path}: indptr goes from {ends}; indices has {len(indices)} entries")
    fields: dict[str, Any] = {
        name: arrays[name]
        for name in ("indptr", "indices", "edge_weight", "y", *MASKS)
        if name in arrays
    }
    fields["x"] = _features(path, header, arrays)
    if "node_id_offsets" in arrays:
        fields["node_ids"] = Names(arrays["node_id_offsets"], arrays["node_ids"])
    elif "node_ids" in arrays:
        fields["node_ids"] = arrays["node_ids"]
    about = {"name": header.name, "self_loops_removed": header.self_loops_removed}
    return fields | about | {"class_names": header.class_names}


def read_store_header(path: Path) -> StoreHeader:
    """Reads `store.json` and checks types and ranges."""
    return checked_header(path, read_description(path, HEADER, "store", "graphcl_store"), HEADER)


def read_description(
    path: Path,
    file: str,
    kind: str,
    mark: str,
    error: type[InvalidInputError] = StoreError,
    *,
    limit: int = TEXT_BYTES,
) -> dict[str, Any]:
    """Reads the JSON file that describes a `kind` of folder; its key `mark` is the format.

    Raises:
        InvalidInputError: of the type `error`: there is no such folder, or it is another kind.
    """
    if not path.is_dir():
        raise error(f"{path}: no such {kind}")
    try:
        values = json.loads(read_text(path / file, error, limit=limit))
    except FileNotFoundError:
        raise error(f"{path}: not a {kind} (it has no {file})") from None
    except error:
        raise
    except (ValueError, RecursionError) as problem:
        raise error(f"{path / file}: not JSON ({problem})") from None
    if not isinstance(values, dict) or mark not in values:
        raise error(f"{path / file}: does not describe a {kind}")
    if values[mark] != FORMAT:
        found = values[mark]
        raise error(f"{path}: {kind} format {found!r}; this version reads format {FORMAT}")
    return values


def checked_header(path: Path, values: dict[str, Any], file: str) -> StoreHeader:
    """Checks types and ranges of what `file` says about a folder's arrays."""
    for key in ("num_nodes", "num_features", "self_loops_removed"):
        require_count(path / file, key, values.get(key))
    if not isinstance(values.get("name"), str) or not isinstance(values.get("arrays"), dict):
        raise StoreError(f"{path / file}: lacks name or arrays")
    least = 0 if file == PART else 1  # a part may lack nodes of a type
    if values["num_nodes"] < least or values["num_features"] < 1:
        raise StoreError(f"{path / file}: a graph has at least one node and one feature")
    check_arrays(path / file, values["arrays"])
    values["name"] = values["name"][:200]
    names = values.get("class_names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise StoreError(f"{path / file}: class_names must be texts")
    values["class_names"] = tuple(names)
    return StoreHeader(*(values[field] for field in StoreHeader._fields))


def verify_store(path: Path, on_array: Callable[[str, int], None] = lambda *_: None) -> None:
    """Reads the whole store and compares every file with its checksum.

    `on_array` is called after each array with its name and its size in bytes.

    Raises:
        StoreError: a file differs from what was written.
    """
    verify_arrays(path, read_store_header(path).arrays, on_array)


def verify_arrays(
    path: Path, arrays: Mapping[str, Mapping[str, Any]], on_array: Callable[[str, int], None]
) -> None:
    """Compares the files of a folder with the checksums that its header gives."""
    for name, about in arrays.items():
        size = 0
        digests = [about["sha256"], *about.get("patch", ())]
        for file, digest in zip(table_files(path, name), digests, strict=False):
            try:
                size += regular_size(file, StoreError)
            except OSError as error:
                raise StoreError(f"{file}: cannot be read ({error.strerror})") from None
            if file_digest(file) != digest:
                raise StoreError(f"{file}: altered or damaged (its checksum differs)")
        on_array(name, size)


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
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        left = CHUNK_BYTES
        while left and (piece := file.read(min(left, _PIECE_BYTES))):
            digest.update(piece)
            left -= len(piece)
    return digest.digest()


def check_structure(where: str, fields: Mapping[str, Any], num_nodes: int | None = None) -> None:
    """Checks that pointers never decrease and that indices are within the graph.

    Compiled loops do not check bounds: one wrong number would make them read memory outside an
    array. Each process that uses a store checks it once; a result saved on disk could be forged.
    `num_nodes` is the number of nodes of the whole graph, if the fields are those of a part.

    Raises:
        StoreError: a pointer or an index is wrong; the message names the first one.
    """
    x = fields["x"]
    limit = x.shape[0] if num_nodes is None else num_nodes
    check_csr(where, "indptr", fields["indptr"], "indices", fields["indices"], limit)
    if scipy.sparse.issparse(x):
        check_csr(where, "x_indptr", x.indptr, "x_indices", x.indices, x.shape[1])


def check_csr(
    where: str, pointers: str, indptr: Any, columns: str, indices: Any, limit: int
) -> None:
    """Checks one pair of pointers and columns, as `check_structure` does."""
    for start in range(0, len(indptr) - 1, _SCAN):
        part = indptr[start : start + _SCAN + 1]
        if (part[1:] < part[:-1]).any():
            row = start + int(np.argmax(part[1:] < part[:-1]))
            raise StoreError(f"{where}: {pointers} decreases at row {row}; the store is damaged")
    if int(indptr[0]) != 0 or int(indptr[-1]) != len(indices):
        raise StoreError(f"{where}: {pointers} does not end where {columns} does")
    for start in range(0, len(indices), _SCAN):
        part = indices[start : start + _SCAN]
        low, high = int(part.min()), int(part.max())
        if low < 0 or high >= limit:
            worst = low if low < 0 else high
            raise StoreError(f"{where}: {columns} holds {worst}; expected 0 to {limit - 1}")


def _features(path: Path, header: StoreHeader, arrays: Mapping[str, Any]) -> Any:
    if "x" not in arrays:
        shape = (header.num_nodes, header.num_features)
        parts = (arrays["x_data"], arrays["x_indices"], arrays["x_indptr"])
        if int(parts[2][0]) != 0 or int(parts[2][-1]) != len(parts[1]):
            raise StoreError(f"{path}: x_indptr does not end where x_indices does")
        return sparse_rows(shape, parts[2], parts[1], parts[0])
    if arrays["x"].dtype != np.int8:
        return arrays["x"]
    scale, rows = np.asarray(arrays["x_scale"]), arrays.get("x_row_scale")
    if not np.isfinite(scale).all():
        raise StoreError(f"{path}: x_scale holds {scale[~np.isfinite(scale)][0]}")
    if rows is not None:
        wrong = ~(np.isfinite(rows) & (rows >= 1))
        if wrong.any():
            raise StoreError(f"{path}: x_row_scale holds {rows[wrong][0]}; expected 1 or more")
    return ScaledFeatures(arrays["x"], scale, rows)


def sparse_rows(shape: tuple[int, int], indptr: Any, indices: Any, data: Any) -> Any:
    """Returns sparse features of these very arrays: the constructor would copy or convert them."""
    csr = scipy.sparse.csr_array(shape, dtype=np.float32)
    csr.data, csr.indices, csr.indptr = data, indices, indptr
    return csr


def _check_shapes(path: Path, header: StoreHeader, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Refuses a store with missing arrays, or with shapes that do not fit together."""
    sparse = [name for name in ("x_indptr", "x_indices", "x_data") if name in arrays]
    needed = ["indptr", "indices", *(["x_indptr", "x_indices", "x_data"] if sparse else ["x"])]
    if arrays.get("x") is not None and arrays["x"].dtype == np.int8:
        needed.append("x_scale")
    if "node_id_offsets" in arrays:
        needed.append("node_ids")
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise StoreError(f"{path}: has no array {missing[0]!r}")
    nodes, features = header.num_nodes, header.num_features
    entries = len(arrays["indices"]) if arrays["indices"].ndim else -1
    stored = len(arrays["x_indices"]) if sparse and arrays["x_indices"].ndim else -1
    text = "node_id_offsets" in arrays
    expected: dict[str, tuple[int, ...]] = {
        "indptr": (nodes + 1,),
        "indices": (entries,),
        "edge_weight": (entries,),
        "x": (nodes, features),
        "x_scale": (features,),
        "x_row_scale": (nodes,),
        "x_indptr": (nodes + 1,),
        "x_indices": (stored,),
        "x_data": (stored,),
        "node_id_offsets": (nodes + 1,),
        "rows": (nodes,),
        **dict.fromkeys(MASKS, (nodes,)),
    }
    for name, array in arrays.items():
        if name == "y":
            fits = array.ndim in (1, 2) and array.shape[0] == nodes
        elif name == "node_ids":
            fits = array.ndim == 1 and (text or array.shape[0] == nodes)
            fits = fits and text == (array.dtype == np.uint8)
        else:
            fits = array.shape == expected[name]
        if not fits:
            raise StoreError(
                f"{path}: {name} has shape {array.shape} of {array.dtype}, which does not fit "
                f"{nodes} nodes and {features} features"
            )


def check_arrays(
    file: Path, arrays: Mapping[str, Any], dtypes: Mapping[str, tuple[str, ...]] = DTYPES
) -> None:
    """Checks what a file says of arrays; `dtypes` are the names and types that there may be.

    Raises:
        StoreError: an array is unknown, or lacks a type, a shape or a checksum.
    """
    for name, about in arrays.items():
        if name not in dtypes:
            known = ", ".join(dtypes)
            raise StoreError(f"{file}: unknown array {name[:40]!r}; known: {known}")
        fits = isinstance(about, dict) and about.get("dtype") in dtypes[name]
        fits = fits and isinstance(about.get("sha256"), str)
        patch = about.get("patch", []) if fits else None
        fits = isinstance(patch, list) and [type(one) for one in patch] in ([], [str, str])
        shape = about.get("shape") if fits else None
        if not isinstance(shape, list) or not 1 <= len(shape) <= 2:
            raise StoreError(f"{file}: {name} lacks a known dtype, a shape or a sha256")
        for length in shape:
            require_count(file, f"{name}'s shape", length)


def require_count(file: Path, what: str, value: Any) -> None:
    """Refuses what cannot be a number of things."""
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise StoreError(f"{file}: {what} must be a count; got {str(value)[:40]}")


def map_array(path: Path, name: str, about: Mapping[str, Any], said: str) -> npt.NDArray[Any]:
    """Maps one file; its header, its size and what the JSON file `said` says must agree."""
    files = table_files(path, name)
    file = files[0]
    if (len(files) > 1) != bool(about.get("patch")):
        kind = "a whole table" if len(files) == 1 else "a patch"
        raise StoreError(f"{file}: {kind}; {said} says otherwise")
    try:
        array = map_table(path, name, StoreError)
    except OSError as error:
        raise StoreError(f"{file}: cannot be read ({error.strerror})") from None
    declared = np.dtype(about["dtype"]).newbyteorder("<")
    if array.dtype != declared or list(array.shape) != about["shape"]:
        found = f"{array.dtype} {array.shape}"
        raise StoreError(f"{file}: holds {found}; {said} says {declared} {about['shape']}")
    return array
