"""Progress of counted work on stderr: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from graphcl.training.progress import LINE_EVERY_SECONDS, duration

if TYPE_CHECKING:
    from graphcl.trials.runner import Progress as RunProgress


@contextmanager
def count_progress(label: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a callback for ``(done, total)``, which may serve several counts one after another.

    Args:
        label: the work being done: ``probe``.
        unit: what is counted, in the singular: ``step``.
    """
    if not sys.stderr.isatty():
        yield _CountLines(label, unit)
        return
    from rich.progress import TextColumn, TimeRemainingColumn

    columns = (TextColumn("ETA"), TimeRemainingColumn())
    with _bar(label, *columns, visible=False) as update:  # hidden until there is a total
        yield lambda done, total: update(completed=done, total=total, visible=True)


@contextmanager
def run_progress(label: str) -> "Iterator[Callable[[RunProgress], None]]":
    """Yields an `on_progress` callback for `graphcl.trials.runner.execute`."""
    if not sys.stderr.isatty():
        yield _RunLines(label)
        return
    from rich.progress import TextColumn

    with _bar(label, TextColumn("{task.fields[status]}"), visible=True) as update:
        yield lambda run: update(completed=run.done, total=run.total, status=_status(run))


@contextmanager
def _bar(label: str, *columns: Any, visible: bool) -> Iterator[Callable[..., None]]:
    """Yields the function that updates a bar; `columns` follow the label, the bar and the count."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), *columns)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield partial(bar.update, bar.add_task(label, total=None, visible=visible, status=""))


class _CountLines:
    """Prints a line every few seconds, and none if all is done before the first is due."""

    def __init__(self, label: str, unit: str) -> None:
        self._label, self._unit = label, unit
        self._began = self._last = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.perf_counter()
        if done == 1:  # a new count begins
            self._began = self._last = now
        if now - self._last < LINE_EVERY_SECONDS:
            return
        self._last = now
        rate = (done - 1) / (now - self._began)
        text = f"{self._label}: {self._unit} {done}/{total}  {rate:.2f} {self._unit}s/s"
        print(f"{text}  ETA {duration((total - done) / rate)}", file=sys.stderr, flush=True)


class _RunLines:
    """Prints a line for the first and the last run, and every few seconds in between."""

    def __init__(self, label: str) -> None:
        self._label, self._last = label, -LINE_EVERY_SECONDS

    def __call__(self, run: "RunProgress") -> None:
        if run.done < run.total and run.elapsed - self._last < LINE_EVERY_SECONDS:
            return
        self._last = run.elapsed
        count = f"run {run.done}/{run.total}"
        print(f"{self._label}: {count}  {_status(run)}", file=sys.stderr, flush=True)


def _status(run: "RunProgress") -> str:
    failed = f"  {run.failed} failed" if run.failed else ""
    rate = f"{60 * run.done / run.elapsed:.1f} runs/min"
    return f"{run.label}{failed}  {rate}  ETA {duration(run.remaining)}"
