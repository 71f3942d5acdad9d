"""Trains and scores any system by name, GraphCL included, and returns one row per seed."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from graphcl.devices import peak_memory_bytes, reset_peak_memory
from graphcl.errors import ParameterError, TrainingError, suggestion
from graphcl.estimator import GraphCL
from graphcl.evaluation import (
    linear_probe,
    score_predictions,
)
from graphcl.evaluation.multilabel import STEPS
from graphcl.evaluation.splits import over_splits
from graphcl.recipes import Recipe, load_recipe, recipe_for
from graphcl.research.systems import BASELINES
from graphcl.research.systems.protocol import (
    Baseline,
    Data,
    Method,
    OnEpoch,
    Supervised,
    is_unsupervised,
    silent,
)
from graphcl.research.trials.rows import Json, Row, Trial, number, text

METHODS = ("graphcl", *BASELINES)
SCORES = ("accuracy", "micro_f1", "macro_f1", "roc_auc", "val_accuracy", "val_micro_f1")
BUDGET = ("split", "splits", "nodes", "majority", "steps", "strengths", "optimiser")


@dataclass(frozen=True)
class Trained:
    """A trained system, before any test label is read.

    Attributes:
        trial: the row, without scores.
        embeddings: ``[num_nodes, dim]`` for an unsupervised system, else None.
        predictions: ``[num_nodes]`` or ``[num_nodes, labels]`` for a supervised one, else None.
    """

    trial: Trial
    embeddings: npt.NDArray[np.float32] | None = None
    predictions: npt.NDArray[np.int64] | None = None


def find_baseline(name: str) -> Baseline:
    """Returns a baseline by name; the error for an unknown one lists all and the nearest."""
    if name not in BASELINES:
        known = ", ".join(METHODS)
        raise ParameterError(f"unknown method {name!r}; known: {known}{suggestion(name, METHODS)}")
    return BASELINES[name]


def train_method(
    name: str,
    data: Data,
    dataset: str = "",
    *,
    seed: int = 0,
    device: torch.device,
    settings: Mapping[str, Json] | None = None,
    on_epoch: OnEpoch = silent,
) -> Trained:
    """Trains a system once.

    Args:
        name: one of `METHODS`.
        data: a graph, or a collection; a supervised system needs labels.
        dataset: the dataset whose settings (for GraphCL: recipe) to use; empty for the defaults.
        seed: decides everything random.
        device: where to train.
        settings: fields of the baseline, or keys of GraphCL's recipe, to change.
        on_epoch: called with the epochs done and the total number of epochs.
    """
    changed = dict(settings or {})
    if name == "graphcl":
        recipe = load_recipe(recipe_for(dataset)).with_texts(**changed)
        return _train_graphcl(data, recipe, seed=seed, device=device, on_epoch=on_epoch)
    baseline = find_baseline(name)
    method = baseline.method(dataset, **changed)
    reset_peak_memory(device)
    began = time.perf_counter()
    embeddings = predictions = failed = None
    try:
        if is_unsupervised(method):
            embeddings = method.embed(data, seed=seed, device=device, on_epoch=on_epoch)
        else:
            supervised = cast("Supervised", method)
            predictions = supervised.fit_predict(data, seed=seed, device=device, on_epoch=on_epoch)
    except TrainingError as error:
        failed = str(error)
    trial = Trial(
        method=name,
        title=baseline.title,
        graph=data.name,
        seed=seed,
        settings=field_values(method),
        runs_identical=baseline.deterministic or None,
        failed=failed,
        train_seconds=time.perf_counter() - began,
        peak_memory_bytes=peak_memory_bytes(device),
    )
    return Trained(trial, embeddings, predictions)


def _train_graphcl(
    data: Data, recipe: Recipe, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
) -> Trained:
    reset_peak_memory(device)
    model = GraphCL(recipe, seed=seed, device=str(device))
    embeddings = loss = seconds = failed = None
    try:
        model.fit(data, on_epoch=lambda metrics: on_epoch(metrics.epoch, recipe.epochs))
        z: Any = model.transform(data)
        embeddings = np.concatenate(z) if isinstance(z, list) else z
        loss, seconds = model.history_[-1].loss, model.seconds_
    except TrainingError as error:
        failed = str(error)
    trial = Trial(
        method="graphcl",
        title="GraphCL",
        graph=data.name,
        seed=seed,
        settings=asdict(recipe),
        recipe_hash=recipe.hash,
        failed=failed,
        loss=loss,
        train_seconds=seconds,
        peak_memory_bytes=peak_memory_bytes(device),
    )
    return Trained(trial, embeddings)


def score_method(
    trained: Trained,
    data: Data,
    *,
    probe_steps: int = STEPS,
    device: torch.device | str = "auto",
    on_probe_step: Callable[[int], None] = lambda _: None,
) -> Trial:
    """Returns the trial with its scores. It needs no model, so it can run in another process.

    With several labels per node, the probe is trained on `device` for `probe_steps` steps, and
    `on_probe_step` is called after each. With several splits, scores are means over all of them;
    predictions, made with the training labels of the first split, are scored on that one.
    """
    if trained.embeddings is not None:
        z, where = trained.embeddings, str(device)
        scores = over_splits(
            lambda one: linear_probe(
                z, one, steps=probe_steps, device=where, on_step=on_probe_step
            ),
            data,
        )
    elif trained.predictions is not None:
        scores = asdict(score_predictions(trained.predictions, data))
    else:
        return trained.trial
    return replace(trained.trial, scores=scores)


def repeat_method(
    name: str,
    data: Data,
    dataset: str = "",
    *,
    seeds: Sequence[int],
    device: torch.device,
    settings: Mapping[str, Json] | None = None,
    probe_steps: int = STEPS,
    on_probe_step: Callable[[int], None] = lambda _: None,
    verbose: bool = False,
) -> list[Row]:
    """Trains and scores a system for each seed; a deterministic system runs only once.

    The arguments are those of `train_method` and `score_method`; `verbose` reports each seed on
    stderr.

    Returns:
        A row per seed: the columns of `Trial`, with the scores: ``accuracy``, ``micro_f1``,
        ``macro_f1``, and ``val_accuracy`` or, with several labels per node, ``val_micro_f1``. A
        failed training has the reason under ``failed`` and no scores.
    """
    rows: list[Row] = []
    for seed in seeds:
        if rows and rows[0].get("runs_identical"):
            rows.append(rows[0] | {"seed": seed})
        else:
            trained = train_method(name, data, dataset, seed=seed, device=device, settings=settings)
            trial = score_method(
                trained, data, probe_steps=probe_steps, device=device, on_probe_step=on_probe_step
            )
            rows.append(trial.to_json())
        if verbose:
            print(_run_text(len(rows), seeds, rows[-1]), file=sys.stderr, flush=True)
    return rows


def _run_text(done: int, seeds: Sequence[int], row: Row) -> str:
    """Describes a finished run; a row without scores is a failed one."""
    score = "failed"
    if "val_micro_f1" in row:
        score = f"micro-F1 {number(row, 'micro_f1'):.4f}"
    elif "accuracy" in row:
        score = f"accuracy {100 * number(row, 'accuracy'):.1f} %"
    return f"run {done}/{len(seeds)}: seed {seeds[done - 1]}  {score}"


def summarise(rows: Sequence[Row]) -> Row:
    """Returns each score as a number for one row, else as ``{"mean": …, "std": …}``.

    The deviation is the sample's (n − 1). Failed trainings are counted and otherwise left out.

    Raises:
        TrainingError: every training failed.
    """
    scored = [row for row in rows if "failed" not in row]
    if not scored:
        raise TrainingError(text(rows[0], "failed"))
    summary: Row = {name: scored[0][name] for name in BUDGET if name in scored[0]}
    summary["failed"] = len(rows) - len(scored)
    for name in SCORES:
        if scored[0].get(name) is None:
            continue  # the probe for several labels has other scores than the one for classes
        values = [number(row, name) for row in scored]
        summary[name] = values[0]
        if len(values) > 1:
            summary[name] = {"mean": statistics.fmean(values), "std": statistics.stdev(values)}
    return summary


def field_values(method: Method) -> Row:
    """Returns the hyperparameters of a system by name."""
    return dict(vars(method))
