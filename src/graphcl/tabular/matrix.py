"""Node features that come as a matrix: `.npy`, `.npz` or SciPy; rows are nodes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError
from graphcl.files.npz import read_npz
from graphcl.graphs import validation
from graphcl.tabular.arrays import is_matrix, read_matrix, read_npy

_MASKS = ("train_mask", "val_mask", "test_mask")


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
    arrays = {"x": read_npy(path)} if suffix == ".npy" else read_npz(path, None, GraphError)
    if is_matrix(arrays):
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


def _features(path: Path, x: Any) -> Any:
    try:
        return validation.features(x)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None
