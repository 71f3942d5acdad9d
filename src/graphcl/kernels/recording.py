"""CUDA graphs: work that is recorded once and replayed with one launch instead of a hundred.

`CudaGraphStep` records a whole training step. `replay` records a small function of a few tensors:
NT-Xent of a few thousand rows takes a GPU a quarter of a millisecond, and Python eight times as
long to launch. A training step is recorded one call earlier than `replay` would record its loss,
so a loss inside a recorded step is never recorded separately.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

# Above, the arithmetic hides the launches, and a recording would hold much memory.
ROWS = 16_384
EAGER_STEPS = 3  # real steps that let libraries allocate and kernels compile before the recording
EAGER_CALLS = EAGER_STEPS + 1
MOST = 32  # recordings of a step, for batches of so many shapes
KEPT = 2  # recordings of functions; each holds its input, its results and a block of pair weights

# A recording begins by waiting for the device, which another thread's recording does not survive.
_ONE_AT_A_TIME = threading.Lock()

Tensors = tuple[Tensor, ...]
Function = Callable[..., Tensors]


class _Recording:
    """A recording of one function for one shape and one calling stream.

    It is not shared between streams, which would write to the same buffers at once. It is recorded
    on a stream that no other recording uses: when a recording is dropped, so are the buffers that
    libraries keep for its stream.
    """

    def __init__(self, stream: Any, function: Function, inputs: Tensors, *args: Any) -> None:
        self.stream = stream
        self._inputs = tuple(torch.empty_like(h) for h in inputs)
        self._graph = torch.cuda.CUDAGraph()
        # Libraries initialise on a thread's first call, which must not happen inside the recording.
        # The eager backward passes do not count, because they ran on another thread.
        function(inputs, *args)
        # Other threads may allocate meanwhile: one of them prepares the next minibatch.
        with (
            _ONE_AT_A_TIME,
            torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"),
        ):
            self._results = function(self._inputs, *args)

    def __call__(self, inputs: Tensors) -> Tensors:
        for mine, h in zip(self._inputs, inputs, strict=True):
            mine.copy_(h)
        self._graph.replay()
        return tuple(result.clone() for result in self._results)


_calls: dict[Any, int] = {}
_recordings: OrderedDict[Any, _Recording] = OrderedDict()
_spare_streams: dict[torch.device, list[Any]] = {}
_lock = threading.Lock()


def replay(function: Function, inputs: Tensors, *args: Any) -> Tensors | None:
    """Returns ``function(inputs, *args)`` from a recording; None if the caller must call it itself.

    The first calls return None; then the function is recorded, and replayed from there on.

    Args:
        function: computes tensors from `inputs` on their device without waiting for the host.
        inputs: CUDA tensors of one shape; large ones are not recorded.
        args: hashable; each value has its own recording.
    """
    h = inputs[0]
    if len(inputs) * len(h) > ROWS or not h.is_cuda:
        return None
    stream = torch.cuda.current_stream(h.device)
    key = (function, h.shape, h.dtype, h.device, stream.cuda_stream, args)
    if torch.cuda.is_current_stream_capturing():
        _calls.pop(key, None)  # a whole training step is being recorded
        return None
    with _lock:
        recording = _recordings.get(key)
        if recording is None:
            _calls[key] = _calls.get(key, 0) + 1
            if _calls[key] <= EAGER_CALLS:
                return None
            spare = _spare_streams.setdefault(h.device, [])
            to_record = spare.pop() if spare else torch.cuda.Stream(h.device)  # type: ignore[no-untyped-call]
            recording = _Recording(to_record, function, inputs, *args)
            _recordings[key] = recording
            _calls.clear()
            while len(_recordings) > KEPT:
                (_, _, _, device, *_), dropped = _recordings.popitem(last=False)
                _spare_streams[device].append(dropped.stream)
        _recordings.move_to_end(key)
        return recording(inputs)


_own = threading.local()


def _stream(device: torch.device) -> Any:
    """Returns the stream on which this thread records.

    All trainings share it, because libraries keep tens of megabytes for each stream they have seen,
    and because recordings can only share a memory pool on one stream.
    """
    streams = _own.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return streams[device]


class CudaGraphStep:
    """Calls `step` eagerly a few times, then records it in a CUDA graph and replays the graph.

    On small graphs the time of a step is that of its launches, not of its arithmetic. Batches with
    the same `key` must be the same tensors every time, filled anew, and there is a recording for
    each key. The recorded step must only draw from `generator` and by seeds on the device, and
    never wait for the device. Seed the generator before each call: a replay makes the draws of an
    eager call. The recordings share their memory, because one is replayed at a time.

    Args:
        step: does one training step on a batch and returns a tensor.
        generator: the CUDA generator that `step` draws from.
    """

    def __init__(self, step: Callable[[Any], Tensor], generator: torch.Generator) -> None:
        self._step, self._generator = step, generator
        self._stream, self._pool = _stream(generator.device), torch.cuda.graph_pool_handle()
        self._recorded: dict[Hashable, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._calls: Counter[Hashable] = Counter()

    def __call__(self, batch: Any, key: Hashable = None) -> Tensor:
        """Does one step and returns its result."""
        self._calls[key] += 1
        full = key not in self._recorded and len(self._recorded) == MOST
        if self._calls[key] <= EAGER_STEPS or full:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                result = self._step(batch)
            torch.cuda.current_stream().wait_stream(self._stream)
            return result
        if key not in self._recorded:
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self._generator)
            # Other threads of the process may train meanwhile.
            with (
                _ONE_AT_A_TIME,
                torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ),
            ):
                result = self._step(batch)
            self._recorded[key] = graph, result  # at last: a failed recording is made again
        graph, result = self._recorded[key]
        graph.replay()
        return result.clone()

    def close(self) -> None:
        """Frees the recordings' memory, which a cycle of references would hold for long."""
        for graph, _ in self._recorded.values():
            graph.reset()
        self._recorded.clear()
