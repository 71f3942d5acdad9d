"""Training curves for TensorBoard, through the loop's one seam: an `on_epoch`."""

import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from graphcl.errors import MissingExtraError
from graphcl.training.loop import EpochMetrics


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
