"""Runs the paper's tables and studies: `graphcl reproduce`.

Table 1 are the datasets, Table 2 the systems on them; `graphcl.research.studies` has the rest.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphcl.datasets import CATALOGUE, FIGURES, figures, load_dataset
from graphcl.errors import DatasetError, ParameterError, check_known, option
from graphcl.graphs.collection import GraphCollection
from graphcl.research.output import Report, Table
from graphcl.research.rows import Job, Json, Progress, Row, Scoring, execute
from graphcl.research.studies import STUDIES
from graphcl.research.studies.study import Plan, Study
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.system import settings_of
from graphcl.research.table2 import assemble, lines_of, table_2_report
from graphcl.research.trials import (
    applicable,
    cached_dataset,
    find_system,
    scoring_of,
    settings_hash,
    train_method,
)

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


def table_1_report(rows: Sequence[Mapping[str, Any]]) -> Report:
    """Returns Table 1 with the paper's numbers and ours."""
    return Report(
        "table1",
        {"datasets": rows},
        tables=[Table(TABLE_1_COLUMNS, [_table_1_line(row) for row in rows])],
        notes=[],
        lines=[
            {"dataset": row["dataset"], "figures": who, **(row[who] or {})}
            for row in rows
            for who in ("paper", "ours")
        ],
    )


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


def reproduce(
    name: str,
    plan: Plan,
    path: Path,
    *,
    runs: int | None = None,
    workers: int = 1,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Report:
    """Runs what the file `path` does not hold yet of a table or a study, and returns it all.

    Args:
        name: ``table1``, ``table2`` or one of `STUDIES`.
        plan: what to run. No datasets are those of the table or study; the first seed is the first
            of `runs` ones. Absent datasets are marked as absent.
        path: the file of rows.
        runs: the number of seeds; None is that of the table or study.
        workers: processes that score.
        on_progress: called after each training.

    Raises:
        ParameterError: a setting is one that no system has, or has an invalid value.
    """
    if name == "table1":
        return table_1_report(table_1(plan.datasets or tuple(CATALOGUE)))
    experiment = STUDIES.get(name, TABLE_2)
    chosen = plan.datasets or experiment.datasets
    here, absent = present(chosen if experiment.datasets else ())
    check_settings(plan.settings, here or ["cora"], experiment.methods or plan.methods)
    seeds = tuple(range(plan.seeds[0], plan.seeds[0] + (runs or experiment.runs)))
    rows = execute(
        experiment.jobs(replace(plan, datasets=tuple(here), seeds=seeds)),
        path,
        columns=experiment.columns,
        device=plan.device,
        workers=workers,
        on_progress=on_progress,
    )
    return experiment.report(rows, replace(plan, datasets=tuple(chosen)), absent)


def check_datasets(names: Iterable[str]) -> list[str]:
    """Returns names of datasets in lower case, once each; raises a `DatasetError` for others."""
    keys = [name.lower() for name in names]
    for key in keys:
        check_known(key, CATALOGUE, what="unknown dataset", error=DatasetError)
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

    Of FastGCN, which the paper has on Reddit alone, the table quotes the paper's number.

    A system in `methods` that the table does not include runs on every dataset.
    """
    listed = [line.name for line in lines_of(dataset) if line.name in SYSTEMS]
    if methods is None:
        return listed
    known = {line.name for name in CATALOGUE for line in lines_of(name)}
    return [name for name in methods if name in listed or name not in known]


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


def _jobs(plan: Plan) -> list[Job]:
    """Returns the runs of Table 2: each system once per seed, a deterministic one once."""
    return [
        _job(method, dataset, seed, plan)
        for dataset in plan.datasets
        for method in methods_on(dataset, plan.methods)
        for seed in (plan.seeds[:1] if SYSTEMS[method].deterministic else plan.seeds)
    ]


def _job(method: str, dataset: str, seed: int, plan: Plan) -> Job:
    changed = applicable(method, plan.settings)
    hashed = settings_hash(settings_of(SYSTEMS[method].method(dataset, **changed)))
    about: Row = {"method": method, "graph": dataset, "seed": seed, "settings_hash": hashed}

    def run() -> Iterable[Scoring]:
        data, device = cached_dataset(dataset), plan.device
        trial = train_method(method, data, dataset, seed=seed, device=device, settings=changed)
        row = trial.row | about
        if isinstance(data, GraphCollection) and data.note:
            row["note"] = data.note
        yield scoring_of(row, trial, data, device=device, probe_steps=plan.probe_steps)

    return Job(f"{method} on {dataset}", (about,), run)


class _Table2(Study):
    def report(self, rows: Sequence[Row], plan: Plan, absent: Sequence[str] = ()) -> Report:
        """Returns the table for the plan's datasets and systems."""
        cells = assemble(rows, datasets=plan.datasets, methods=plan.methods, absent=absent)
        return table_2_report(cells, absent)


TABLE_2 = _Table2(name="table2", jobs=_jobs, datasets=tuple(CATALOGUE), methods=None)
