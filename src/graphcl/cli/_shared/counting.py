"""How far something is that counts: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from graphcl.training.progress import LINE_EVERY_SECONDS, duration

Show = Callable[[int, int], None]  # done, in all


@contextmanager
def count_progress(label: str, unit: str) -> Iterator[Show]:
    """Yields a callback for stderr; it may serve several counts one after the other.

    Args:
        label: what is under way: ``probe``.
        unit: what is counted, in the singular: ``step``.
    """
    if not sys.stderr.isatty():
        yield _Lines(label, unit)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TextColumn("ETA"))
    with Progress(*columns, Remaining(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None, visible=False)
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


class _Lines:
    """A line every few seconds; none where the whole is done before."""

    def __init__(self, label: str, unit: str) -> None:
        self._label, self._unit = label, unit
        self._began = self._last = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.perf_counter()
        if done == 1:
            self._began = self._last = now
        if now - self._last < LINE_EVERY_SECONDS:
            return
        self._last = now
        rate = (done - 1) / (now - self._began)
        text = f"{self._label}: {self._unit} {done}/{total}  {rate:.2f} {self._unit}s/s"
        print(f"{text}  ETA {duration((total - done) / rate)}", file=sys.stderr, flush=True)
