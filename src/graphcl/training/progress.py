"""What a training reports as it goes, on stderr and in logs.

Everything here is an `on_step` or `on_epoch` of the loop, or an `on_rows` of inference. On a
terminal and in a notebook progress is a bar with rate and ETA, elsewhere it is plain lines.

Epochs are logged by TensorBoard, MLflow, Weights & Biases, or in a CSV file. Each tracker is a
context that yields an `on_epoch` of `GraphCL.fit`. One that speaks to a service must not end a
training: if it fails, this is said once, and it is left alone from then on.
"""

import csv
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from traceback import walk_stack
from typing import Any, TextIO

from graphcl.errors import duration, import_extra, option, require
from graphcl.settings import LINE_EVERY_SECONDS
from graphcl.training.loop import EpochMetrics, PartedMetrics, TrainingState

BAR_EVERY_SECONDS = 0.2
TRACKERS = ("tensorboard", "mlflow", "wandb", "csv")
OnEpoch = Callable[[EpochMetrics], object]


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


def parse_trackers(text: str | None) -> tuple[str, ...]:
    """Returns the trackers that a text such as ``csv,mlflow`` names; each once.

    Raises:
        ParameterError: one of them is not known.
    """
    if text is None:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        require(name in TRACKERS, "train", option("log"), ", ".join(TRACKERS), name)
    return names


@contextmanager
def tracked(
    names: tuple[str, ...],
    *,
    curves: Path,
    file: Path,
    title: str,
    settings: Mapping[str, Any],
) -> Iterator[OnEpoch]:
    """Yields an `on_epoch` that logs to several trackers.

    Args:
        names: of `TRACKERS`.
        curves: TensorBoard's folder.
        file: the CSV file.
        title: the training's name in a service.
        settings: its recipe and seed.

    Raises:
        MissingExtraError: a tracker's package is not installed.
    """
    makers: dict[str, Callable[[], AbstractContextManager[OnEpoch]]] = {
        "tensorboard": lambda: tensorboard_log(curves),
        "csv": lambda: csv_log(file),
        "mlflow": lambda: _mlflow_log(title, dict(settings)),
        "wandb": lambda: _wandb_log(title, dict(settings)),
    }
    with ExitStack() as stack:
        logs = [stack.enter_context(makers[name]()) for name in names]

        def log(metrics: EpochMetrics) -> None:
            for one in logs:
                one(metrics)

        yield log


def numbers(metrics: EpochMetrics) -> dict[str, float]:
    """Returns the figures of an epoch that are logged, those that it has."""
    found = {key: value for key, value in asdict(metrics).items() if key != "epoch"}
    return {key: value for key, value in found.items() if value is not None}


@contextmanager
def tensorboard_log(folder: Path) -> Iterator[OnEpoch]:
    """Writes the figures of every epoch as TensorBoard's scalars; makes the folder.

    Raises:
        MissingExtraError: TensorBoard is not installed.
    """
    tensorboard = import_extra(
        "torch.utils.tensorboard", feature="a TensorBoard log", extra="tensorboard"
    )
    began = time.time()
    print(f"watch it with: tensorboard --logdir {folder}", file=sys.stderr, flush=True)
    with closing(tensorboard.SummaryWriter(str(folder), flush_secs=10)) as writer:

        def log(metrics: EpochMetrics) -> None:
            for name, value in numbers(metrics).items():
                if name != "seconds":
                    when = began + metrics.seconds
                    writer.add_scalar(f"train/{name}", value, metrics.epoch, walltime=when)

        yield log


@contextmanager
def csv_log(file: Path) -> Iterator[OnEpoch]:
    """Writes a line per epoch; a training that is resumed goes on after the epoch it has reached.

    The first epoch also removes later ones, which an earlier training left.
    """
    begun = False

    def log(metrics: EpochMetrics) -> None:
        nonlocal begun
        values = asdict(metrics)
        kept: list[list[str]] = []
        if file.exists() and not begun:
            with file.open(newline="", encoding="utf-8") as before:
                rows = [row for row in csv.reader(before) if row and row[0].isdecimal()]
            kept = [row for row in rows if int(row[0]) < metrics.epoch]
        with file.open("a" if begun else "w", newline="", encoding="utf-8") as now:
            csv.writer(now).writerows([*([] if begun else [values, *kept]), values.values()])
        begun = True

    yield log


@contextmanager
def _service_log(
    name: str,
    begin: Callable[[], object],
    log: Callable[[EpochMetrics], object],
    end: Callable[[bool], object],
) -> Iterator[OnEpoch]:
    """Calls `begin`, `log` after each epoch, and `end` with whether all went well.

    After the first call that fails, none follows.
    """
    failed = False

    def attempt(work: Callable[..., object], *arguments: object) -> None:
        nonlocal failed
        if failed:
            return
        try:
            work(*arguments)
        except Exception as error:  # whatever a service's client raises
            failed = True
            what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            print(f"train: {name} failed and is left out: {what}", file=sys.stderr, flush=True)

    attempt(begin)
    try:
        yield lambda metrics: attempt(log, metrics)
    except BaseException:
        attempt(end, False)
        raise
    attempt(end, True)


def _mlflow_log(title: str, settings: dict[str, Any]) -> AbstractContextManager[OnEpoch]:
    """Logs to MLflow, where and how its own environment variables say; settings are parameters."""
    mlflow = import_extra("mlflow", feature="an MLflow log", extra="mlflow")

    def begin() -> None:
        mlflow.start_run(run_name=title)
        mlflow.log_params(settings)

    return _service_log(
        "mlflow",
        begin,
        lambda metrics: mlflow.log_metrics(numbers(metrics), step=metrics.epoch),
        lambda well: mlflow.end_run("FINISHED" if well else "FAILED"),
    )


def _wandb_log(title: str, settings: dict[str, Any]) -> AbstractContextManager[OnEpoch]:
    """Logs to Weights & Biases, where and how its own environment variables say."""
    wandb = import_extra("wandb", feature="a log of Weights & Biases", extra="wandb")
    return _service_log(
        "wandb",
        lambda: wandb.init(name=title, config=settings),
        lambda metrics: wandb.log(numbers(metrics), step=metrics.epoch),
        lambda well: wandb.finish(exit_code=0 if well else 1),
    )
