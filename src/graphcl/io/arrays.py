"""NumPy and SciPy files, read with suspicion: nothing pickled, and no error but ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy.sparse

from graphcl.errors import GraphError

T = TypeVar("T")


def read_arrays(path: Path) -> dict[str, Any] | np.ndarray[Any, Any]:
    """Returns the arrays of an `.npz` by name, or the one array of an `.npy`."""

    def read() -> dict[str, Any] | np.ndarray[Any, Any]:
        with path.open("rb") as raw:  # numpy would leave it open when it finds it damaged
            file = np.load(raw, allow_pickle=False)
            if isinstance(file, np.ndarray):
                return file
            with file:
                return {name: file[name] for name in file.files}

    return _careful(path, read)


def read_matrix(path: Path) -> Any:
    """Returns the matrix that `scipy.sparse.save_npz` wrote, its indices checked."""

    def read() -> Any:
        with path.open("rb") as raw:
            matrix = scipy.sparse.load_npz(raw)
        if matrix.ndim != 2:
            raise ValueError(f"{matrix.ndim} dimensions")
        if matrix.format in ("csr", "csc"):
            matrix.check_format(full_check=True)
        coo = scipy.sparse.coo_array(matrix)
        for axis, size in zip(coo.coords, matrix.shape, strict=True):
            if len(axis) and not (axis.min() >= 0 and axis.max() < size):
                raise ValueError(f"an index lies outside {matrix.shape}")
        return coo

    return _careful(path, read)


def _careful(path: Path, read: Callable[[], T]) -> T:
    try:
        return read()
    except FileNotFoundError:
        raise GraphError(f"{path}: no such file") from None
    except MemoryError:
        raise GraphError(f"{path}: its header asks for more memory than there is") from None
    # The libraries let through whatever a damaged file makes them stumble over: ValueError,
    # KeyError, EOFError, BadZipFile, zlib.error, TokenError, NotImplementedError, …
    except Exception as error:
        if "pickle" in str(error):
            raise GraphError(f"{path}: holds pickled objects, which are never read") from None
        text = " ".join(str(error).split())[:120] or type(error).__name__
        raise GraphError(f"{path}: not a readable {path.suffix} file ({text})") from None
