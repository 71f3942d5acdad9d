"""Embeddings out: one file, or a stream of record batches into files and vector indexes.

A batch has the columns `id`, `type` if there are several, and `embedding`. Writers take one after
the other, so embeddings of any size pass through bounded memory. FAISS and usearch keep their
vectors in memory by nature. Every output appears whole or not at all.
"""

import csv
import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import RunError, demand, import_extra, option
from graphcl.evaluation.unsupervised import empty_index, unit_rows
from graphcl.files.arrays import write_npy
from graphcl.files.atomic import check_new_file, check_new_folder, whole_file, whole_folder
from graphcl.store.columns import Names

SUFFIXES = (".npy", ".parquet", ".csv")
BATCH_ROWS = 1 << 16
SHARD_ROWS = 1 << 20  # rows of a Parquet shard
_CSV_ROWS = 4096  # formatted at a time
ABOUT, IDS, TABLE = "vectors.json", "ids.parquet", "embeddings"
ARROW = "arrow"
Batches = Iterator[Any]  # of pyarrow.RecordBatch, one at least
Ids = npt.NDArray[Any] | Names | None


def write_embeddings(
    path: Path,
    z: npt.NDArray[np.float32],
    node_ids: Ids,
    *,
    first: int = 0,
    types: npt.NDArray[Any] | None = None,
) -> None:
    """Writes embeddings by rename; those of a large graph may be mapped, and are never loaded.

    `.npy` holds the array alone, rows in the graph's order. `.parquet` holds a column ``id`` (the
    graph's own ids, or row numbers) and a column ``embedding`` of fixed-size lists. `.csv` holds
    ``id`` and a column per dimension, each number with the digits that give the same float32 back.
    `node_ids` are those of all nodes of the graph; row 0 of `z` is the node `first`. With `types`,
    one for each row, there is a column ``type`` after the ids; an `.npy` has no place for it.
    """
    with whole_file(path) as staging:
        if path.suffix == ".parquet":
            stream = batches(z, node_ids, first=first, rows=BATCH_ROWS, types=types)
            _write_stream(_parquet(), staging, stream)
        elif path.suffix == ".csv":
            _write_csv(staging, z, node_ids, first, types)
        else:
            write_npy(staging, z)


def _write_csv(
    path: Path,
    z: npt.NDArray[np.float32],
    ids: Ids,
    first: int,
    types: npt.NDArray[Any] | None,
) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        head = ["id"] if types is None else ["id", "type"]
        writer.writerow([*head, *(f"dim_{place}" for place in range(z.shape[1]))])
        for start in range(0, len(z), _CSV_ROWS):
            texts = np.asarray(z[start : start + _CSV_ROWS]).astype(str)
            rows = slice(first + start, first + start + len(texts))
            names = np.arange(rows.start, rows.stop) if ids is None else ids[rows]
            kinds = [()] * len(texts) if types is None else [(one,) for one in types[rows].tolist()]
            for name, kind, numbers in zip(names.tolist(), kinds, texts.tolist(), strict=True):
                writer.writerow([name, *kind, *numbers])


def batches(
    z: npt.NDArray[np.float32],
    node_ids: Ids,
    *,
    first: int = 0,
    rows: int = BATCH_ROWS,
    types: npt.NDArray[Any] | None = None,
) -> Batches:
    """Yields embeddings as record batches; mapped ones are read block by block.

    Args:
        z: ``[n, dim]``.
        node_ids: those of all nodes of the graph; None means their numbers.
        first: the node of row 0 of `z`.
        rows: of a batch.
        types: of all nodes of the graph, or None.
    """
    arrow = _arrow()
    mixed = isinstance(node_ids, np.ndarray) and node_ids.dtype == object
    for start in range(0, max(1, len(z)), rows):  # a table without rows has columns
        block = np.array(z[start : start + rows], dtype=np.float32)
        chosen = slice(first + start, first + start + len(block))
        names: Any = np.arange(chosen.start, chosen.stop) if node_ids is None else node_ids[chosen]
        if mixed:  # a column has one type
            names = [str(name) for name in names]
        columns = {"id": arrow.array(names)}
        if types is not None:
            columns["type"] = arrow.array(types[chosen].tolist())
        vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(block.reshape(-1)), z.shape[1])
        yield arrow.record_batch({**columns, "embedding": vectors})


def check_vectors(path: Path, kind: str, *, overwrite: bool) -> None:
    """Refuses an output before any work is done for it; without a kind, its suffix says what it is.

    Raises:
        RunError: something is there, or no such kind is known.
    """
    demand(
        not kind or kind in SINKS,
        f"embed: {option('to')} must be {', '.join(SINKS)}; got {kind!r}",
        RunError,
    )
    if kind in ("", ARROW):
        check_new_file(path, (f".{ARROW}",) if kind else SUFFIXES, RunError, overwrite=overwrite)
    else:
        check_new_folder(path, "folder of vectors", ABOUT, RunError, overwrite=overwrite)


def write_vectors(path: Path, kind: str, stream: Batches, *, dim: int) -> int:
    """Writes batches as one of `SINKS`; returns the number of rows.

    A folder also holds `vectors.json`, which says what is in it.
    """
    written = 0

    def counted() -> Batches:
        nonlocal written
        for batch in stream:
            written += batch.num_rows
            yield batch

    if kind == ARROW:
        with whole_file(path) as staging:
            SINKS[kind](staging, counted(), dim)
        return written
    with whole_folder(path) as folder:
        SINKS[kind](folder, counted(), dim)
        about = {"kind": kind, "rows": written, "dim": dim}
        (folder / ABOUT).write_text(json.dumps(about) + "\n")
    return written


def _write_stream(new_writer: Callable[[str, Any], Any], path: Path, stream: Batches) -> None:
    first = next(stream)
    with new_writer(str(path), first.schema) as writer:
        writer.write_batch(first)
        del first
        for batch in stream:
            writer.write_batch(batch)


def _write_arrow(path: Path, stream: Batches, _: int) -> None:
    _write_stream(_arrow().ipc.new_file, path, stream)


def _write_parquet(folder: Path, stream: Batches, _: int) -> None:
    def shard(held: int = 0) -> Batches:
        for batch in stream:
            yield batch
            held += batch.num_rows
            if held >= SHARD_ROWS:
                return

    for number, first in enumerate(stream):
        file = folder / f"part-{number:05}.parquet"
        _write_stream(_parquet(), file, chain([first], shard(first.num_rows)))


def _write_faiss(folder: Path, stream: Batches, dim: int) -> None:
    """Writes an exact index of rows of length 1, whose inner products are cosines."""
    faiss = import_extra("faiss", feature="a FAISS index", extra="vectors")
    index = faiss.IndexFlatIP(dim)
    for batch in _with_ids(folder, stream):
        index.add(unit_rows(vectors_of(batch)))
    faiss.write_index(index, str(folder / "index.faiss"))


def _write_usearch(folder: Path, stream: Batches, dim: int) -> None:
    index = empty_index(dim)
    for batch in _with_ids(folder, stream):
        rows = np.arange(len(index), len(index) + batch.num_rows)
        index.add(rows, unit_rows(vectors_of(batch)))
    index.save(str(folder / "index.usearch"))


def _write_lancedb(folder: Path, stream: Batches, _: int) -> None:
    lancedb = import_extra("lancedb", feature="a LanceDB table", extra="vectors")
    first = next(stream)
    reader = _arrow().RecordBatchReader.from_batches(first.schema, chain([first], stream))
    lancedb.connect(folder).create_table(TABLE, reader)


def _with_ids(folder: Path, stream: Batches) -> Batches:
    """Passes batches on and writes the id of every row of an index beside it."""
    first = next(stream)
    with _parquet()(folder / IDS, first.select(["id"]).schema) as writer:
        for batch in chain([first], stream):
            writer.write_batch(batch.select(["id"]))
            yield batch


def vectors_of(batch: Any) -> npt.NDArray[np.float32]:
    """Returns the embeddings of a batch, ``[rows, dim]``."""
    column = batch.column("embedding")
    return np.asarray(column.flatten().to_numpy().reshape(-1, column.type.list_size))


def _arrow() -> Any:
    return import_extra("pyarrow", "pyarrow.ipc", feature="record batches", extra="parquet")


def _parquet() -> Any:
    _arrow()
    import pyarrow.parquet

    return pyarrow.parquet.ParquetWriter


# What writes batches to a path that is not there yet: a folder, or a file of Arrow's.
SINKS: dict[str, Callable[[Path, Batches, int], None]] = {
    "parquet": _write_parquet,
    ARROW: _write_arrow,
    "faiss": _write_faiss,
    "usearch": _write_usearch,
    "lancedb": _write_lancedb,
}
