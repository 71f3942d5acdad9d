"""A graph in one `.npz` file: what `numpy.savez` writes, nothing pickled.

Arrays: ``edge_index`` [2, edges]; ``x`` [nodes, features], or sparse as ``x_indptr``,
``x_indices``, ``x_data`` and ``x_shape``; optionally ``y``, ``train_mask``, ``val_mask``,
``test_mask`` and ``node_ids``.
"""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.errors import GraphError

_OPTIONAL = ("y", "train_mask", "val_mask", "test_mask", "node_ids")
_SPARSE = ("x_indptr", "x_indices", "x_data", "x_shape")
_KNOWN = {"edge_index", "x", *_SPARSE, *_OPTIONAL}


def read_arrays(path: Path) -> dict[str, Any]:
    """Reads the keyword arguments of `Graph.from_edge_index` from an `.npz` file."""
    arrays = _read(path)
    unknown = sorted(set(arrays) - _KNOWN)
    if unknown:
        raise GraphError(
            f"{path}: unknown array {unknown[0]!r}; known: {', '.join(sorted(_KNOWN))}"
        )
    if "edge_index" not in arrays:
        raise GraphError(f"{path}: has no array 'edge_index' ([2, edges])")
    given: dict[str, Any] = {name: arrays[name] for name in _OPTIONAL if name in arrays}
    if "x" in arrays:
        x: Any = arrays["x"]
    elif all(name in arrays for name in _SPARSE):
        x = _sparse_features(arrays, path)
    else:
        raise GraphError(f"{path}: has no array 'x' ([nodes, features])")
    return {"edge_index": arrays["edge_index"], "x": x, **given}


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as raw:  # numpy would leave it open when it finds it damaged
            file = np.load(raw, allow_pickle=False)
            if not hasattr(file, "files"):
                raise GraphError(f"{path}: is a single array; a graph is an .npz of several")
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise GraphError(f"{path}: no such file") from None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, GraphError):
            raise
        if "pickle" in str(error):
            raise GraphError(f"{path}: holds pickled objects, which are never read") from None
        raise GraphError(f"{path}: not a readable .npz file ({error})") from None


def _sparse_features(arrays: dict[str, Any], path: Path) -> scipy.sparse.csr_array:
    try:
        parts = (arrays["x_data"], arrays["x_indices"], arrays["x_indptr"])
        x = scipy.sparse.csr_array(parts, shape=tuple(int(n) for n in arrays["x_shape"]))
        x.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        raise GraphError(f"{path}: x_* is not a CSR matrix ({error})") from None
    return x
