"""Node features that come as a matrix: `.npy`, `.npz` or SciPy; rows are nodes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError
from graphcl.files.npy import read_npy
from graphcl.files.npz import read_npz
from graphcl.graphs import validation

_MASKS = ("train_mask", "val_mask", "test_mask")
# What `scipy.sparse.save_npz` writes for each format, in the order that the constructors take.
_PARTS = {"csr": ("data", "indices", "indptr"), "csc": ("data", "indices", "indptr")}
_PARTS["coo"] = ("data", "row", "col")


@dataclass(frozen=True)
class NodeMatrix:
    """A feature matrix and what came with it.

    Attributes:
        x: float32 ``[rows, features]``, dense or CSR.
        names: ids of the rows; None where they are the row numbers.
        y: class numbers, or None.
        masks: the split, by name.
    """

    x: Any
    names: npt.NDArray[Any] | None = None
    y: npt.NDArray[np.int64] | None = None
    masks: dict[str, npt.NDArray[np.bool_]] = field(default_factory=dict)

    def ids(self) -> Any:
        """Returns the ids as an Arrow table of one column."""
        import pyarrow

        names = np.arange(self.x.shape[0]) if self.names is None else self.names
        if names.dtype.kind == "O":
            names = np.array([str(name) for name in names])
        return pyarrow.table({"id": pyarrow.array(names.tolist())})


def read(text: str) -> NodeMatrix | None:
    """Reads a matrix; None where `text` does not name an array file.

    An `.npz` is what `scipy.sparse.save_npz` writes, or holds ``x`` (or one array alone) and,
    where there are any, ``node_ids``, ``y`` and masks.
    """
    path = Path(text)
    if path.suffix.lower() not in (".npy", ".npz"):
        return None
    if not path.is_file():
        raise GraphError(f"{path}: no such file")
    suffix = path.suffix.lower()
    arrays = (
        {"x": read_npy(path, GraphError)} if suffix == ".npy" else read_npz(path, None, GraphError)
    )
    if _is_scipy(arrays):
        return NodeMatrix(_features(path, read_matrix(path)))
    x = arrays.pop("x") if "x" in arrays else None
    if x is None and len(arrays) == 1:
        x = arrays.popitem()[1]
    if x is None:
        raise GraphError(f"{path}: has no array 'x'; it has {', '.join(sorted(arrays)) or 'none'}")
    unknown = sorted(arrays.keys() - {"node_ids", "y", *_MASKS})
    if unknown:
        known = ", ".join(("x", "node_ids", "y", *_MASKS))
        raise GraphError(f"{path}: unknown array {unknown[0]!r}; known: {known}")
    x = _features(path, x)
    rows = x.shape[0]
    masks = {name: validation.mask(arrays.get(name), rows, name) for name in _MASKS}
    validation.check_disjoint(masks)
    names = arrays.get("node_ids")
    if names is not None and (names.shape != (rows,) or names.dtype.kind not in "iuU"):
        raise GraphError(
            f"{path}: node_ids: expected {rows} integers or texts; got {names.dtype} {names.shape}"
        )
    return NodeMatrix(
        x,
        names,
        validation.labels(arrays.get("y"), rows),
        {name: mask for name, mask in masks.items() if mask is not None},
    )


def read_matrix(path: Path) -> scipy.sparse.coo_array:
    """Returns the matrix that `scipy.sparse.save_npz` wrote, its indices checked."""
    arrays = read_npz(path, None, GraphError)
    if not _is_scipy(arrays):
        raise GraphError(f"{path}: holds no SciPy matrix; write one with scipy.sparse.save_npz")
    kind = arrays["format"].reshape(-1)[:1].astype(str)
    name = str(kind[0]) if len(kind) else ""
    if name not in _PARTS:
        raise GraphError(f"{path}: a SciPy matrix in format {name[:10]!r}; save its .tocsr()")
    missing = [part for part in _PARTS[name] if part not in arrays]
    if missing:
        raise GraphError(f"{path}: damaged: the SciPy matrix has no array {missing[0]!r}")
    data, first, second = (arrays[part] for part in _PARTS[name])
    try:
        height, width = (int(size) for size in arrays["shape"])
        shape = (height, width)
        if name == "coo":
            return scipy.sparse.coo_array((data, (first, second)), shape=shape)
        build = scipy.sparse.csr_array if name == "csr" else scipy.sparse.csc_array
        matrix = build((data, first, second), shape=shape)
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, OverflowError, IndexError) as error:
        text = " ".join(str(error).split())[:120]
        raise GraphError(f"{path}: damaged: not a SciPy matrix ({text})") from None
    return matrix.tocoo()


def _is_scipy(arrays: dict[str, npt.NDArray[Any]]) -> bool:
    """Says whether the arrays of an `.npz` are what `scipy.sparse.save_npz` writes."""
    return {"format", "shape", "data"} <= arrays.keys()


def _features(path: Path, x: Any) -> Any:
    try:
        return validation.features(x)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None
