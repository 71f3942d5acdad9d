"""Any system of the tables by name, GraphCL included: train it, score it, one row."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from graphcl.baselines import BASELINES
from graphcl.baselines.protocol import Baseline, Data, OnEpoch, Supervised, is_unsupervised, silent
from graphcl.devices import peak_memory_bytes, reset_peak_memory
from graphcl.errors import ParameterError, TrainingError, suggestion
from graphcl.estimator import GraphCL
from graphcl.evaluation import linear_probe, score_predictions
from graphcl.evaluation.multilabel import STEPS
from graphcl.recipes import load_recipe, recipe_names
from graphcl.trials.repeat import report_run

METHODS = ("graphcl", *BASELINES)


@dataclass(frozen=True)
class Trained:
    """A system after its training, before anybody has looked at a test label.

    Attributes:
        row: method, title, graph, settings, seed, ``train_seconds``, ``peak_memory_bytes``; where
            the training failed, the reason under ``failed``; where every seed gives this very
            result, ``runs_identical``.
        embeddings: ``[num_nodes, dim]`` of an unsupervised system, else None.
        predictions: ``[num_nodes]`` or ``[num_nodes, labels]`` of a supervised one, else None.
    """

    row: dict[str, Any]
    embeddings: npt.NDArray[np.float32] | None = None
    predictions: npt.NDArray[np.int64] | None = None


def find_baseline(name: str) -> Baseline:
    """Returns a baseline by name.

    Raises:
        ParameterError: unknown; the message lists the known and the nearest.
    """
    if name not in BASELINES:
        known = ", ".join(METHODS)
        raise ParameterError(f"unknown method {name!r}; known: {known}{suggestion(name, METHODS)}")
    return BASELINES[name]


def run_method(
    name: str,
    data: Data,
    dataset: str = "",
    *,
    seed: int = 0,
    device: torch.device,
    settings: Mapping[str, Any] | None = None,
    probe_steps: int = STEPS,
    on_epoch: OnEpoch = silent,
) -> dict[str, Any]:
    """Trains a system once, scores it on the test nodes and returns a row.

    Args:
        name: one of `METHODS`.
        data: a labelled graph, or a collection.
        dataset: whose settings (of GraphCL: whose recipe) to use; empty takes the defaults.
        seed: decides everything random.
        device: where to train.
        settings: fields of the baseline, or keys of GraphCL's recipe, to change.
        probe_steps: the probe's budget where a node has several labels.
        on_epoch: called with the epochs done and the epochs in all.

    Returns:
        ``Trained.row`` and the scores: ``accuracy``, ``micro_f1``, ``macro_f1``, and
        ``val_accuracy`` or, with several labels per node, ``val_micro_f1``. A training that failed
        has the reason under ``failed`` and no scores.
    """
    trained = train_method(
        name, data, dataset, seed=seed, device=device, settings=settings, on_epoch=on_epoch
    )
    return score_method(trained, data, probe_steps=probe_steps, device=device)


def train_method(
    name: str,
    data: Data,
    dataset: str = "",
    *,
    seed: int = 0,
    device: torch.device,
    settings: Mapping[str, Any] | None = None,
    on_epoch: OnEpoch = silent,
) -> Trained:
    """Trains a system once; see `run_method` for the arguments."""
    changed = dict(settings or {})
    if name == "graphcl":
        return _train_graphcl(data, dataset, changed, seed, device, on_epoch)
    baseline = find_baseline(name)
    method = baseline.method(dataset, **changed)
    row = _row(name, baseline.title, data, seed) | {"settings": field_values(method)}
    if baseline.deterministic:
        row["runs_identical"] = True
    reset_peak_memory(device)
    began = time.perf_counter()
    embeddings = predictions = None
    try:
        if is_unsupervised(method):
            embeddings = method.embed(data, seed=seed, device=device, on_epoch=on_epoch)
        else:
            taught = cast("Supervised", method)
            predictions = taught.fit_predict(data, seed=seed, device=device, on_epoch=on_epoch)
    except TrainingError as error:
        row["failed"] = str(error)
    row["train_seconds"] = time.perf_counter() - began
    row["peak_memory_bytes"] = peak_memory_bytes(device)
    return Trained(row, embeddings, predictions)


def score_method(
    trained: Trained,
    data: Data,
    *,
    probe_steps: int = STEPS,
    device: torch.device | str = "auto",
    on_probe_step: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Returns the row of a trained system with its scores; arrays in, so any process can do it."""
    if trained.embeddings is not None:
        shown = {} if on_probe_step is None else {"on_step": on_probe_step}
        options: dict[str, Any] = {"steps": probe_steps, "device": str(device), **shown}
        result: Any = linear_probe(trained.embeddings, data, **options)
    elif trained.predictions is not None:
        result = score_predictions(trained.predictions, data)
    else:
        return trained.row
    return trained.row | asdict(result)


def repeat_method(
    name: str,
    data: Data,
    dataset: str = "",
    *,
    seeds: Sequence[int],
    device: torch.device,
    settings: Mapping[str, Any] | None = None,
    probe_steps: int = STEPS,
    on_probe_step: Callable[[int], None] | None = None,
    verbose: bool = False,
) -> list[dict[str, Any]]:
    """Returns `run_method`'s row for each seed; a deterministic system is run once for all.

    Args:
        name: one of `METHODS`.
        data: a labelled graph, or a collection.
        dataset: as in `run_method`.
        seeds: one training each.
        device: where to train.
        settings: as in `run_method`.
        probe_steps: likewise.
        on_probe_step: called after each step of a probe of several labels per node.
        verbose: report each seed on stderr.
    """
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        if rows and rows[0].get("runs_identical"):
            rows.append(rows[0] | {"seed": seed})
        else:
            trained = train_method(name, data, dataset, seed=seed, device=device, settings=settings)
            options: dict[str, Any] = {"probe_steps": probe_steps, "on_probe_step": on_probe_step}
            rows.append(score_method(trained, data, device=device, **options))
        if verbose:
            report_run(len(rows), seeds, rows[-1])
    return rows


def field_values(method: Any) -> dict[str, Any]:
    """Returns the hyperparameters of a system by name."""
    return {one.name: getattr(method, one.name) for one in fields(method)}


def _train_graphcl(
    data: Data,
    dataset: str,
    changed: dict[str, Any],
    seed: int,
    device: torch.device,
    on_epoch: OnEpoch,
) -> Trained:
    name = dataset if dataset in recipe_names() else "default"
    recipe = load_recipe(name).with_values(**changed)
    row = _row("graphcl", "GraphCL", data, seed)
    row |= {"settings": asdict(recipe), "recipe_hash": recipe.hash}
    reset_peak_memory(device)
    model = GraphCL(recipe, seed=seed, device=str(device))
    embeddings = None
    try:
        model.fit(data, on_epoch=lambda metrics: on_epoch(metrics.epoch, recipe.epochs))
        z: Any = model.transform(data)
        embeddings = np.concatenate(z) if isinstance(z, list) else z
        row |= {"loss": model.history_[-1].loss, "train_seconds": model.seconds_}
    except TrainingError as error:
        row["failed"] = str(error)
    row["peak_memory_bytes"] = peak_memory_bytes(device)
    return Trained(row, embeddings)


def _row(name: str, title: str, data: Data, seed: int) -> dict[str, Any]:
    return {"method": name, "title": title, "graph": data.name, "seed": seed}
