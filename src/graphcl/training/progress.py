"""What a training reports on stderr as it goes.

Everything here is an `on_step` or `on_epoch` of the loop, or an `on_rows` of inference. On a
terminal and in a notebook progress is a bar with rate and ETA, elsewhere it is plain lines.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_stack
from typing import TextIO

from graphcl.errors import duration
from graphcl.settings import LINE_EVERY_SECONDS
from graphcl.training.loop import EpochMetrics, PartedMetrics, TrainingState

BAR_EVERY_SECONDS = 0.2


class TrainingProgress:
    """Shows a training now and then: at the first step, every so many seconds, and at the end.

    Args:
        show: called with the state and what there is to say of it.
        every_seconds: at least, between two calls. Reading a loss makes a GPU wait for the host.
    """

    def __init__(self, show: Callable[[TrainingState, str], object], every_seconds: float) -> None:
        self._show, self._every = show, every_seconds
        self._last = -every_seconds
        self._state: TrainingState | None = None

    def step(self, state: TrainingState) -> None:
        """Reports a step within an epoch; the last step of one is reported with its metrics."""
        self._state = state
        if state.step and state.left and state.seconds - self._last >= self._every:
            self._say(state, f"loss {float(state.results[-1][0]):.4f}")

    def __call__(self, metrics: EpochMetrics) -> None:
        """Reports an epoch."""
        state = self._state
        assert state is not None
        if state.done < state.total and state.seconds - self._last < self._every:
            return
        more = ""
        if isinstance(metrics, PartedMetrics):
            more = f"  {traffic(metrics.sent_bytes, metrics.cache_hits)}"
        self._say(state, f"loss {metrics.loss:.4f}", more)

    def _say(self, state: TrainingState, loss: str, more: str = "") -> None:
        self._last = state.seconds
        self._show(state, f"{_place(state)}  {loss}  {_pace(state)}{more}")


def _place(state: TrainingState) -> str:
    if not state.step:
        return f"epoch {state.epoch}/{state.epochs}"
    each = state.step + state.left
    return f"epoch {state.epoch + 1}/{state.epochs}, step {state.step}/{each}"


def _pace(state: TrainingState) -> str:
    """Returns the rate and the time that is left, or that it took; nothing that is not known."""
    if state.done == state.total:
        return f"took {duration(state.seconds)}"
    if state.seconds <= 0:
        return "ETA unknown"
    rate = state.done / state.seconds
    speed = f"{rate:,.2f} steps/s" if rate >= 1 else f"{1 / rate:,.1f} s/step"
    return f"{speed}  ETA {duration((state.total - state.done) / rate)}"


def traffic(sent_bytes: float, cache_hits: float | None) -> str:
    """Returns what travels between processes, in words."""
    hits = "" if cache_hits is None else f", {cache_hits:.0%} of rows in the cache"
    return f"{sent_bytes / 1e6:.2f} MB sent a step{hits}"


class RowProgress:
    """An `on_rows` for inference that takes a while: a line every few seconds."""

    def __init__(self, stream: TextIO | None = None, label: str = "embed") -> None:
        self._stream, self._label = stream, label
        self._began = self._last = time.perf_counter()

    def __call__(self, done: int, total: int) -> None:
        """Reports how many rows of all layers are done."""
        now = time.perf_counter()
        if now - self._last < LINE_EVERY_SECONDS:
            return
        self._last = now
        rate = done / (now - self._began)
        print(
            f"{self._label}: {done / total:.0%} of {total:,} rows of all layers  "
            f"{rate:,.0f} rows/s  ETA {duration((total - done) / rate)}",
            file=self._stream or sys.stderr,
            flush=True,
        )


def somebody_watches() -> bool:
    """Returns whether stderr is a terminal's or a notebook's, and scikit-learn did not call."""
    callers = (frame.f_globals.get("__name__", "") for frame, _ in walk_stack(None))
    watched = sys.stderr.isatty() or _in_notebook(sys.stderr)
    return watched and not any(name.startswith("sklearn.") for name in callers)


def _in_notebook(stream: TextIO) -> bool:
    return type(stream).__module__.startswith("ipykernel.")


@contextmanager
def progress(
    *, label: str = "train", stream: TextIO | None = None, speaks: bool = True
) -> Iterator[TrainingProgress]:
    """Yields what suits the stream (stderr by default): its `step` is an `on_step` of the loop.

    Itself it is an `on_epoch`. Only one that `speaks` shows anything.
    """
    stream = stream if stream is not None else sys.stderr
    if not speaks:
        yield TrainingProgress(lambda *_: None, float("inf"))
        return
    if _in_notebook(stream):

        def rewrite(state: TrainingState, text: str) -> None:
            bar = "━" * (20 * state.done // state.total)
            line = f"{label} {bar:<20} {state.done}/{state.total} {text}"
            print(f"\r{line:<100}", end="", file=stream, flush=True)

        yield TrainingProgress(rewrite, BAR_EVERY_SECONDS)
        print(file=stream, flush=True)
        return
    if not stream.isatty():
        yield TrainingProgress(
            lambda _, text: print(f"{label}: {text}", file=stream, flush=True), LINE_EVERY_SECONDS
        )
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task(label, total=None, text="")

        def update(state: TrainingState, text: str) -> None:
            bar.update(task, total=state.total, completed=state.done, text=text)

        yield TrainingProgress(update, BAR_EVERY_SECONDS)
