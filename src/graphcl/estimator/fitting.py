"""A training as the estimator runs it: shown, checkpointed, and kept as far as it has come."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from graphcl.errors import GraphCLError, RunError
from graphcl.estimator.fitted import Fitted
from graphcl.training import Checkpoints, EpochMetrics, train
from graphcl.training.checkpoints import Saved
from graphcl.training.loop import TrainingState
from graphcl.training.progress import progress


def run_training(
    model: Any,
    fitted: Fitted,
    source: Any,
    *,
    perturbation: Any,
    epochs: int,
    saved: Saved | None,
    checkpoints: Checkpoints | None,
    speaks: bool,
    on_epoch: Callable[[EpochMetrics], object],
) -> None:
    """Trains the encoder of `fitted`, which becomes the model's when the first step begins.

    Interrupted, the model keeps the weights it has reached; where training fails, it stays as it
    was.

    Args:
        model: the estimator.
        fitted: what the training leaves, its encoder on the device that trains.
        source: yields the batches.
        perturbation: what the views are drawn from.
        epochs: how many.
        saved: the checkpoint to go on from, or None.
        checkpoints: where to save, or None.
        speaks: show progress on stderr.
        on_epoch: called after each epoch.
    """
    began = time.perf_counter() - (saved.about["seconds"] if saved else 0.0)
    shown = progress(epochs) if speaks else nullcontext(lambda _: None)
    before, recipe = model._fitted, fitted.parts.recipe
    with shown as show:

        def begin(state: TrainingState) -> None:
            if saved:
                saved.restore(state)
            fitted.history, fitted.seconds = list(state.history), state.seconds
            model._fitted = fitted  # from here on an interrupt leaves the weights reached

        def record(metrics: EpochMetrics) -> None:
            fitted.history.append(metrics)
            fitted.seconds = time.perf_counter() - began
            show(metrics)
            on_epoch(metrics)

        try:
            train(
                fitted.encoder,
                source,
                perturbation=perturbation,
                loss=fitted.parts.loss,
                epochs=epochs,
                learning_rate=recipe.learning_rate,
                weight_decay=recipe.weight_decay,
                seed=fitted.seed,
                restore=begin,
                on_step=checkpoints or (lambda _: None),
                on_epoch=record,
            )
        except (GraphCLError, torch.OutOfMemoryError) as error:
            if not isinstance(error, RunError):  # a full disk spoils no weights
                model._fitted = before
            raise
