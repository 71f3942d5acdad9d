"""Pickles from outside, read without letting them run anything.

Planetoid's raw files are Python 2 pickles of NumPy and SciPy arrays. A pickle is a program; this
unpickler knows the six names such files use and refuses every other.
"""

import collections
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.errors import DatasetError

_reconstruct = np.empty(0).__reduce__()[0]  # numpy's own function, wherever this version keeps it

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


def load_arrays(path: Path) -> Any:
    """Returns the arrays pickled in `path`.

    Raises:
        DatasetError: the file is damaged, or names anything but arrays, dicts and lists.
    """
    try:
        with path.open("rb") as file:
            return _ArrayUnpickler(file, encoding="latin1").load()
    except FileNotFoundError:
        raise DatasetError(f"{path}: no such file") from None
    except Exception as error:  # a damaged pickle can raise anything at all
        raise DatasetError(f"{path}: not a pickle of arrays ({error})") from None
