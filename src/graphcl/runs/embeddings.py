"""Embeddings out: `.npy`, `.parquet` or `.csv`, written whole or not at all."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import MissingExtraError, RunError
from graphcl.files.atomic import check_new_file, whole_file
from graphcl.store.columns import Names

SUFFIXES = (".npy", ".parquet", ".csv")
_GROUP_ROWS = 65536  # rows of a Parquet row group, and of memory
_CSV_ROWS = 4096  # formatted at a time


def check_embeddings_file(path: Path, *, overwrite: bool) -> None:
    """Refuses an output file before any work is done for it."""
    check_new_file(path, SUFFIXES, RunError, overwrite=overwrite)


def write_embeddings(
    path: Path,
    z: npt.NDArray[np.float32],
    node_ids: npt.NDArray[Any] | Names | None,
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
            _write_parquet(staging, z, node_ids, first, types)
        elif path.suffix == ".csv":
            _write_csv(staging, z, node_ids, first, types)
        else:
            np.save(staging, z)


def _write_parquet(
    path: Path,
    z: npt.NDArray[np.float32],
    ids: npt.NDArray[Any] | Names | None,
    first: int,
    types: npt.NDArray[Any] | None,
) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("writing .parquet", "parquet") from error
    mixed = isinstance(ids, np.ndarray) and ids.dtype == object
    writer = None
    try:
        for start in range(0, max(1, len(z)), _GROUP_ROWS):  # a table without rows has columns
            block = np.asarray(z[start : start + _GROUP_ROWS])
            rows = slice(first + start, first + start + len(block))
            names: Any = np.arange(rows.start, rows.stop) if ids is None else ids[rows]
            if mixed:  # a Parquet column has one type
                names = [str(name) for name in names]
            vectors = pyarrow.FixedSizeListArray.from_arrays(
                pyarrow.array(block.reshape(-1)), z.shape[1]
            )
            columns = {"id": pyarrow.array(names)}
            if types is not None:
                columns["type"] = pyarrow.array(types[rows].tolist())
            table = pyarrow.table({**columns, "embedding": vectors})
            writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _write_csv(
    path: Path,
    z: npt.NDArray[np.float32],
    ids: npt.NDArray[Any] | Names | None,
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
