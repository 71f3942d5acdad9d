"""Memory for large results."""

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
