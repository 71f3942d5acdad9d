"""Runs the paper's tables: Table 1, the datasets, and Table 2, the systems on them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from graphcl.datasets import CATALOGUE, FIGURES, figures, load_dataset
from graphcl.errors import DatasetError, ParameterError, option, suggestion
from graphcl.graphs.collection import GraphCollection
from graphcl.research.output import csv_text, markdown_table, terminal_table
from graphcl.research.rows import Job, Json, Progress, Row, Scoring, execute
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.graphcl import settings_of
from graphcl.research.systems.system import Data
from graphcl.research.table2 import Cell, assemble, lines_of
from graphcl.research.trials import find_system, scoring_of, settings_hash, train_method
from graphcl.settings import PROBE_STEPS

COLUMNS = ("method", "graph", "seed", "settings_hash")
TABLE_1_COLUMNS = ("Dataset", "Task", "Figures", "Nodes", "Edges", "Features", "Classes", "Split")


def table_1(datasets: Sequence[str]) -> list[dict[str, Any]]:
    """Returns Table 1: the title and task of each dataset, the paper's figures and ours.

    Figures are `FIGURES`, and ``split``, which counts train, validation and test nodes. Ours are
    None if the dataset is absent.
    """
    found = []
    for name in datasets:
        card = CATALOGUE[name]
        paper = {key: getattr(card, key) for key in FIGURES} | {"split": list(card.split)}
        ours = figures(load_dataset(name)) if card.present else None
        about = {"dataset": name, "title": card.title, "task": card.task}
        found.append(about | {"paper": paper, "ours": ours})
    return found


def table_1_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns Table 1 with the paper's numbers and ours."""
    return markdown_table(TABLE_1_COLUMNS, [_table_1_line(row) for row in rows]) + "\n"


def table_1_terminal(rows: Sequence[Mapping[str, Any]], *, width: int | None = None) -> str:
    """Returns Table 1 for a terminal."""
    lines = [_table_1_line(row) for row in rows]
    return terminal_table("Table 1: ours (paper's)", TABLE_1_COLUMNS, lines, width=width)


def _table_1_line(row: Mapping[str, Any]) -> list[str]:
    about, paper = [row["title"], row["task"]], _figure_texts(row["paper"])
    if row["ours"] is None:
        return [*about, "paper's; ours absent", *paper]
    pairs = zip(_figure_texts(row["ours"]), paper, strict=True)
    same = [mine if mine == theirs else f"{mine} ({theirs})" for mine, theirs in pairs]
    return [*about, "ours (paper's)", *same]


def _figure_texts(figures: Mapping[str, Any]) -> list[str]:
    split = "/".join(f"{count:,}" for count in figures["split"])
    return [*(f"{figures[key]:,}" for key in FIGURES), split]


def table_1_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns two lines per dataset: the paper's numbers and ours."""
    return csv_text(
        [
            {"dataset": row["dataset"], "figures": who, **(row[who] or {})}
            for row in rows
            for who in ("paper", "ours")
        ]
    )


def table_2(
    path: Path,
    *,
    datasets: Sequence[str],
    methods: Sequence[str] | None = None,
    seeds: Sequence[int],
    device: torch.device,
    workers: int = 1,
    settings: Mapping[str, Json] | None = None,
    probe_steps: int = PROBE_STEPS,
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
    return [find_system(name).name for name in dict.fromkeys(name.lower() for name in names)]


def present(datasets: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the datasets that are on this machine, and those that are not."""
    here = [name for name in datasets if CATALOGUE[name].present]
    return here, [name for name in datasets if name not in here]


def methods_on(dataset: str, methods: Sequence[str] | None) -> list[str]:
    """Returns the systems to run on a dataset: all in the table, or those of them in `methods`.

    A system in `methods` that the table does not include runs on every dataset.
    """
    listed = [line.name for line in lines_of(dataset)]
    if methods is None:
        return listed
    known = {line.name for name in CATALOGUE for line in lines_of(name)}
    return [name for name in methods if name in listed or name not in known]


@cache
def cached_dataset(name: str) -> Data:
    """Returns a dataset; each is read only once."""
    return load_dataset(name)


def applicable(method: str, settings: Mapping[str, Json]) -> Row:
    """Returns the part of `settings` that a system has."""
    known = SYSTEMS[method].keys()
    return {key: value for key, value in settings.items() if key in known}


def check_settings(
    settings: Mapping[str, Json], datasets: Sequence[str], methods: Sequence[str] | None
) -> None:
    """Raises a `ParameterError` for a setting that no system has, or for an invalid value."""
    taken: set[str] = set()
    for dataset in datasets:
        for method in methods_on(dataset, methods):
            changed = applicable(method, settings)
            SYSTEMS[method].method(dataset, **changed)  # refuses an invalid value
            taken |= set(changed)
    for key in settings:
        if key not in taken:
            raise ParameterError(
                f"{option('settings', key)}: none of the systems to run has this setting"
            )


def _jobs(
    method: str,
    dataset: str,
    seeds: Sequence[int],
    device: torch.device,
    settings: Row,
    probe_steps: int,
) -> list[Job]:
    changed = applicable(method, settings)
    hashed = settings_hash(settings_of(SYSTEMS[method].method(dataset, **changed)))

    def job(seed: int) -> Job:
        about: Row = {"method": method, "graph": dataset, "seed": seed, "settings_hash": hashed}

        def run() -> Iterable[Scoring]:
            data = cached_dataset(dataset)
            trial = train_method(method, data, dataset, seed=seed, device=device, settings=changed)
            row = trial.to_json() | about
            if isinstance(data, GraphCollection) and data.note:
                row["note"] = data.note
            yield scoring_of(row, trial, data, device=device, probe_steps=probe_steps)

        return Job(f"{method} on {dataset}", (about,), run)

    return [job(seed) for seed in (seeds[:1] if SYSTEMS[method].deterministic else seeds)]
