"""A training step recorded once and replayed: one launch in place of a hundred."""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

EAGER_STEPS = 3  # real steps that let libraries allocate and kernels compile before the recording


_own = threading.local()


def _stream(device: torch.device) -> Any:
    """Returns the stream that this thread records on.

    Libraries keep tens of megabytes for each stream they have seen, so a training must not bring
    its own; and memory of a pool is shared only by recordings on one stream.
    """
    streams = _own.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return streams[device]


class CudaGraphStep:
    """Calls `step` eagerly a few times, then records it in a CUDA graph and replays that.

    On small graphs a step is bound by launches, not by arithmetic. The recorded step must use the
    same tensors every time, draw from `generator` alone and never wait for the device. Seed the
    generator before each call: a replay draws what an eager call would.

    Args:
        step: does one training step on a batch and returns a tensor; the batch must be the same
            at every call.
        generator: the CUDA generator that `step` draws from.
        pool: memory that several recordings share, none of them replayed beside another; see
            `torch.cuda.graph_pool_handle`. Without one the recording has its own. Close all that
            share one together.
    """

    def __init__(
        self, step: Callable[[Any], Tensor], generator: torch.Generator, pool: Any = None
    ) -> None:
        self._step, self._generator, self._pool = step, generator, pool
        self._stream = _stream(generator.device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result = torch.empty(0)
        self._calls = 0

    def __call__(self, batch: Any) -> Tensor:
        """Does one step and returns its result."""
        if self._calls < EAGER_STEPS:
            self._calls += 1
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                result = self._step(batch)
            torch.cuda.current_stream().wait_stream(self._stream)
            return result
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self._generator)
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                self._result = self._step(batch)
            self._graph = graph  # only now: a recording that failed is made anew
        self._graph.replay()
        return self._result.clone()

    def close(self) -> None:
        """Gives the recording's memory back; a cycle of references would hold it for long."""
        if self._graph is not None:
            self._graph.reset()
        self._graph, self._result = None, torch.empty(0)
