"""Loops that numba compiles, for all cores or for one."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        with _ONE_AT_A_TIME, _threads_of_torch(first=parallel):
            compiled(*arguments)

    return call


_started = threading.Event()


@contextmanager
def _threads_of_torch(*, first: bool) -> Iterator[None]:
    """Keeps the number of threads that torch was told to use.

    When numba starts its threads, it sets OpenMP's number of them for the whole process. Torch
    would compute with all cores from then on, whatever the user said, and round differently.
    """
    torch = sys.modules.get("torch")
    if not first or _started.is_set() or torch is None:
        yield
        return
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    _started.set()
