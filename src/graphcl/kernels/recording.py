"""A small function of one tensor, recorded in a CUDA graph and replayed: one launch for fifty.

NT-Xent of a few thousand rows takes a GPU a quarter of a millisecond and Python eight times that
to launch. After `EAGER_CALLS` calls of one shape all of it, forward and backward, is recorded; a
later call copies its input in, replays, and copies the results out.
"""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any

import torch
from torch import Tensor

ROWS = (
    16_384  # above, launches hide behind the arithmetic, and the recording would hold much memory
)
EAGER_CALLS = 4  # one more than a training step makes before it is recorded itself
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
_lock = Lock()


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
