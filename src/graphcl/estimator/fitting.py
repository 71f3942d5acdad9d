"""A training as the estimator runs it: shown, checkpointed, and kept as far as it has come."""

import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graphcl.distributed import current_share
from graphcl.errors import GraphCLError, RunError, TrainingWarning
from graphcl.estimator.calibration import Sample, calibrate
from graphcl.estimator.fitted import Fitted
from graphcl.estimator.health import check_health
from graphcl.training import Checkpoints, EpochMetrics, train
from graphcl.training.checkpoints import Saved
from graphcl.training.loop import TrainingState
from graphcl.training.progress import progress


@dataclass(frozen=True)
class Task:
    """A training that is ready to begin, on a graph of any kind.

    Attributes:
        fitted: what the training leaves, its encoder on the device that trains.
        source: yields the batches.
        trained: what a checkpoint must be of.
        sample: returns embeddings of some nodes by type, once trained; see `calibrate`.
        perturbation: what the views are drawn from.
        said: lines for the user.
        modes: how each graph is trained; empty means as `fitted` says.
        measured: yields batches that are looked at in the end; None: `source`.
        rank_of_features: see `check_health`.
    """

    fitted: Fitted
    source: Any
    trained: dict[str, Any]
    sample: Callable[[], Sample]
    perturbation: Any
    said: Sequence[str] = ()
    modes: Sequence[str] = ()
    measured: Any = None
    rank_of_features: Callable[[], float] = lambda: math.inf


def fit(
    model: Any,
    task: Task,
    *,
    saved: Saved | None,
    checkpoints: Checkpoints | None,
    on_epoch: Callable[[EpochMetrics], object],
) -> None:
    """Trains, brings the parts of embeddings to one size, and looks at how it went.

    Args:
        model: the estimator.
        task: what is trained.
        saved: the checkpoint to go on from, or None.
        checkpoints: where to save, or None.
        on_epoch: called after each epoch.
    """
    fitted, first = task.fitted, current_share().first
    mode, speaks = fitted.mode, model.verbose and first
    assert mode is not None
    if checkpoints:
        checkpoints.begin(task.trained | {"modes": list(task.modes) or [mode.name]}, saved)
    if speaks:
        lines = [f"mode {mode.name}: {mode.reason}", *task.said]
        print("\n".join(lines), file=sys.stderr, flush=True)
    _train(model, task, saved=saved, checkpoints=checkpoints, speaks=speaks, on_epoch=on_epoch)
    calibrate(fitted.encoder, task.sample)
    fitted.health = check_health(
        fitted.parts,
        fitted.encoder,
        task.source if task.measured is None else task.measured,
        fitted.history,
        seed=fitted.seed,
        rank_of_features=task.rank_of_features,
    )
    for sign in fitted.health.warnings if first else ():
        warnings.warn(f"GraphCL: {sign}", TrainingWarning, stacklevel=3)


def _train(
    model: Any,
    task: Task,
    *,
    saved: Saved | None,
    checkpoints: Checkpoints | None,
    speaks: bool,
    on_epoch: Callable[[EpochMetrics], object],
) -> None:
    """Trains the encoder, which becomes the model's when the first step begins.

    Interrupted, the model keeps the weights it has reached; where training fails, it stays as it
    was.
    """
    fitted = task.fitted
    began = time.perf_counter() - (saved.about["seconds"] if saved else 0.0)
    before, recipe = model._fitted, fitted.parts.recipe
    with progress(speaks=speaks) as show:

        def begin(state: TrainingState) -> None:
            if saved:
                saved.restore(state)
            show.step(state)
            fitted.history, fitted.seconds = list(state.history), state.seconds
            model._fitted = fitted  # from here on an interrupt leaves the weights reached

        def record(metrics: EpochMetrics) -> None:
            fitted.history.append(metrics)
            fitted.seconds = time.perf_counter() - began
            show(metrics)
            on_epoch(metrics)

        def after_step(state: TrainingState) -> None:
            show.step(state)
            if checkpoints:
                checkpoints(state)

        try:
            train(
                fitted.encoder,
                task.source,
                perturbation=task.perturbation,
                loss=fitted.parts.loss,
                epochs=recipe.epochs,
                steps=recipe.steps,
                learning_rate=recipe.learning_rate,
                weight_decay=recipe.weight_decay,
                seed=fitted.seed,
                restore=begin,
                on_step=after_step,
                on_epoch=record,
            )
        except (GraphCLError, torch.OutOfMemoryError) as error:
            if not isinstance(error, RunError):  # a full disk spoils no weights
                model._fitted = before
            raise
