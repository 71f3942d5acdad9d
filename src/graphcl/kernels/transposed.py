r"""The backward product of sparse features, :math:`X^\top G`, on a CPU with few cores.

A loop over the columns of X gathers rows of G from all over memory. The loop here goes over the
rows of X: it reads G once and adds multiples of its rows to rows of the result. Each core computes
a slab of the result's columns and keeps their sums in its cache. Values that dropout set to zero
are skipped.
"""

import numba
import numpy as np
import torch
from torch import Tensor

from graphcl.kernels.parallel import parallel, prange

LEAST_WORK = 1 << 22  # entries times columns; with less, compilation takes longer than it saves
LEAST_WIDTH = 64  # columns of a slab; narrower ones do not pay, as each core reads all entries
SLAB_BYTES = 1 << 22  # about what a core's own cache holds


def is_faster(entries: int, rows: int, width: int, dtype: torch.dtype) -> bool:
    """Returns whether `transposed_product` is faster than a gathering product on this machine.

    Args:
        entries: number of stored values of X.
        rows: rows of the result, which are the columns of X.
        width: columns of the result.
        dtype: type of the result.
    """
    slab = width // _slabs()
    fits = rows * slab * dtype.itemsize <= SLAB_BYTES
    return _slabs() > 1 and slab >= LEAST_WIDTH and fits and entries * width >= LEAST_WORK


def transposed_product(
    indptr: Tensor, indices: Tensor, values: Tensor, dense: Tensor, rows: int
) -> Tensor:
    """Returns Xᵀ G, ``[rows, width]``, for X in CSR and a dense G; all on a CPU.

    Each element is summed in the order of X's rows, whatever the number of cores.
    """
    out = torch.empty(rows, dense.shape[1], dtype=dense.dtype)
    arrays = (part.numpy() for part in (indptr, indices, values, dense.contiguous(), out))
    _add_rows(*arrays, _slabs())
    return out


def _slabs() -> int:
    """Returns at most torch's number of threads: a user who sets it limits these loops, too."""
    return min(numba.get_num_threads(), torch.get_num_threads())


@parallel
def _add_rows(  # type: ignore[no-untyped-def]
    indptr, indices, values, dense, out, parts
) -> None:
    width = dense.shape[1]
    flat = dense.ravel()
    for part in prange(parts):
        # Unsigned indices: signed ones may count from the end, and are then not vectorised.
        left = np.uint64(part * width // parts)
        columns = np.uint64((part + 1) * width // parts) - left
        sums = np.zeros(out.shape[0] * int(columns), dense.dtype)
        for row in range(len(indptr) - 1):
            source = np.uint64(row) * np.uint64(width) + left
            for entry in range(indptr[row], indptr[row + 1]):
                value = values[entry]
                if value != 0:
                    target = np.uint64(indices[entry]) * columns
                    for column in range(columns):
                        sums[target + column] += value * flat[source + column]
        for row in range(out.shape[0]):
            source = np.uint64(row) * columns
            for column in range(columns):
                out[row, left + column] = sums[source + column]
