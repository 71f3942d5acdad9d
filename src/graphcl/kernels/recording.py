"""CUDA graphs: work that is recorded once and replayed, one launch in place of a hundred.

`CudaGraphStep` records a whole training step. `replay` records a small function of one tensor:
NT-Xent of a few thousand rows takes a GPU a quarter of a millisecond and Python eight times that to
launch. A training step makes one eager call fewer than `replay` allows, so that a loss inside a
recorded step is never recorded by itself.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ROWS = (
    16_384  # above, launches hide behind the arithmetic, and the recording would hold much memory
)
EAGER_STEPS = 3  # real steps that let libraries allocate and kernels compile before the recording
EAGER_CALLS = EAGER_STEPS + 1
KEPT = 2  # recordings; each holds its input, its results and the loss's block of weights

Function = Callable[..., tuple[Tensor, Tensor]]


class _Recording:
    """One shape of one function, on one stream: two streams would write the same buffers.

    It is recorded on a stream of its own: what a library keeps for a stream goes with the first
    recording on it that is given up.
    """

    def __init__(self, stream: Any, function: Function, h: Tensor, *args: Any) -> None:
        self.stream = stream
        self._input = torch.empty_like(h)
        self._graph = torch.cuda.CUDAGraph()
        # Libraries set themselves up on a thread's first call, and the backward calls before this
        # one ran on another thread: a set-up inside the recording would spoil it.
        function(h, *args)
        # Other threads go on allocating: the next minibatch is prepared in one.
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self._results = function(self._input, *args)

    def __call__(self, h: Tensor) -> tuple[Tensor, Tensor]:
        self._input.copy_(h)
        self._graph.replay()
        return self._results[0].clone(), self._results[1].clone()


_calls: dict[Any, int] = {}
_recordings: OrderedDict[Any, _Recording] = OrderedDict()
_spare_streams: dict[torch.device, list[Any]] = {}
_lock = threading.Lock()


def replay(function: Function, h: Tensor, *args: Any) -> tuple[Tensor, Tensor] | None:
    """Returns what ``function(h, *args)`` gives, replayed; None where it is to be called as usual.

    Args:
        function: computes two tensors from `h` on its device without waiting for the host.
        h: a CUDA tensor; large ones are not recorded.
        args: hashable; part of what is recorded.
    """
    if len(h) > ROWS or not h.is_cuda:
        return None
    stream = torch.cuda.current_stream(h.device)
    key = (function, h.shape, h.dtype, h.device, stream.cuda_stream, args)
    if torch.cuda.is_current_stream_capturing():
        _calls.pop(key, None)  # a training step that is recorded whole
        return None
    with _lock:
        recording = _recordings.get(key)
        if recording is None:
            _calls[key] = _calls.get(key, 0) + 1
            if _calls[key] <= EAGER_CALLS:
                return None
            spare = _spare_streams.setdefault(h.device, [])
            to_record = spare.pop() if spare else torch.cuda.Stream(h.device)  # type: ignore[no-untyped-call]
            recording = _Recording(to_record, function, h, *args)
            _recordings[key] = recording
            _calls.clear()
            while len(_recordings) > KEPT:
                (_, _, _, device, *_), given_up = _recordings.popitem(last=False)
                _spare_streams[device].append(given_up.stream)
        _recordings.move_to_end(key)
        return recording(h)


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
