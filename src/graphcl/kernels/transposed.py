r"""The backward product of sparse features, :math:`X^\top G`, on a CPU with few cores.

Column by column of X, it gathers rows of G from all over memory. Row by row, it reads G once and
adds multiples of its rows to the rows of the result; a core that owns a slab of columns keeps the
sums of all of them in its cache. Values that dropout made zero cost nothing.
"""

import numba
import numpy as np
import torch
from torch import Tensor

from graphcl.kernels.parallel import parallel, prange

LEAST_WORK = 1 << 22  # entries times columns: with less, compiling takes longer than it saves
LEAST_WIDTH = 64  # columns of a slab: each core goes through all entries
SLAB_BYTES = 1 << 22  # about what a core's own cache holds


def pays(entries: int, rows: int, width: int, dtype: torch.dtype) -> bool:
    """Says whether `transposed_product` beats a gathering product on this machine.

    Args:
        entries: stored values of X.
        rows: of the result, X's columns.
        width: of the result.
        dtype: of the result.
    """
    slab = width // _slabs()
    fits = rows * slab * dtype.itemsize <= SLAB_BYTES
    return _slabs() > 1 and slab >= LEAST_WIDTH and fits and entries * width >= LEAST_WORK


def transposed_product(
    indptr: Tensor, indices: Tensor, values: Tensor, dense: Tensor, rows: int
) -> Tensor:
    """Returns Xᵀ G, ``[rows, width]``, for X in CSR and a dense G; all on a CPU.

    The sums of an element come in the order of X's rows, however many cores there are.
    """
    out = torch.empty(rows, dense.shape[1], dtype=dense.dtype)
    arrays = (part.numpy() for part in (indptr, indices, values, dense.contiguous(), out))
    _add_rows(*arrays, _slabs())
    return out


def _slabs() -> int:
    """As many as torch has threads: who gave it one wants no other to start any."""
    return min(numba.get_num_threads(), torch.get_num_threads())


@parallel
def _add_rows(  # type: ignore[no-untyped-def]
    indptr, indices, values, dense, out, parts
) -> None:
    width = dense.shape[1]
    flat = dense.ravel()
    for part in prange(parts):
        # Unsigned throughout: an index that may count from the end is not vectorised.
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
