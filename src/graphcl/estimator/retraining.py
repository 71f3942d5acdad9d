"""Goes on training a model from its weights, on a graph that has grown since."""

import copy
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from graphcl.encoders import LayeredEncoder
from graphcl.errors import require
from graphcl.estimator.calibration import calibrate, sample_graphs, sample_types
from graphcl.estimator.fitted import Fitted
from graphcl.estimator.health import check_health, rank_of_features
from graphcl.graphs.graph import Graph
from graphcl.graphs.typed_tensors import Prepared, prepare_like
from graphcl.seeding import derive
from graphcl.training import EpochMetrics, train
from graphcl.training.loop import total_steps
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
    given: Graph | Prepared = graph
    if fitted.schema is not None:
        like = prepare_like(graph, fitted.schema, fitted.typed_scaling)
        given = Prepared(like, fitted.schema, fitted.typed_scaling)
    options: Any = {"device": device, "scaling": scaling, "ignore_memory": ignore_memory}
    source, modes = parts.batches([given], **options)
    recipe, each = parts.recipe, source.steps_per_epoch
    count = epochs or max(1, -(-total_steps(recipe.epochs, recipe.steps, each) // each) // SHARE)
    encoder = copy.deepcopy(fitted.encoder).to(device)
    done = history[-1].epoch if history else 0
    seed = derive(fitted.seed, "retrain", done)  # other batches and views than before
    before, began = fitted.seconds, time.perf_counter()
    if verbose:
        print(f"mode {modes[0].name}: {modes[0].reason}", file=sys.stderr, flush=True)
    with progress(speaks=verbose) as show:

        def record(metrics: EpochMetrics) -> None:
            seconds = before + time.perf_counter() - began
            history.append(replace(metrics, epoch=done + metrics.epoch, seconds=seconds))
            show(metrics)

        train(
            encoder,
            source,
            perturbation=parts.perturbation_of(graph),
            loss=parts.loss,
            epochs=count,
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            seed=seed,
            on_step=show.step,
            on_epoch=record,
        )
    where: Any = {"device": device, "seed": fitted.seed}
    expected: Any = {}
    if isinstance(given, Prepared):
        assert isinstance(encoder, LayeredEncoder)
        sample: Any = partial(sample_types, encoder, given, **where)
    else:
        sample = partial(sample_graphs, parts, encoder, [graph], scaling=scaling, **where)
        expected["rank_of_features"] = partial(rank_of_features, graph, scaling)
    calibrate(encoder, sample)
    health = check_health(parts, encoder, source, history, seed=fitted.seed, **expected)
    return replace(
        fitted,
        encoder=encoder,
        history=history,
        seconds=history[-1].seconds,
        mode=modes[0],
        health=health,
        alignment=None,
    )
