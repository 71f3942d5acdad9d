"""Progress over many runs on stderr: a bar on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from graphcl.training.progress import LINE_EVERY_SECONDS, duration
from graphcl.trials.runner import Progress


@contextmanager
def run_progress(label: str) -> Iterator[Callable[[Progress], None]]:
    """Yields an `on_progress` that suits stderr."""
    if not sys.stderr.isatty():
        yield _Lines(label)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[s]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None, s="")

        def show(progress: Progress) -> None:
            bar.update(task, total=progress.total, completed=progress.done, s=_status(progress))

        yield show


class _Lines:
    """A line at the first and the last run, and every few seconds between."""

    def __init__(self, label: str) -> None:
        self._label, self._last = label, -LINE_EVERY_SECONDS

    def __call__(self, progress: Progress) -> None:
        last = progress.done == progress.total
        if not last and progress.elapsed - self._last < LINE_EVERY_SECONDS:
            return
        self._last = progress.elapsed
        count = f"run {progress.done}/{progress.total}"
        print(f"{self._label}: {count}  {_status(progress)}", file=sys.stderr, flush=True)


def _status(progress: Progress) -> str:
    failed = f"  {progress.failed} failed" if progress.failed else ""
    rate = f"{60 * progress.done / progress.elapsed:.1f} runs/min"
    return f"{progress.label}{failed}  {rate}  ETA {duration(progress.remaining)}"
