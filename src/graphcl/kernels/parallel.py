"""Loops that numba compiles, for all cores or for one."""

import threading
from collections.abc import Callable
from typing import Any, cast

import numba

prange = cast("Any", numba.prange)
# Numba's thread pool ends the process if two threads start a parallel loop at the same time.
_ONE_AT_A_TIME = threading.Lock()


def parallel(function: Callable[..., None]) -> Callable[..., None]:
    """Compiles `function` on its first call; ``prange`` runs on all cores, without the GIL.

    The machine code is cached on disk, beside the source or in numba's cache folder. If neither
    can be written, each process compiles it again.
    """
    return _compiled(function, parallel=True)


def serial(function: Callable[..., None]) -> Callable[..., None]:
    """Compiles a loop that runs on one core; otherwise like `parallel`."""
    return _compiled(function, parallel=False)


def _compiled(function: Callable[..., None], *, parallel: bool) -> Callable[..., None]:
    options: dict[str, Any] = {"parallel": parallel, "nogil": True, "error_model": "numpy"}
    try:
        compiled = numba.njit(function, cache=True, **options)
    except RuntimeError:  # no folder for the cache
        compiled = numba.njit(function, **options)

    def call(*arguments: Any) -> None:
        with _ONE_AT_A_TIME:
            compiled(*arguments)

    return call
