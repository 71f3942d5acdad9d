"""Trains and scores any system by name, GraphCL included; each training is a row of results."""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from graphcl.datasets import CATALOGUE, load_dataset
from graphcl.devices import device_name, peak_memory_bytes, reset_peak_memory
from graphcl.errors import GraphError, ParameterError, TrainingError, check_known
from graphcl.evaluation.failure import majority_sign
from graphcl.evaluation.probe import linear_probe
from graphcl.evaluation.splits import over_splits, score_predictions
from graphcl.evaluation.unsupervised import effective_rank, mean_cosine
from graphcl.files.arrays import write_npy
from graphcl.graphs.collection import Labelled, labelled_nodes
from graphcl.graphs.conversion import offsets
from graphcl.graphs.graph import Graph
from graphcl.opening import AnyGraph
from graphcl.research.rows import Json, Row, Scoring, mean_and_deviation, number, text
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.system import (
    Data,
    Labels,
    OnEpoch,
    Rows,
    System,
    Unsupervised,
    settings_of,
    silent,
)
from graphcl.runs import files as runs
from graphcl.runs.nodes import describe_nodes, write_nodes
from graphcl.settings import PROBE_STEPS
from graphcl.version import versions

SCORES = ("accuracy", "micro_f1", "macro_f1", "roc_auc", "val_accuracy", "val_micro_f1")
BUDGET = ("split", "splits", "nodes", "majority", "steps", "strengths", "optimiser")


class Trial(NamedTuple):
    """One training of a system, and what it gave.

    Attributes:
        row: ``method``, ``title``, ``graph``, ``seed``, ``settings``, ``train_seconds`` and
            ``peak_memory_bytes``; for GraphCL ``recipe_hash`` and the ``loss`` of the last epoch;
            ``runs_identical`` if every seed gives the same result; ``failed`` with the reason.
        embeddings: ``[num_nodes, dim]`` of an unsupervised system.
        predictions: ``[num_nodes]`` or ``[num_nodes, labels]`` of a supervised one.
    """

    row: Row
    embeddings: Rows | None = None
    predictions: Labels | None = None


def find_system(name: str) -> System:
    """Returns a system by name; the error for an unknown one lists all and the nearest."""
    check_known(name, SYSTEMS, what="unknown method", error=ParameterError)
    return SYSTEMS[name]


def dataset_of(source: str) -> str:
    """Returns the dataset that `source` names, or nothing: a file's name chooses no settings."""
    return source.lower() if source.lower() in CATALOGUE else ""


@cache
def cached_dataset(name: str) -> Data:
    """Returns a dataset; each is read only once."""
    return load_dataset(name)


def applicable(method: str, settings: Mapping[str, Json]) -> Row:
    """Returns the part of `settings` that a system has."""
    known = SYSTEMS[method].keys()
    return {key: value for key, value in settings.items() if key in known}


def train_baseline(
    name: str,
    graph: AnyGraph,
    out: Path,
    *,
    origin: runs.Origin,
    settings: Mapping[str, Any],
    seed: int,
    probe_steps: int,
    device: torch.device,
    overwrite: bool = False,
    on_epoch: OnEpoch = silent,
) -> runs.BaselineResult:
    """Trains a system once and writes its run `out`; returns its result.

    Args:
        name: the system; not GraphCL, whose run is `graphcl.training_run.train_run`'s.
        graph: what to train on; one with types is flattened.
        out: the run directory.
        origin: what the run keeps of the graph.
        settings: changes to the system's hyperparameters.
        seed: of the training.
        probe_steps: of the probe of several labels.
        device: where to train.
        overwrite: replace a run that is there.
        on_epoch: called with the epochs that are done, and their number.

    Raises:
        RunError: the place is taken, or a file could not be written.
        TrainingError: the training failed.
    """
    baseline, dataset = find_system(name), dataset_of(origin.graph)
    if isinstance(graph, Graph) and not graph.is_plain:
        graph = replace(graph.flatten(), name=graph.name)
    runs.check_output(out, overwrite=overwrite)
    print(f"{graph!r}; {baseline.title}; {device_name(device)}", file=sys.stderr)
    if not baseline.weighted and isinstance(graph, Graph) and graph.edge_weight is not None:
        print(f"note: {name} does not look at edge weights", file=sys.stderr)
    trial = train_method(
        name, graph, dataset, seed=seed, device=device, settings=settings, on_epoch=on_epoch
    )
    about: Any = trial.row
    if "failed" in about:
        raise TrainingError(about["failed"])
    scores, why = None, None
    try:
        scores = score_method(trial, graph, probe_steps=probe_steps, device=device)
    except GraphError as error:  # labels are a gift, not a duty
        why = str(error)
    sign, z = majority_sign(scores, about["settings"], name), trial.embeddings
    measured = z is not None and len(z) > 1 and bool(np.isfinite(z).all())
    result = runs.BaselineResult(
        graph=runs.GraphFacts.of(graph, origin.graph),
        method=name,
        settings=about["settings"],
        scores=scores,
        scores_skipped=why,
        seed=seed,
        train_seconds=about["train_seconds"],
        peak_memory_bytes=about["peak_memory_bytes"],
        device=device_name(device),
        versions=versions(),
        note="" if isinstance(graph, Graph) else graph.note,
        effective_rank=effective_rank(z, seed=seed) if measured else None,
        mean_cosine=mean_cosine(z, seed=seed) if measured else None,
        warnings=[asdict(sign)] if sign else [],
    )
    config = runs.RunConfig({}, name, about["settings"], seed=seed, origin=origin)
    with runs.new_run(out, overwrite=overwrite) as folder:
        runs.write_config(folder, config)
        saved = {runs.EMBEDDINGS: trial.embeddings, runs.PREDICTIONS: trial.predictions}
        for file, array in saved.items():
            if array is not None:
                write_npy(folder / file, array)
        write_nodes(folder, describe_nodes(graph))
        result.write(folder)
    return result


def train_method(
    system: str | System,
    data: Data,
    dataset: str = "",
    *,
    seed: int = 0,
    device: torch.device,
    settings: Mapping[str, Json] | None = None,
    on_epoch: OnEpoch = silent,
) -> Trial:
    """Trains a system once; test labels are not read.

    Args:
        system: one of `SYSTEMS`, or its name.
        data: a graph, or a collection; a supervised system needs labels. A system that knows one
            relation gets a graph with types flattened; what it gives is of the nodes with labels.
        dataset: the dataset whose settings (for GraphCL: recipe) to use; empty for the defaults.
        seed: decides everything random.
        device: where to train.
        settings: fields of the system, or keys of GraphCL's recipe, to change.
        on_epoch: called with the epochs done and the total number of epochs.
    """
    system = find_system(system) if isinstance(system, str) else system
    method = system.method(dataset, **(settings or {}))
    rows = slice(None)
    if isinstance(data, Graph) and not (data.is_plain or system.typed):
        judged = labelled_nodes(data)
        start = offsets(data)[judged.name]
        rows = slice(start, start + judged.num_nodes)
        data = replace(data.flatten(), name=data.name)
    reset_peak_memory(device)
    began = time.perf_counter()
    embeddings = predictions = failed = None
    try:
        if isinstance(method, Unsupervised):
            embeddings = method.embed(data, seed=seed, device=device, on_epoch=on_epoch)
        else:
            predictions = method.fit_predict(data, seed=seed, device=device, on_epoch=on_epoch)
    except TrainingError as error:
        failed = str(error)
    row: Row = {
        "method": system.name,
        "title": system.title,
        "graph": data.name,
        "seed": seed,
        "settings": settings_of(method),
        "runs_identical": system.deterministic or None,
        "failed": failed,
        "train_seconds": time.perf_counter() - began,
        "peak_memory_bytes": peak_memory_bytes(device),
        **getattr(method, "costs", {}),
    }
    return Trial(
        {name: value for name, value in row.items() if value is not None},
        None if embeddings is None else embeddings[rows],
        None if predictions is None else predictions[rows],
    )


def score_method(
    trial: Trial,
    data: Labelled,
    *,
    probe_steps: int = PROBE_STEPS,
    device: torch.device | str = "auto",
    on_probe_step: Callable[[int], None] = lambda _: None,
) -> Row:
    """Returns the scores of a trial; none of one that failed. It can run in another process.

    With several labels per node, the probe is trained on `device` for `probe_steps` steps, and
    `on_probe_step` is called after each. With several splits, scores are means over all of them;
    predictions, made with the training labels of the first split, are scored on that one.
    """
    z = trial.embeddings
    if z is not None:
        options: Any = {"steps": probe_steps, "device": str(device), "on_step": on_probe_step}
        return {**over_splits(lambda one: linear_probe(z, one, **options), data)}
    if trial.predictions is not None:
        return asdict(score_predictions(trial.predictions, data))
    return {}


def scoring_of(
    row: Row, trial: Trial, data: Data, *, device: torch.device, probe_steps: int = PROBE_STEPS
) -> Scoring:
    """Returns `row`, which has the columns of `trial`, with the function that scores it.

    With several labels per node the probe is trained here, on the device.
    """
    if "failed" in trial.row:
        return Scoring((row,))
    judged = labelled_nodes(data)
    if judged.y is not None and judged.y.ndim == 2:
        scores = score_method(trial, judged, probe_steps=probe_steps, device=device)
        return Scoring((row | scores,))
    return Scoring((row,), partial(_scores, trial, judged))


def _scores(trial: Trial, data: Labelled) -> list[Row]:
    return [score_method(trial, data, device="cpu")]


def settings_hash(settings: Mapping[str, Json]) -> str:
    """Returns twelve hexadecimal digits that identify a system's settings in rows."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def repeat_method(
    name: str,
    data: Data,
    dataset: str = "",
    *,
    seeds: Sequence[int],
    device: torch.device,
    settings: Mapping[str, Json] | None = None,
    probe_steps: int = PROBE_STEPS,
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
            scores = score_method(
                trained,
                labelled_nodes(data),
                probe_steps=probe_steps,
                device=device,
                on_probe_step=on_probe_step,
            )
            rows.append(trained.row | scores)
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
        mean, std = mean_and_deviation([number(row, name) for row in scored])
        summary[name] = mean if std is None else {"mean": mean, "std": std}
    return summary
