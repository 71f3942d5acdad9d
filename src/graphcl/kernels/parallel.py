"""Loops compiled for every core of the CPU."""

import threading
from collections.abc import Callable
from typing import Any, cast

import numba

prange = cast("Any", numba.prange)
_ONE_AT_A_TIME = threading.Lock()  # numba's own thread pool ends the process when two threads enter


def parallel(function: Callable[..., None]) -> Callable[..., None]:
    """Compiles `function` on its first call; ``prange`` runs on all cores, without the GIL.

    The machine code is kept on disk beside the source, or where numba finds a place to write;
    where there is none, each process compiles again.
    """
    return _compiled(function, parallel=True)


def serial(function: Callable[..., None]) -> Callable[..., None]:
    """Compiles a loop that goes one step after the other; as `parallel` else."""
    return _compiled(function, parallel=False)


def _compiled(function: Callable[..., None], *, parallel: bool) -> Callable[..., None]:
    options: dict[str, Any] = {"parallel": parallel, "nogil": True, "error_model": "numpy"}
    try:
        compiled = numba.njit(function, cache=True, **options)
    except RuntimeError:
        compiled = numba.njit(function, **options)

    def call(*arguments: Any) -> None:
        with _ONE_AT_A_TIME:
            compiled(*arguments)

    return call
