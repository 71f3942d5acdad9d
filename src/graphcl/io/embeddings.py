"""Embeddings out: `.npy` or `.parquet`, written whole or not at all."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import MissingExtraError, RunError
from graphcl.io.columns import Names

SUFFIXES = (".npy", ".parquet")


def check_output(path: Path, *, overwrite: bool) -> None:
    """Refuses an output file before any work is done for it."""
    if path.suffix not in SUFFIXES:
        raise RunError(f"{path}: the name must end in {' or '.join(SUFFIXES)}")
    if path.is_dir():
        raise RunError(f"{path}: is a directory")
    if path.exists() and not overwrite:
        raise RunError(f"{path}: already exists; pass --overwrite or choose another --out")
    if not path.absolute().parent.is_dir():
        raise RunError(f"{path}: the folder {path.absolute().parent} does not exist")


def write_embeddings(
    path: Path, z: npt.NDArray[np.float32], node_ids: npt.NDArray[Any] | Names | None
) -> None:
    """Writes embeddings by rename.

    `.npy` holds the array alone, rows in the graph's order. `.parquet` holds a column ``id`` (the
    graph's own ids, or row numbers) and a column ``embedding`` of fixed-size lists.
    """
    staging = path.with_name(f".{path.name}.partial")
    try:
        if path.suffix == ".parquet":
            _write_parquet(staging, z, np.arange(len(z)) if node_ids is None else node_ids)
        else:
            with staging.open("wb") as file:
                np.save(file, z)
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)


def _write_parquet(path: Path, z: npt.NDArray[np.float32], ids: npt.NDArray[Any] | Names) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("writing .parquet", "parquet") from error
    names = ids.tolist()
    if len({type(name) for name in names}) > 1 or isinstance(names[0], tuple):
        names = [str(name) for name in names]  # a Parquet column has one type
    vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(z.reshape(-1)), z.shape[1])
    pyarrow.parquet.write_table(pyarrow.table({"id": names, "embedding": vectors}), path)
