"""Memory: buffers for large results, arrays without a copy, blocks that fit on a GPU.

Results do not depend on the height of the blocks, so a step that did not fit can be repeated in
smaller ones. This happens once, with a message, and the blocks stay small for the rest of the
process. A second failure is raised.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

SMALLER = 8
T = TypeVar("T")

_divisor = 1
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Returns an uninitialised tensor of the type and the device of `like`.

    On a CPU NumPy allocates it, because NumPy asks for huge pages. A batch of 512 seed nodes has
    547 MB of inputs; with pages of 4 kB, the first access costs as much as filling them.
    """
    if like.device.type != "cpu" or like.dtype not in _NUMPY:
        return like.new_empty(shape)
    return torch.from_numpy(np.empty(shape, dtype=_NUMPY[like.dtype]))


def borrow(array: Any) -> Tensor:
    """Returns a tensor that shares the array's memory; the caller must not write to it.

    A graph's arrays are read-only and can take most of the memory, so they are not copied. PyTorch
    has no read-only tensors and warns about each such array; the warning is hidden.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def block_height(height: int) -> int:
    """Returns the height of a block: `height`, or less after an out-of-memory error."""
    return max(1, height // _divisor)


def retry_smaller(work: Callable[[], T]) -> T:
    """Returns the result of `work`; after a CUDA out-of-memory error it is called again, once.

    Args:
        work: the second call must overwrite all that the first one left, and make the same draws.

    Raises:
        torch.OutOfMemoryError: smaller blocks did not fit either; or this is one of several
            processes that train together, and the others would wait for the repeated step.
    """
    global _divisor
    try:
        return work()
    except torch.OutOfMemoryError:
        group = torch.distributed.is_available() and torch.distributed.is_initialized()
        if _divisor > 1 or group:
            raise
    # Outside the handler, where the exception's traceback would keep the step's tensors alive.
    _divisor = SMALLER
    text = f"out of GPU memory; using blocks {SMALLER} times smaller from now on"
    print(text, file=sys.stderr, flush=True)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return work()
