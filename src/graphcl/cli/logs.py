"""`--log`: training curves for another program to show, live and then inside the run."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphcl.errors import GraphCLError, require

if TYPE_CHECKING:
    from graphcl.training import EpochMetrics

LogOption = Annotated[
    str | None, typer.Option("--log", help="tensorboard: curves in RUN/tensorboard.")
]


@contextmanager
def epoch_log(kind: str | None, out: Path) -> "Iterator[Callable[[EpochMetrics], None]]":
    """Yields an `on_epoch` that logs as `kind` asks; None does nothing.

    A run appears whole when training ends, but curves are watched before: until then they lie in
    a hidden folder beside it, which `keep_log` moves into the run and a failure removes.
    """
    require(kind in (None, "tensorboard"), "train", "--log", "tensorboard", kind)
    if kind is None:
        yield lambda _: None
        return
    from graphcl.training.tensorboard import TensorBoardLog

    folder = _folder(out)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with TensorBoardLog(folder) as log:
            print(f"watch it with: tensorboard --logdir {folder}", file=sys.stderr, flush=True)
            yield log
    except (GraphCLError, KeyboardInterrupt):
        shutil.rmtree(folder, ignore_errors=True)
        raise


def keep_log(kind: str | None, out: Path, folder: Path) -> None:
    """Moves the log of a training that went well, if one was asked for, into its run's folder."""
    if kind is not None:
        shutil.move(_folder(out), folder / "tensorboard")


def _folder(out: Path) -> Path:
    return out.parent / f".{out.name}.tensorboard"
