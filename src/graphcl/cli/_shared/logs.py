"""`--log`: training curves for another program to show, live and then inside the run."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphcl.errors import require
from graphcl.runs.files import CURVES

if TYPE_CHECKING:
    from graphcl.training import EpochMetrics

LogOption = Annotated[
    str | None, typer.Option("--log", help="tensorboard: curves in RUN/tensorboard.")
]


@contextmanager
def epoch_log(kind: str | None, unfinished: Path) -> "Iterator[Callable[[EpochMetrics], None]]":
    """Yields an `on_epoch` that logs as `kind` asks; None does nothing.

    A run appears whole when training ends, but curves are watched before: until then they lie
    beside the checkpoints, and a training that is resumed adds to them.
    """
    require(kind in (None, "tensorboard"), "train", "--log", "tensorboard", kind)
    if kind is None:
        yield lambda _: None
        return
    from graphcl.training.progress import TensorBoardLog

    folder = unfinished / CURVES
    with TensorBoardLog(folder) as log:
        print(f"watch it with: tensorboard --logdir {folder}", file=sys.stderr, flush=True)
        yield log
