"""Reads a graph from one `.npz` file that `numpy.savez` wrote, without pickles.

The file contains ``edge_index`` [2, edges], and ``x`` [nodes, features] or the sparse features
``x_indptr``, ``x_indices``, ``x_data`` and ``x_shape``. It may contain ``y``, ``train_mask``,
``val_mask``, ``test_mask``, ``node_ids`` and ``edge_weight`` [edges].
"""

from pathlib import Path
from typing import Any

import scipy.sparse

from graphcl.errors import GraphError
from graphcl.files.npz import read_npz

_OPTIONAL = ("y", "train_mask", "val_mask", "test_mask", "node_ids", "edge_weight")
_SPARSE = ("x_indptr", "x_indices", "x_data", "x_shape")
_KNOWN = {"edge_index", "x", *_SPARSE, *_OPTIONAL}


def read_arrays(path: Path) -> dict[str, Any]:
    """Reads the keyword arguments of `Graph.from_edge_index` from an `.npz` file."""
    arrays: dict[str, Any] = read_npz(path, None, GraphError)
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


def _sparse_features(arrays: dict[str, Any], path: Path) -> scipy.sparse.csr_array:
    try:
        parts = (arrays["x_data"], arrays["x_indices"], arrays["x_indptr"])
        x = scipy.sparse.csr_array(parts, shape=tuple(int(n) for n in arrays["x_shape"]))
        x.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        raise GraphError(f"{path}: x_* is not a CSR matrix ({error})") from None
    return x
