"""Memory: room for large results, and NumPy arrays as tensors without a copy."""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor


def empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Returns uninitialised memory of the type and the device of `like`.

    On a CPU it is NumPy's, which asks for huge pages: a batch of 512 seed nodes takes 547 MB of
    inputs, and in pages of 4 kB touching them for the first time costs as much as filling them.
    """
    if like.device.type != "cpu" or like.dtype not in _NUMPY:
        return like.new_empty(shape)
    return torch.from_numpy(np.empty(shape, dtype=_NUMPY[like.dtype]))


_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def borrow(array: Any) -> Tensor:
    """Returns a tensor on the array's own memory; nobody may write to it.

    A graph's arrays are read-only and can be most of the memory there is. PyTorch knows no
    read-only tensors and warns about each: here the rule is ours to keep.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
