"""NumPy and SciPy files, read with suspicion: nothing pickled, and no error but ours."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError
from graphcl.files.npz import read_npz

_PARTS = {"csr": ("data", "indices", "indptr"), "csc": ("data", "indices", "indptr")}
_PARTS["coo"] = ("data", "row", "col")


def read_npy(path: Path) -> npt.NDArray[Any]:
    """Returns the array of an `.npy` file."""
    try:
        with path.open("rb") as raw:  # numpy would leave it open when it finds it damaged
            array: npt.NDArray[Any] = np.lib.format.read_array(raw, allow_pickle=False)
    except FileNotFoundError:
        raise GraphError(f"{path}: no such file") from None
    except MemoryError:
        raise GraphError(f"{path}: its header asks for more memory than there is") from None
    except Exception as error:  # a damaged header can raise anything at all
        if "pickle" in str(error) or "Object arrays" in str(error):
            raise GraphError(f"{path}: holds pickled objects, which are never read") from None
        text = " ".join(str(error).split())[:120] or type(error).__name__
        raise GraphError(f"{path}: not a readable .npy file ({text})") from None
    return array


def is_matrix(arrays: dict[str, npt.NDArray[Any]]) -> bool:
    """Says whether the arrays of an `.npz` are what `scipy.sparse.save_npz` writes."""
    return {"format", "shape", "data"} <= arrays.keys()


def read_matrix(path: Path) -> scipy.sparse.coo_array:
    """Returns the matrix that `scipy.sparse.save_npz` wrote, its indices checked."""
    arrays = read_npz(path, None, GraphError)
    if not is_matrix(arrays):
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
