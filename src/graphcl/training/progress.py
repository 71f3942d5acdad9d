"""Progress on stderr: a bar with rate and ETA on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from graphcl.training.loop import EpochMetrics

LINE_EVERY_SECONDS = 5.0


class PlainProgress:
    """A line at the first and the last epoch, and every few seconds between."""

    def __init__(self, epochs: int, stream: TextIO, label: str) -> None:
        self._epochs, self._stream, self._label = epochs, stream, label
        self._last = -LINE_EVERY_SECONDS

    def __call__(self, metrics: EpochMetrics) -> None:
        """Reports an epoch."""
        if metrics.epoch < self._epochs and metrics.seconds - self._last < LINE_EVERY_SECONDS:
            return
        self._last = metrics.seconds
        rate = metrics.epoch / metrics.seconds
        remaining = (self._epochs - metrics.epoch) / rate
        print(
            f"{self._label}: epoch {metrics.epoch}/{self._epochs}  loss {metrics.loss:.4f}  "
            f"{rate:.2f} epochs/s  ETA {duration(remaining)}",
            file=self._stream,
            flush=True,
        )


class BarProgress:
    """A live bar."""

    def __init__(self, epochs: int, stream: TextIO, label: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[status]}"),
            console=Console(file=stream),
            transient=True,
        )
        self._epochs = epochs
        self._task = self._bar.add_task(label, total=epochs, status="")
        self._bar.start()

    def __call__(self, metrics: EpochMetrics) -> None:
        """Reports an epoch."""
        rate = metrics.epoch / metrics.seconds
        remaining = (self._epochs - metrics.epoch) / rate
        status = f"loss {metrics.loss:.4f}  {rate:.2f} epochs/s  ETA {duration(remaining)}"
        self._bar.update(self._task, completed=metrics.epoch, status=status)

    def close(self) -> None:
        """Takes the bar off the screen."""
        self._bar.stop()


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


@contextmanager
def progress(
    epochs: int, *, label: str = "train", stream: TextIO | None = None
) -> Iterator[PlainProgress | BarProgress]:
    """Yields an `on_epoch` callback that suits the stream (stderr by default)."""
    stream = stream if stream is not None else sys.stderr
    if not stream.isatty():
        yield PlainProgress(epochs, stream, label)
        return
    bar = BarProgress(epochs, stream, label)
    try:
        yield bar
    finally:
        bar.close()


def duration(seconds: float) -> str:
    """Returns seconds as ``12 s``, ``3 min 05 s`` or ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
