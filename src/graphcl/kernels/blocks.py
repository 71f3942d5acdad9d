"""Blocks that get smaller when a GPU runs out of memory.

Every result here is exact whatever the height of its blocks, so a step that did not fit can be
done again in smaller ones. That happens once, aloud, and the blocks stay small for the rest of the
process; a second failure is the caller's to hear of.
"""

import sys
from collections.abc import Callable
from typing import TypeVar

import torch

SMALLER = 8
T = TypeVar("T")

_divisor = 1


def block_height(height: int) -> int:
    """Returns the height of a block where `height` is the usual one."""
    return max(1, height // _divisor)


def retry_smaller(work: Callable[[], T]) -> T:
    """Returns what `work` returns; after a CUDA out-of-memory error it runs again, once.

    Args:
        work: leaves nothing behind that its second run would not overwrite, and draws the same.

    Raises:
        torch.OutOfMemoryError: with small blocks, too; or in one of several processes that train
            together, since the others would wait for a step that this one does twice.
    """
    global _divisor
    try:
        return work()
    except torch.OutOfMemoryError:
        if _divisor > 1 or _among_others():
            raise
    # Outside the handler: the exception's traceback would keep the failed step's tensors alive.
    _divisor = SMALLER
    print(
        f"out of GPU memory: again in blocks {SMALLER} times smaller, from here on",
        file=sys.stderr,
        flush=True,
    )
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return work()


def _among_others() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
