r"""Runs the paper's tables and studies: `graphcl reproduce`.

Table 1 are the datasets, Table 2 the systems on them; `graphcl.research.studies` has the rest.

The paper's numbers are those of Hafidi, Ghogho, Ciblat, Swami, "GraphCL: Contrastive
Self-Supervised Learning of Graph Representations", 2020, as printed; accuracies in percent,
micro-averaged F1 as a fraction. The paper averages its own runs over 50 seeds and quotes the
numbers of other systems from their papers. Table 1 is in `graphcl.datasets.CATALOGUE`.

A difference is judged against two standard errors,

.. math:: |\bar x - x_{paper}| \le 2 \sqrt{s^2 / n + s_{paper}^2 / 50} ,

where :math:`s` is our sample deviation over :math:`n` runs. The paper's term is included if the
paper prints a deviation (over its 50 runs). A single run of a random system is not judged, nor a
difference where neither side has a deviation.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from graphcl.datasets import CATALOGUE, FIGURES, figures, load_dataset
from graphcl.errors import DatasetError, ParameterError, check_known, demand, option
from graphcl.graphs.collection import GraphCollection
from graphcl.research.output import Report, Table, failure_text, plot, runs_text
from graphcl.research.rows import (
    Job,
    Json,
    Progress,
    Row,
    Scoring,
    execute,
    mean_and_deviation,
    number,
    text,
)
from graphcl.research.studies import STUDIES
from graphcl.research.studies.study import INDUCTIVE, SCORE, Plan, Study, scale, score_key
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.system import settings_of
from graphcl.research.trials import (
    applicable,
    cached_dataset,
    find_system,
    scoring_of,
    settings_hash,
    train_method,
)

PAPER_RUNS = 50
TRANSDUCTIVE = ("cora", "citeseer", "pubmed")
DATASETS = (*TRANSDUCTIVE, *INDUCTIVE)
TABLE_1_COLUMNS = ("Dataset", "Task", "Figures", "Nodes", "Edges", "Features", "Classes", "Split")

UNSUPERVISED, SUPERVISED, BEYOND = "Unsupervised", "Supervised", "Beyond the paper"


@dataclass(frozen=True)
class Line:
    """A line of Table 2.

    Attributes:
        name: its name for ``--methods``.
        title: its name in the table.
        group: its part of the table.
        scores: what is printed by dataset: a mean in the unit of the table, or mean±deviation; or
            ``-`` for no number, ``?`` where it runs although the paper has no score.
    """

    name: str
    title: str
    group: str
    scores: dict[str, str]


# The paper names Label Propagation among the rivals, but prints no number.
_AS_PRINTED = {
    ("raw", "Raw features", UNSUPERVISED): "47.9±0.4 49.3±0.2 69.1±0.3 0.585 0.422",
    ("deepwalk", "DeepWalk", UNSUPERVISED): "67.2 43.2 65.3 - -",
    ("deepwalk-features", "DeepWalk + features", UNSUPERVISED): "70.7±0.6 51.4±0.5 74.3±0.9 - -",
    ("ep-b", "EP-B", UNSUPERVISED): "78.1±1.5 71.0±1.4 79.6±2.1 - -",
    ("graphsage-gcn", "GraphSAGE-GCN", UNSUPERVISED): "- - - 0.908 0.465",
    ("graphsage-mean", "GraphSAGE-mean", UNSUPERVISED): "- - - 0.897 0.486",
    ("graphsage-lstm", "GraphSAGE-LSTM", UNSUPERVISED): "- - - 0.907 0.482",
    ("graphsage-pool", "GraphSAGE-pool", UNSUPERVISED): "- - - 0.892 0.502",
    ("dgi", "DGI", UNSUPERVISED): "82.3±0.6 71.8±0.7 76.8±0.6 - -",
    ("dgi-inductive", "DGI", UNSUPERVISED): "- - - 0.940±0.001 0.638±0.002",
    ("graphcl", "GraphCL", UNSUPERVISED): "83.6±0.5 72.5±0.7 79.8±0.5 0.951±0.01 0.659±0.006",
    ("gcn", "GCN", SUPERVISED): "81.5 70.3 79.0 - -",
    ("gat", "GAT", SUPERVISED): "83.0±0.3 72.5±0.7 79.0±0.3 - -",
    ("fastgcn", "FastGCN", SUPERVISED): "- - - 0.937 -",
    ("gaan", "GaAN", SUPERVISED): "- - - 0.958±0.001 0.969±0.002",
    ("label-propagation", "Label Propagation", BEYOND): "? ? ? - -",
    ("random-encoder", "Random encoder", BEYOND): "? ? ? ? ?",
    ("propagation", "Propagation, no training", BEYOND): "? ? ? ? ?",
}


LINES = tuple(
    Line(*line, dict(zip(DATASETS, printed.split(), strict=True)))
    for line, printed in _AS_PRINTED.items()
)


def lines_of(dataset: str) -> list[Line]:
    """Returns the lines of the table for one dataset, in the paper's order."""
    return [line for line in LINES if line.scores[dataset] != "-"]


def decimals(dataset: str) -> int:
    """Returns the number of decimals in the table."""
    return 3 if dataset in INDUCTIVE else 1


ERRORS_STATED = (
    "within: |ours − paper| ≤ 2 standard errors, √(s²/n + s_paper²/50), where s is our deviation "
    "over n runs and s_paper the paper's over 50 runs (0 if it prints none); "
    "n/a: no deviation to judge by"
)


@dataclass(frozen=True)
class Cell:
    """Our score and the paper's for one system on one dataset.

    Attributes:
        method: the system's name.
        title: its name in the table.
        group: the part of the table.
        dataset: the dataset's name.
        state: ``measured``, ``not measured``, ``failed`` (every run) or ``absent`` (no data here).
        runs: runs that gave a score.
        failed: runs that did not.
        deterministic: whether every seed gives the same result, so that one run is enough.
        mean: in the table's unit, or None.
        std: the sample's deviation, or None for one run of a random system.
        paper: the published mean, or None.
        paper_std: its deviation, or None.
        note: a remark on the score.
        reason: why runs failed.
    """

    method: str
    title: str
    group: str
    dataset: str
    state: str = "not measured"
    runs: int = 0
    failed: int = 0
    deterministic: bool = False
    mean: float | None = None
    std: float | None = None
    paper: float | None = None
    paper_std: float | None = None
    note: str = ""
    reason: str = ""

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        if self.mean is None or self.paper is None:
            return None
        return self.mean - self.paper

    @property
    def two_errors(self) -> float | None:
        """Two standard errors of the difference; None if it cannot be judged."""
        if self.difference is None or self.std is None:
            return None
        ours = self.std**2 / self.runs
        theirs = self.paper_std**2 / PAPER_RUNS if self.paper_std is not None else 0.0
        return 2 * math.sqrt(ours + theirs) or None

    @property
    def within(self) -> bool | None:
        """Whether the difference is within two standard errors; None if it cannot be judged."""
        if self.difference is None or self.two_errors is None:
            return None
        return abs(self.difference) <= self.two_errors

    def as_row(self) -> Row:
        """Returns the fields and the derived numbers."""
        derived = {name: getattr(self, name) for name in ("difference", "two_errors", "within")}
        return asdict(self) | derived


def assemble(
    rows: Iterable[Row],
    *,
    datasets: Sequence[str],
    methods: Sequence[str] | None = None,
    absent: Sequence[str] = (),
) -> list[Cell]:
    """Returns the cells of Table 2, by dataset and in the paper's order.

    Args:
        rows: a row for each seed of each system and dataset.
        datasets: the datasets to show.
        methods: the systems to show; None shows all.
        absent: datasets that are not on this machine; cells without rows are marked so.
    """
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[text(row, "method"), text(row, "graph")].append(row)
    cells = []
    for dataset in datasets:
        lines = lines_of(dataset)
        beyond = [name for name, graph in found if graph == dataset]
        beyond = [name for name in beyond if name not in {line.name for line in lines}]
        titles = {name: SYSTEMS[name].title if name in SYSTEMS else name for name in beyond}
        lines += [Line(name, title, BEYOND, {}) for name, title in titles.items()]
        cells += [
            _cell(line, dataset, found.get((line.name, dataset), []), absent=dataset in absent)
            for line in lines
            if methods is None or line.name in methods
        ]
    return cells


def _cell(line: Line, dataset: str, rows: list[Row], *, absent: bool) -> Cell:
    paper, _, deviation = line.scores.get(dataset, "?").partition("±")
    key = score_key(dataset)
    scored = [row for row in rows if "failed" not in row and key in row]
    values = [scale(dataset) * number(row, key) for row in scored]
    reasons = Counter(str(row["failed"]) for row in rows if "failed" in row)
    mean, std = mean_and_deviation(values)
    fixed = bool(values) and any(row.get("runs_identical") for row in rows)
    unmeasured = "failed" if rows else "absent" if absent else "not measured"
    return Cell(
        method=line.name,
        title=line.title,
        group=line.group,
        dataset=dataset,
        state="measured" if values else unmeasured,
        runs=len(values),
        failed=sum(reasons.values()),
        deterministic=fixed,
        mean=mean,
        std=0.0 if std is None and fixed else std,
        paper=None if paper == "?" else float(paper),
        paper_std=float(deviation) if deviation else None,
        note=next((str(row["note"]) for row in rows if row.get("note")), ""),
        reason=reasons.most_common(1)[0][0] if reasons else "",
    )


def table_2_report(cells: Sequence[Cell], absent: Sequence[str]) -> Report:
    """Returns Table 2 as `graphcl reproduce` shows and writes it: in halves, by their task.

    A terminal shows one table per dataset, which is narrower.
    """
    listed = [cell.as_row() for cell in cells]
    halves = {
        "Transductive: accuracy in %": TRANSDUCTIVE,
        "Inductive: micro-averaged F1": INDUCTIVE,
    }
    here = dict.fromkeys(cell.dataset for cell in cells if cell.state != "absent")
    return Report(
        "table2",
        {"cells": listed, "absent": list(absent)},
        tables=[
            table(title, members)
            for title, names in halves.items()
            if (members := [cell for cell in cells if cell.dataset in names])
        ],
        notes=footnotes(cells),
        lines=listed,
        draw=partial(draw, cells) if any(cell.mean is not None for cell in cells) else None,
        narrow=[
            table(CATALOGUE[name].title, [cell for cell in cells if cell.dataset == name])
            for name in here
        ],
    )


def table(title: str, cells: Sequence[Cell]) -> Table:
    """Returns a line per system, and three columns per dataset: ours, paper, difference."""
    datasets = list(dict.fromkeys(cell.dataset for cell in cells))
    columns = ["", "Method"]
    for dataset in datasets:
        columns += [f"{CATALOGUE[dataset].title}, ours", "paper", "difference"]
    by = {(cell.title, cell.group, cell.dataset): cell for cell in cells}
    lines = []
    for group in (UNSUPERVISED, SUPERVISED, BEYOND):
        titles = dict.fromkeys(cell.title for cell in cells if cell.group == group)
        for place, name in enumerate(titles):
            line = ["" if place else group, f"**{name}**" if name == "GraphCL" else name]
            for dataset in datasets:
                cell = by.get((name, group, dataset))
                line += [ours(cell), theirs(cell), difference(cell)] if cell else ["–"] * 3
            lines.append(line)
    return Table(columns, lines, title)


def footnotes(cells: Sequence[Cell]) -> list[str]:
    """Returns the footnotes: runs, how differences are judged, failures, notes on datasets."""
    counts = [cell.runs for cell in cells if cell.runs and not cell.deterministic]
    notes = [
        f"Mean ± sample standard deviation over runs on the test nodes{runs_text(counts)}; "
        f"{ERRORS_STATED}."
    ]
    absent = dict.fromkeys(cell.dataset for cell in cells if cell.state == "absent")
    if absent:
        titles = ", ".join(CATALOGUE[name].title for name in absent)
        notes.append(f"Absent: {titles} (not on the machine that ran this).")
    notes += [
        failure_text(f"{cell.title} on {CATALOGUE[cell.dataset].title}", cell)
        for cell in cells
        if cell.failed
    ]
    on_datasets = dict.fromkeys((cell.dataset, cell.note) for cell in cells if cell.note)
    return [*notes, *(f"{CATALOGUE[dataset].title}: {note}." for dataset, note in on_datasets)]


def ours(cell: Cell) -> str:
    """Returns our score as text, or why there is none."""
    if cell.mean is None:
        return cell.state
    places = decimals(cell.dataset)
    if cell.deterministic:
        return f"{cell.mean:.{places}f} (no seed)"
    if cell.std is None:
        return f"{cell.mean:.{places}f} (one run)"
    return f"{cell.mean:.{places}f} ± {cell.std:.{places}f}"


def theirs(cell: Cell) -> str:
    """Returns the published score as text."""
    if cell.paper is None:
        return "–"
    places = decimals(cell.dataset)
    spread = f" ± {cell.paper_std:.{places}f}" if cell.paper_std is not None else ""
    return f"{cell.paper:.{places}f}{spread}"


def difference(cell: Cell) -> str:
    """Returns the difference and its judgement as text."""
    if cell.difference is None:
        return "–"
    judged = {True: "within", False: "outside", None: "n/a"}[cell.within]
    return f"{signed(cell.difference, decimals(cell.dataset))}, {judged}"


def signed(value: float, places: int) -> str:
    """Returns a number with its sign; the minus is the typographic one."""
    return f"{value:+.{places}f}".replace("-", "−")


def draw(cells: Sequence[Cell]) -> Any:
    """Draws our scores and the paper's, one panel per dataset that has any of ours."""
    lines: list[Row] = [
        {"title": cell.title, "who": who, "dataset": cell.dataset, "mean": mean, "std": std}
        for cell in cells
        if cell.mean is not None
        for who, mean, std in (
            ("ours", cell.mean, cell.std),
            ("paper", cell.paper, cell.paper_std),
        )
    ]
    return plot(lines, x="title", by="who", panel="dataset", xlabel=SCORE)


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
        demand(
            key in taken,
            f"{option('settings', key)}: none of the systems to run has this setting",
            ParameterError,
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
