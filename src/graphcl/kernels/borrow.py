"""A NumPy array as a tensor that shares its memory."""

import warnings
from typing import Any

import torch
from torch import Tensor


def borrow(array: Any) -> Tensor:
    """Returns a tensor on the array's own memory; nobody may write to it.

    A graph's arrays are read-only and can be most of the memory there is. PyTorch knows no
    read-only tensors and warns about each: here the rule is ours to keep.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
