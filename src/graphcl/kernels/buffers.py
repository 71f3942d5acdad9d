"""Memory: buffers for large results, and NumPy arrays as tensors without a copy."""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor


def empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Returns an uninitialised tensor of the type and the device of `like`.

    On a CPU NumPy allocates it, because NumPy asks for huge pages. A batch of 512 seed nodes has
    547 MB of inputs; with pages of 4 kB, the first access costs as much as filling them.
    """
    if like.device.type != "cpu" or like.dtype not in _NUMPY:
        return like.new_empty(shape)
    return torch.from_numpy(np.empty(shape, dtype=_NUMPY[like.dtype]))


_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def borrow(array: Any) -> Tensor:
    """Returns a tensor that shares the array's memory; the caller must not write to it.

    A graph's arrays are read-only and can take most of the memory, so they are not copied. PyTorch
    has no read-only tensors and warns about each such array; the warning is hidden.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
