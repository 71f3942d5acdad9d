"""Goes on training a model from its weights, on a graph that has grown since."""

import copy
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from graphcl.errors import require
from graphcl.estimator.calibration import calibrate
from graphcl.estimator.fitted import Fitted
from graphcl.estimator.health import check_health
from graphcl.graphs.graph import Graph
from graphcl.seeding import derive
from graphcl.training import EpochMetrics, train
from graphcl.training.progress import progress

SHARE = 10  # without a number of epochs, one for so many of the training


def retrain(
    fitted: Fitted,
    graph: Graph,
    *,
    epochs: int | None = None,
    device: torch.device,
    verbose: bool = False,
    ignore_memory: bool = False,
) -> Fitted:
    """Returns the model after some more epochs; `fitted` itself is left as it is.

    The scaling of features is the training's: weights go on meaning what they meant. Adam starts
    anew. Labels are not looked at. The result has no alignment.

    Args:
        fitted: what the training left.
        graph: the graph as it is now.
        epochs: how many; None is a tenth of the training's, at least one.
        device: where to train.
        verbose: show progress on stderr.
        ignore_memory: start even where the estimate says that memory will not suffice.

    Raises:
        TrainingError: it would not fit in memory, or the loss is no longer finite.
    """
    parts, scaling, history = fitted.parts, fitted.scaling, list(fitted.history)
    require(epochs is None or epochs >= 1, "retrain", "epochs", "at least 1", epochs)
    options: Any = {"device": device, "scaling": scaling, "ignore_memory": ignore_memory}
    source, modes = parts.batches([graph], **options)
    count = epochs or max(1, parts.epochs(source.steps_per_epoch) // SHARE)
    encoder = copy.deepcopy(fitted.encoder).to(device)
    done = history[-1].epoch if history else 0
    seed = derive(fitted.seed, "retrain", done)  # other batches and views than before
    before, began = fitted.seconds, time.perf_counter()
    if verbose:
        print(f"mode {modes[0].name}: {modes[0].reason}", file=sys.stderr, flush=True)
    with progress(count) if verbose else nullcontext(lambda _: None) as show:

        def record(metrics: EpochMetrics) -> None:
            seconds = before + time.perf_counter() - began
            history.append(replace(metrics, epoch=done + metrics.epoch, seconds=seconds))
            show(metrics)

        train(
            encoder,
            source,
            perturbation=parts.perturbation,
            loss=parts.loss,
            epochs=count,
            learning_rate=parts.recipe.learning_rate,
            weight_decay=parts.recipe.weight_decay,
            seed=seed,
            on_epoch=record,
        )
    calibrate(parts, encoder, [graph], device=device, scaling=scaling, seed=fitted.seed)
    health = check_health(parts, encoder, source, graph, history, scaling=scaling, seed=fitted.seed)
    return replace(
        fitted,
        encoder=encoder,
        history=history,
        seconds=history[-1].seconds,
        mode=modes[0],
        health=health,
        alignment=None,
    )
