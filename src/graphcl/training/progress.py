"""What a training reports as it goes: progress on stderr, and curves for TensorBoard.

Everything here is an `on_epoch` of the loop, or an `on_rows` of inference. On a terminal progress
is a bar with rate and ETA, elsewhere it is plain lines.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from graphcl.errors import MissingExtraError
from graphcl.training.loop import EpochMetrics, PartedMetrics

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
        line = (
            f"{self._label}: epoch {metrics.epoch}/{self._epochs}  {_status(metrics, self._epochs)}"
        )
        print(line, file=self._stream, flush=True)


class BarProgress:
    """A live bar."""

    def __init__(self, epochs: int, stream: TextIO, label: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        texts = (TextColumn("{task.description}"), TextColumn("{task.fields[status]}"))
        columns = (texts[0], BarColumn(), MofNCompleteColumn(), texts[1])
        self._bar = Progress(*columns, console=Console(file=stream), transient=True)
        self._epochs = epochs
        self._task = self._bar.add_task(label, total=epochs, status="")
        self._bar.start()

    def __call__(self, metrics: EpochMetrics) -> None:
        """Reports an epoch."""
        status = _status(metrics, self._epochs)
        self._bar.update(self._task, completed=metrics.epoch, status=status)

    def close(self) -> None:
        """Takes the bar off the screen."""
        self._bar.stop()


def _status(metrics: EpochMetrics, epochs: int) -> str:
    rate = metrics.epoch / metrics.seconds
    remaining = duration((epochs - metrics.epoch) / rate)
    status = f"loss {metrics.loss:.4f}  {rate:.2f} epochs/s  ETA {remaining}"
    return f"{status}  {traffic(metrics)}" if isinstance(metrics, PartedMetrics) else status


def traffic(metrics: PartedMetrics) -> str:
    """Returns what travels between processes, in words."""
    hits = "" if metrics.cache_hits is None else f", {metrics.cache_hits:.0%} of rows in the cache"
    return f"{metrics.sent_bytes / 1e6:.2f} MB sent a step{hits}"


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


class TensorBoardLog:
    """Writes loss, gradient norm and bound of every epoch as TensorBoard's scalars.

    Use it as a context, and hand it to training::

        with TensorBoardLog("logs/first") as log:
            GraphCL().fit(graph, on_epoch=log)

    Args:
        folder: where event files are written; made where it is not there.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError("a TensorBoard log", "tensorboard") from error
        self._writer: Any = SummaryWriter(str(folder), flush_secs=10)
        self._began = time.time()

    def __call__(self, metrics: EpochMetrics) -> None:
        """Writes one epoch."""
        scalars = {"loss": metrics.loss, "gradient_norm": metrics.gradient_norm}
        if metrics.mi_bound is not None:
            scalars["mi_bound"] = metrics.mi_bound
        for name, value in scalars.items():
            when = self._began + metrics.seconds
            self._writer.add_scalar(f"train/{name}", value, metrics.epoch, walltime=when)

    def close(self) -> None:
        """Writes what is still in memory and closes the files."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
