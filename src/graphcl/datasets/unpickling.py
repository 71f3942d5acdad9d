"""Pickles from outside, read without letting them run anything.

Planetoid's raw files are Python 2 pickles of NumPy and SciPy arrays. A pickle is a program; this
unpickler knows the six names such files use and refuses every other.
"""

import collections
import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.errors import DatasetError

_numpy_reconstruct: Any = np.empty(0).__reduce__()[0]  # wherever this version keeps it


def _reconstruct(kind: Any, shape: Any, dtype: Any) -> Any:
    """NumPy's own function, for the empty arrays it is always called for: no memory on demand."""
    if kind is not np.ndarray or shape != (0,):
        raise pickle.UnpicklingError(f"an array of shape {str(shape)[:40]} out of nothing")
    return _numpy_reconstruct(kind, shape, dtype)


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("scipy.sparse.csr", "csr_matrix"): scipy.sparse.csr_matrix,
    ("scipy.sparse._csr", "csr_matrix"): scipy.sparse.csr_matrix,
    ("collections", "defaultdict"): collections.defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not an array") from None


def _check_numbers(data: bytes) -> None:
    """Refuses memo numbers beyond the file's size, for each of which Python would make room."""
    for opcode, number, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(number or 0) > len(data):
            raise pickle.UnpicklingError(f"memo number {number} in {len(data)} bytes")


def load_arrays(path: Path) -> Any:
    """Returns the arrays pickled in `path`.

    Raises:
        DatasetError: the file is damaged, or names anything but arrays, dicts and lists.
    """
    try:
        data = path.read_bytes()
        _check_numbers(data)
        found = _ArrayUnpickler(io.BytesIO(data), encoding="latin1").load()
        if scipy.sparse.issparse(found):
            found.check_format(full_check=True)  # SciPy's loops trust what a pickle says
        return found
    except FileNotFoundError:
        raise DatasetError(f"{path}: no such file") from None
    except Exception as error:  # a damaged pickle can raise anything at all
        raise DatasetError(f"{path}: not a pickle of arrays ({error})") from None
