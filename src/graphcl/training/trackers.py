"""Where the epochs of a training are logged: TensorBoard, MLflow, Weights & Biases, a CSV file.

Each tracker is a context that yields an `on_epoch` of `GraphCL.fit`. A tracker that speaks to a
service must not end a training: if it fails, this is said once, and it is left alone from then on.
"""

import csv
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from graphcl.errors import import_extra, option, require
from graphcl.training.loop import EpochMetrics

TRACKERS = ("tensorboard", "mlflow", "wandb", "csv")
OnEpoch = Callable[[EpochMetrics], object]


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
    of_log = {"feature": "a TensorBoard log", "extra": "tensorboard"}
    tensorboard = import_extra("torch.utils.tensorboard", **of_log)
    began = time.time()
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
