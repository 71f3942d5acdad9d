"""Runs the paper's tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TypedDict

import torch

from graphcl.datasets import CATALOGUE, load_dataset
from graphcl.errors import DatasetError, ParameterError, suggestion
from graphcl.evaluation.multilabel import STEPS
from graphcl.graphs.collection import GraphCollection
from graphcl.recipes import load_recipe, recipe_for
from graphcl.recipes.recipe import recipe_keys
from graphcl.research.paper.published import systems
from graphcl.research.paper.table2 import Cell, assemble
from graphcl.research.systems import BASELINES
from graphcl.research.systems.protocol import Data
from graphcl.research.trials.methods import METHODS, field_values, find_baseline, train_method
from graphcl.research.trials.rows import Json, Row
from graphcl.research.trials.runner import Job, Progress, Scoring, execute
from graphcl.research.trials.scoring import method_scoring, settings_hash

COLUMNS = ("method", "graph", "seed", "settings_hash")


class Figures(TypedDict):
    """The numbers of a dataset in Table 1; `split` counts train, validation and test nodes."""

    nodes: int
    edges: int
    features: int
    classes: int
    split: list[int]


class Table1Row(TypedDict):
    """A row of Table 1: the paper's numbers and ours; ours are None if the dataset is absent."""

    dataset: str
    title: str
    task: str
    paper: Figures
    ours: Figures | None


def table_1(datasets: Sequence[str]) -> list[Table1Row]:
    """Returns Table 1."""
    return [
        {
            "dataset": name,
            "title": card.title,
            "task": card.task,
            "paper": {
                "nodes": card.nodes,
                "edges": card.edges,
                "features": card.features,
                "classes": card.classes,
                "split": list(card.split),
            },
            "ours": _figures(load_dataset(name)) if card.present else None,
        }
        for name, card in ((name, CATALOGUE[name]) for name in datasets)
    ]


def _figures(data: Data) -> Figures:
    if isinstance(data, GraphCollection):
        split = list(data.split_nodes)
    else:
        masks = (data.train_mask, data.val_mask, data.test_mask)
        split = [int(mask.sum()) for mask in masks if mask is not None]
    return {
        "nodes": data.num_nodes,
        "edges": data.num_edges,
        "features": data.num_features,
        "classes": data.num_classes,
        "split": split,
    }


def table_2(
    path: Path,
    *,
    datasets: Sequence[str],
    methods: Sequence[str] | None = None,
    seeds: Sequence[int],
    device: torch.device,
    workers: int = 1,
    settings: Mapping[str, Json] | None = None,
    probe_steps: int = STEPS,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> list[Cell]:
    """Runs those parts of Table 2 that are not in the file `path` yet and returns the table.

    Absent datasets are marked as absent. `methods` None runs all systems of the table for a
    dataset, once per seed, a deterministic one once. `settings` change every system that has them.
    The probe runs in `workers` processes, for `probe_steps` steps if nodes have several labels.
    """
    here, absent = present(datasets)
    jobs = [
        job
        for dataset in here
        for method in methods_on(dataset, methods)
        for job in _jobs(method, dataset, seeds, device, dict(settings or {}), probe_steps)
    ]
    rows = execute(
        jobs, path, columns=COLUMNS, device=device, workers=workers, on_progress=on_progress
    )
    return assemble(rows, datasets=datasets, methods=methods, absent=absent)


def check_datasets(names: Iterable[str]) -> list[str]:
    """Returns names of datasets in lower case, once each; raises a `DatasetError` for others."""
    keys = [name.lower() for name in names]
    for key in keys:
        if key not in CATALOGUE:
            near = suggestion(key, CATALOGUE)
            raise DatasetError(f"unknown dataset {key!r}; known: {', '.join(CATALOGUE)}{near}")
    return list(dict.fromkeys(keys))


def check_methods(names: Iterable[str]) -> list[str]:
    """Returns names of methods in lower case; raises a `ParameterError` if one is unknown."""
    found = list(dict.fromkeys(name.lower() for name in names))
    for name in found:
        if name != "graphcl":
            find_baseline(name)
    return found


def present(datasets: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the datasets that are on this machine, and those that are not."""
    here = [name for name in datasets if CATALOGUE[name].present]
    return here, [name for name in datasets if name not in here]


def methods_on(dataset: str, methods: Sequence[str] | None) -> list[str]:
    """Returns the systems to run on a dataset: all in the table, or those of them in `methods`.

    A system in `methods` that the table does not include runs on every dataset.
    """
    listed = [system.name for system in systems(dataset) if system.name in METHODS]
    if methods is None:
        return listed
    known = {system.name for name in CATALOGUE for system in systems(name)}
    return [name for name in methods if name in listed or name not in known]


@cache
def cached_dataset(name: str) -> Data:
    """Returns a dataset; each is read only once."""
    return load_dataset(name)


def method_settings(method: str, dataset: str, settings: Mapping[str, Json]) -> Row:
    """Returns the complete settings of a system on a dataset, updated with `settings`."""
    if method == "graphcl":
        return asdict(load_recipe(recipe_for(dataset)).with_texts(**settings))
    return field_values(BASELINES[method].method(dataset, **settings))


def applicable(method: str, dataset: str, settings: Mapping[str, Json]) -> Row:
    """Returns the part of `settings` that a system has."""
    if method == "graphcl":
        known = recipe_keys()
    else:
        known = list(field_values(BASELINES[method].method(dataset)))
    return {key: value for key, value in settings.items() if key in known}


def check_settings(
    settings: Mapping[str, Json], datasets: Sequence[str], methods: Sequence[str] | None
) -> None:
    """Raises a `ParameterError` for a setting that no system has, or for an invalid value."""
    taken: set[str] = set()
    for dataset in datasets:
        for method in methods_on(dataset, methods):
            changed = applicable(method, dataset, settings)
            method_settings(method, dataset, changed)
            taken |= set(changed)
    for key in settings:
        if key not in taken:
            raise ParameterError(f"--set {key}: none of the systems to run has this setting")


def _jobs(
    method: str,
    dataset: str,
    seeds: Sequence[int],
    device: torch.device,
    settings: Row,
    probe_steps: int,
) -> list[Job]:
    changed = applicable(method, dataset, settings)
    hashed = settings_hash(method_settings(method, dataset, changed))
    once = method != "graphcl" and BASELINES[method].deterministic

    def job(seed: int) -> Job:
        about: Row = {"method": method, "graph": dataset, "seed": seed, "settings_hash": hashed}

        def run() -> Iterable[Scoring]:
            data = cached_dataset(dataset)
            trained = train_method(
                method, data, dataset, seed=seed, device=device, settings=changed
            )
            row = trained.trial.to_json() | about
            if isinstance(data, GraphCollection) and data.note:
                row["note"] = data.note
            yield method_scoring(row, trained, data, device=device, probe_steps=probe_steps)

        return Job(f"{method} on {dataset}", (about,), run)

    return [job(seed) for seed in (seeds[:1] if once else seeds)]
