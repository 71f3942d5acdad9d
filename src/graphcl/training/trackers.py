"""Where the epochs of a training are logged: TensorBoard, MLflow, Weights & Biases, a CSV file.

Each tracker is an `on_epoch` of `GraphCL.fit`, and a context. A tracker that speaks to a service
must not end a training: if it fails, this is said once, and it is left alone from then on.
"""

import csv
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from graphcl.errors import import_extra, option, require
from graphcl.training.loop import EpochMetrics
from graphcl.training.progress import TensorBoardLog

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
        "tensorboard": lambda: TensorBoardLog(curves),
        "csv": lambda: CsvLog(file),
        "mlflow": lambda: MlflowLog(title, settings),
        "wandb": lambda: WandbLog(title, settings),
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


class CsvLog:
    """Writes a line per epoch; a training that is resumed goes on after the epoch it has reached.

    Args:
        file: the file; made where it is not there.
    """

    def __init__(self, file: str | Path) -> None:
        self._file = Path(file)
        self._columns = list(EpochMetrics.__dataclass_fields__)
        self._begun = False

    def __call__(self, metrics: EpochMetrics) -> None:
        """Writes one epoch; the first also removes later ones, which an earlier training left."""
        values = asdict(metrics)
        self._columns = list(values)
        line = ["" if values[key] is None else values[key] for key in self._columns]
        kept = [] if self._begun else self._before(metrics.epoch)
        with self._file.open("a" if self._begun else "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([*kept, line])
        self._begun = True

    def _before(self, epoch: int) -> list[list[str]]:
        """Returns the head and the lines of epochs before this one."""
        if not self._file.exists():
            return [self._columns]
        with self._file.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row and row[0].isdecimal()]
        return [self._columns, *(row for row in rows if int(row[0]) < epoch)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open between epochs."""


class _Service:
    """A tracker that speaks to a service."""

    name = ""

    def __init__(self) -> None:
        self._failed = False

    def _begin(self) -> None:
        raise NotImplementedError

    def _log(self, metrics: EpochMetrics) -> None:
        raise NotImplementedError

    def _end(self, *, well: bool) -> None:
        raise NotImplementedError

    def _try(self, work: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            work()
        except Exception as error:  # whatever a service's client raises
            self._failed = True
            what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            print(f"train: {self.name} failed and is left out: {what}", file=sys.stderr, flush=True)

    def __call__(self, metrics: EpochMetrics) -> None:
        """Logs one epoch."""
        self._try(lambda: self._log(metrics))

    def __enter__(self) -> Self:
        self._try(self._begin)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._try(lambda: self._end(well=kind is None))


class MlflowLog(_Service):
    """Logs to MLflow, where and how its own environment variables say.

    Args:
        title: the run's name there.
        settings: become parameters.

    Raises:
        MissingExtraError: MLflow is not installed.
    """

    name = "mlflow"

    def __init__(self, title: str, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._mlflow: Any = import_extra("mlflow", feature="an MLflow log", extra="mlflow")
        self._title, self._settings = title, dict(settings)

    def _begin(self) -> None:
        self._mlflow.start_run(run_name=self._title)
        self._mlflow.log_params(self._settings)

    def _log(self, metrics: EpochMetrics) -> None:
        self._mlflow.log_metrics(numbers(metrics), step=metrics.epoch)

    def _end(self, *, well: bool) -> None:
        self._mlflow.end_run("FINISHED" if well else "FAILED")


class WandbLog(_Service):
    """Logs to Weights & Biases, where and how its own environment variables say.

    Args:
        title: the run's name there.
        settings: become its configuration.

    Raises:
        MissingExtraError: wandb is not installed.
    """

    name = "wandb"

    def __init__(self, title: str, settings: Mapping[str, Any]) -> None:
        super().__init__()
        feature = "a log of Weights & Biases"
        self._wandb: Any = import_extra("wandb", feature=feature, extra="wandb")
        self._run: Any = None
        self._title, self._settings = title, dict(settings)

    def _begin(self) -> None:
        self._run = self._wandb.init(name=self._title, config=self._settings)

    def _log(self, metrics: EpochMetrics) -> None:
        self._run.log(numbers(metrics), step=metrics.epoch)

    def _end(self, *, well: bool) -> None:
        self._run.finish(exit_code=0 if well else 1)
