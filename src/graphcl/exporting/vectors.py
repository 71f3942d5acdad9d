"""Embeddings as a stream of record batches, into files and vector indexes; one interface for all.

A writer takes batches of the columns `id` and `embedding`, one after the other, so embeddings of
any size pass through bounded memory. FAISS and usearch keep their vectors in memory by nature.
Every output appears whole or not at all.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import MissingExtraError, RunError
from graphcl.evaluation.nearest import empty_index, unit_rows
from graphcl.files.atomic import check_new_file, check_new_folder, whole_file, whole_folder
from graphcl.store.columns import Names

BATCH_ROWS = 1 << 16
SHARD_ROWS = 1 << 20  # rows of a Parquet shard
ABOUT, IDS, TABLE = "vectors.json", "ids.parquet", "embeddings"
Batches = Iterator[Any]  # of pyarrow.RecordBatch


@dataclass(frozen=True)
class Sink:
    """A kind of output.

    Attributes:
        write: writes batches to a path that is not there yet.
        folder: whether the output is a folder, not a file.
    """

    write: Callable[[Path, Batches, int], None]
    folder: bool = True


def batches(
    z: npt.NDArray[np.float32],
    node_ids: npt.NDArray[Any] | Names | None,
    *,
    first: int = 0,
    rows: int = BATCH_ROWS,
) -> Batches:
    """Yields embeddings as record batches; mapped ones are read block by block.

    Args:
        z: ``[n, dim]``.
        node_ids: those of all nodes of the graph; None means their numbers.
        first: the node of row 0 of `z`.
        rows: of a batch.
    """
    arrow = _arrow()
    mixed = isinstance(node_ids, np.ndarray) and node_ids.dtype == object
    for start in range(0, len(z), rows):
        block = np.array(z[start : start + rows], dtype=np.float32)
        chosen = slice(first + start, first + start + len(block))
        names: Any = np.arange(chosen.start, chosen.stop) if node_ids is None else node_ids[chosen]
        if mixed:  # a column has one type
            names = [str(name) for name in names]
        vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(block.reshape(-1)), z.shape[1])
        yield arrow.record_batch({"id": arrow.array(names), "embedding": vectors})


def check_vectors(path: Path, kind: str, *, overwrite: bool) -> None:
    """Refuses an output before any work is done for it.

    Raises:
        RunError: something is there, or no such kind is known.
    """
    if kind not in SINKS:
        raise RunError(f"embed: --to must be {', '.join(SINKS)}; got {kind!r}")
    if SINKS[kind].folder:
        check_new_folder(path, "folder of vectors", ABOUT, RunError, overwrite=overwrite)
    else:
        check_new_file(path, (".arrow",), RunError, overwrite=overwrite)


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

    sink = SINKS[kind]
    if not sink.folder:
        with whole_file(path) as staging:
            sink.write(staging, counted(), dim)
        return written
    with whole_folder(path) as folder:
        sink.write(folder, counted(), dim)
        about = {"kind": kind, "rows": written, "dim": dim}
        (folder / ABOUT).write_text(json.dumps(about) + "\n")
    return written


def _write_arrow(path: Path, stream: Batches, _: int) -> None:
    arrow, writer = _arrow(), None
    try:
        for batch in stream:
            writer = writer or arrow.ipc.new_file(str(path), batch.schema)
            writer.write_batch(batch)
    finally:
        if writer is not None:
            writer.close()


def _write_parquet(folder: Path, stream: Batches, _: int) -> None:
    _arrow()
    import pyarrow.parquet

    writer, number, held = None, 0, 0
    try:
        for batch in stream:
            if writer is None:
                file = folder / f"part-{number:05}.parquet"
                writer = pyarrow.parquet.ParquetWriter(file, batch.schema)
            writer.write_batch(batch)
            held += batch.num_rows
            if held >= SHARD_ROWS:
                writer.close()
                writer, number, held = None, number + 1, 0
    finally:
        if writer is not None:
            writer.close()


def _write_faiss(folder: Path, stream: Batches, dim: int) -> None:
    """Writes an exact index of rows of length 1, whose inner products are cosines."""
    try:
        import faiss
    except ImportError as error:
        raise MissingExtraError("a FAISS index", "vectors") from error
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
    try:
        import lancedb
    except ImportError as error:
        raise MissingExtraError("a LanceDB table", "vectors") from error
    first = next(stream)

    def every() -> Batches:
        yield first
        yield from stream

    reader = _arrow().RecordBatchReader.from_batches(first.schema, every())
    lancedb.connect(folder).create_table(TABLE, reader)


def _with_ids(folder: Path, stream: Batches) -> Batches:
    """Passes batches on and writes the id of every row of an index beside it."""
    _arrow()
    import pyarrow.parquet

    writer = None
    try:
        for batch in stream:
            ids = batch.select(["id"])
            writer = writer or pyarrow.parquet.ParquetWriter(folder / IDS, ids.schema)
            writer.write_batch(ids)
            yield batch
    finally:
        if writer is not None:
            writer.close()


def vectors_of(batch: Any) -> npt.NDArray[np.float32]:
    """Returns the embeddings of a batch, ``[rows, dim]``."""
    column = batch.column("embedding")
    found: npt.NDArray[np.float32] = column.flatten().to_numpy().reshape(len(column), -1)
    return found


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise MissingExtraError("record batches", "parquet") from error
    return pyarrow


SINKS = {
    "parquet": Sink(_write_parquet),
    "arrow": Sink(_write_arrow, folder=False),
    "faiss": Sink(_write_faiss),
    "usearch": Sink(_write_usearch),
    "lancedb": Sink(_write_lancedb),
}
