"""Blocks that get smaller when a GPU runs out of memory.

Results do not depend on the height of the blocks, so a step that did not fit can be repeated in
smaller ones. This happens once, with a message, and the blocks stay small for the rest of the
process. A second failure is raised.
"""

import sys
from collections.abc import Callable
from typing import TypeVar

import torch

SMALLER = 8
T = TypeVar("T")

_divisor = 1


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
        if _divisor > 1 or _in_a_group():
            raise
    # Outside the handler, where the exception's traceback would keep the step's tensors alive.
    _divisor = SMALLER
    print(
        f"out of GPU memory; using blocks {SMALLER} times smaller from now on",
        file=sys.stderr,
        flush=True,
    )
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return work()


def _in_a_group() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
