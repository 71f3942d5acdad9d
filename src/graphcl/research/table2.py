r"""Table 2 from rows: means, deviations, how far they are from the paper's, and how that is shown.

The paper's numbers are those of Hafidi, Ghogho, Ciblat, Swami, "GraphCL: Contrastive
Self-Supervised Learning of Graph Representations", 2020, Table 2, as printed; accuracies in
percent, micro-averaged F1 as a fraction. The paper averages its own runs over 50 seeds and quotes
the numbers of other systems from their papers. Table 1 is in `graphcl.datasets.CATALOGUE`.

A difference is judged against two standard errors,

.. math:: |\bar x - x_{paper}| \le 2 \sqrt{s^2 / n + s_{paper}^2 / 50} ,

where :math:`s` is our sample deviation over :math:`n` runs. The paper's term is included if the
paper prints a deviation (over its 50 runs). A single run of a random system is not judged, nor a
difference where neither side has a deviation.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from graphcl.datasets import CATALOGUE
from graphcl.errors import RunError, counted
from graphcl.recipes import load_recipe, recipe_names
from graphcl.research.output import (
    COLOURS,
    MARKERS,
    Report,
    finish,
    markdown_table,
    new_figure,
    terminal_table,
)
from graphcl.research.rows import Json, Row, mean_and_deviation, number, text
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.graphcl import settings_of
from graphcl.research.trials import Trial

PAPER_RUNS = 50
TRANSDUCTIVE = ("cora", "citeseer", "pubmed")
INDUCTIVE = ("reddit", "ppi")

UNSUPERVISED, SUPERVISED, BEYOND = "Unsupervised", "Supervised", "Beyond the paper"


class Published(NamedTuple):
    """A published score.

    Attributes:
        mean: in the unit of the table.
        std: the deviation printed after ±, or None if there is none.
    """

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Line:
    """A line of Table 2.

    Attributes:
        name: its name for ``--methods``.
        title: its name in the table.
        group: its part of the table.
        scores: the published score by dataset.
        also: datasets that it runs on although the paper has no score for them.
    """

    name: str
    title: str
    group: str
    scores: dict[str, Published]
    also: tuple[str, ...] = ()

    @property
    def datasets(self) -> tuple[str, ...]:
        """The datasets for which the table includes this system."""
        return (*self.scores, *self.also)


# A dash stands for no number. The paper names Label Propagation among the rivals, but prints none.
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
}


def _scores(printed: str) -> dict[str, Published]:
    """Returns the scores of a line: a mean, or mean±deviation, for each dataset."""
    columns = zip((*TRANSDUCTIVE, *INDUCTIVE), printed.split(), strict=True)
    return {name: Published(*map(float, text.split("±"))) for name, text in columns if text != "-"}


TABLE_2 = (
    *(Line(*line, _scores(printed)) for line, printed in _AS_PRINTED.items()),
    Line("label-propagation", "Label Propagation", BEYOND, {}, also=TRANSDUCTIVE),
    Line("random-encoder", "Random encoder", BEYOND, {}, also=(*TRANSDUCTIVE, *INDUCTIVE)),
    Line("propagation", "Propagation, no training", BEYOND, {}, also=(*TRANSDUCTIVE, *INDUCTIVE)),
)


def lines_of(dataset: str) -> list[Line]:
    """Returns the lines of the table for one dataset, in the paper's order."""
    return [line for line in TABLE_2 if dataset in line.datasets]


def score_key(dataset: str) -> str:
    """Returns the column of a row with the score that the paper reports on `dataset`."""
    return "micro_f1" if dataset in INDUCTIVE else "accuracy"


def scale(dataset: str) -> float:
    """Returns the factor from a row's fraction to the table's unit."""
    return 1.0 if dataset in INDUCTIVE else 100.0


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


def read_trial(row: Mapping[str, Json]) -> Trial | None:
    """Returns a row as a trial; None if it is not a row of scores.

    Rows of `benchmarks.accuracy` have no method, and their settings are under ``recipe``.
    """
    is_score = "graph" in row and "seed" in row and not row.get("study")
    if not is_score or ("what" in row and not row.get("method")):
        return None
    settings = row.get("settings", row.get("recipe")) or {}
    if not isinstance(settings, Mapping):
        raise RunError(f"a row of results has no table of settings: {settings!r}")
    return Trial(
        method=text(row, "method") if row.get("method") else "graphcl",
        graph=text(row, "graph"),
        seed=int(number(row, "seed")),
        settings=settings,
        variant=text(row, "variant") if row.get("variant") else None,
        runs_identical=bool(row.get("runs_identical")),
        failed=None if "failed" not in row else str(row["failed"]),
        scores=row,  # with other columns, such as the note
    )


def assemble(
    rows: Iterable[Mapping[str, Json]],
    *,
    datasets: Sequence[str],
    methods: Sequence[str] | None = None,
    absent: Sequence[str] = (),
) -> list[Cell]:
    """Returns the cells of Table 2, by dataset and in the paper's order.

    If a system was measured with several settings, the shipped ones count, or else the last.

    Args:
        rows: rows of any scripts; those without scores are skipped.
        datasets: the datasets to show.
        methods: the systems to show; None shows all.
        absent: datasets that are not on this machine; cells without rows are marked so.
    """
    trials: dict[tuple[str, str, str], list[Trial]] = defaultdict(list)
    for trial in map(read_trial, rows):
        if trial is not None:
            trials[trial.method, trial.graph, trial.variant or ""].append(trial)
    cells = []
    for dataset in datasets:
        lines = [(system, "") for system in lines_of(dataset)]
        lines += [
            (_variant(method, variant, dataset), variant)
            for method, graph, variant in trials
            if graph == dataset and (variant or method not in {system.name for system, _ in lines})
        ]
        for system, variant in lines:
            if methods is None or system.name in methods:
                found = trials.get((system.name, dataset, variant), [])
                cells.append(_cell(system, dataset, _chosen(found), absent=dataset in absent))
    return cells


def _variant(method: str, variant: str, dataset: str) -> Line:
    """Returns a line for a system, or a recipe of GraphCL, that the paper does not have."""
    known = [line.title for line in TABLE_2 if line.name == method]
    known += [SYSTEMS[method].title] if method in SYSTEMS else []
    title = (known[0] if known else method) + (f", recipe {variant}" if variant else "")
    return Line(method, title, BEYOND, {}, also=(dataset,))


def _chosen(found: list[Trial]) -> list[Trial]:
    """Returns the last trial of each seed with the shipped settings, or else with the newest."""
    if not found:
        return []
    shipped = [trial for trial in found if _is_shipped(trial)]
    if not shipped:
        last = found[-1].settings
        shipped = [trial for trial in found if trial.settings == last]
    return list({trial.seed: trial for trial in shipped}.values())


def _is_shipped(trial: Trial) -> bool:
    """Whether a trial has the settings that this version would use on its dataset.

    Keys that the row does not have, because they were added later, are not compared.
    """
    name = trial.variant or trial.graph
    if trial.method not in SYSTEMS or (trial.method == "graphcl" and name not in recipe_names()):
        return False
    ours: Row = (
        asdict(load_recipe(name))
        if trial.variant
        else settings_of(SYSTEMS[trial.method].method(trial.graph))
    )
    return all(_plain(ours.get(key)) == _plain(value) for key, value in trial.settings.items())


def _plain(value: Json) -> Json:
    return list(value) if isinstance(value, tuple) else value


def _cell(system: Line, dataset: str, trials: list[Trial], *, absent: bool) -> Cell:
    paper = system.scores.get(dataset)
    cell = Cell(
        method=system.name,
        title=system.title,
        group=system.group,
        dataset=dataset,
        paper=paper and paper.mean,
        paper_std=paper and paper.std,
    )
    if not trials:
        return replace(cell, state="absent") if absent else cell
    key, factor = score_key(dataset), scale(dataset)
    scored = [trial for trial in trials if trial.failed is None and key in trial.scores]
    values = [factor * number(trial.scores, key) for trial in scored]
    reasons = Counter(trial.failed for trial in trials if trial.failed is not None)
    notes = (trial.scores.get("note") for trial in trials)
    cell = replace(
        cell,
        failed=sum(reasons.values()),
        reason=reasons.most_common(1)[0][0] if reasons else "",
        note=next((str(note) for note in notes if note), ""),
    )
    if not values:
        return replace(cell, state="failed")
    fixed = any(trial.runs_identical for trial in trials)
    mean, std = mean_and_deviation(values)
    return replace(
        cell,
        state="measured",
        runs=len(values),
        deterministic=fixed,
        mean=mean,
        std=0.0 if std is None and fixed else std,
    )


def table_2_report(cells: Sequence[Cell], absent: Sequence[str]) -> Report:
    """Returns Table 2 as `graphcl reproduce` shows and writes it."""
    listed = [cell.as_row() for cell in cells]
    measured = any(cell.mean is not None for cell in cells)
    return Report(
        "table2",
        {"cells": listed, "absent": list(absent)},
        terminal=lambda width: terminal(cells, width=width),
        markdown=markdown(cells),
        lines=listed,
        draw=partial(draw, cells) if measured else None,
    )


def tasks(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """Returns the cells of the table's two halves by their heading; an empty half is left out."""
    halves = {
        "Transductive: accuracy in %": TRANSDUCTIVE,
        "Inductive: micro-averaged F1": INDUCTIVE,
    }
    return {
        heading: members
        for heading, names in halves.items()
        if (members := [cell for cell in cells if cell.dataset in names])
    }


def markdown(cells: Sequence[Cell]) -> str:
    """Returns Table 2, one line per system and three columns per dataset: ours, paper, difference.

    Footnotes explain how differences are judged, and any notes on scores.
    """
    parts = []
    for heading, members in tasks(cells).items():
        datasets = list(dict.fromkeys(cell.dataset for cell in members))
        columns = ["", "Method"]
        for dataset in datasets:
            columns += [f"{CATALOGUE[dataset].title}, ours", "paper", "difference"]
        by = {(cell.title, cell.group, cell.dataset): cell for cell in members}
        lines = []
        for group in (UNSUPERVISED, SUPERVISED, BEYOND):
            titles = dict.fromkeys(cell.title for cell in members if cell.group == group)
            for place, title in enumerate(titles):
                line = [group if place == 0 else "", _bold(title)]
                for dataset in datasets:
                    cell = by.get((title, group, dataset))
                    line += [ours(cell), theirs(cell), difference(cell)] if cell else ["–"] * 3
                lines.append(line)
        parts.append(f"**{heading}**\n\n{markdown_table(columns, lines)}")
    return "\n\n".join([*parts, *footnotes(cells)]) + "\n"


def footnotes(cells: Sequence[Cell]) -> list[str]:
    """Returns the footnotes: runs, how differences are judged, failures, notes on datasets."""
    runs = sorted({cell.runs for cell in cells if cell.runs and not cell.deterministic})
    notes = [
        "Mean ± sample standard deviation over runs on the test nodes"
        + (f" ({_span(runs)} {'run' if runs[-1] == 1 else 'runs'})" if runs else "")
        + "; "
        + ERRORS_STATED
        + "."
    ]
    absent = dict.fromkeys(cell.dataset for cell in cells if cell.state == "absent")
    if absent:
        titles = ", ".join(CATALOGUE[name].title for name in absent)
        notes.append(f"Absent: {titles} (not on the machine that ran this).")
    for cell in cells:
        if cell.failed:
            of = cell.failed + cell.runs
            name = f"{cell.title} on {CATALOGUE[cell.dataset].title}"
            notes.append(f"{name}: {cell.failed} of {counted(of, 'run')} failed ({cell.reason}).")
    on_datasets = dict.fromkeys((cell.dataset, cell.note) for cell in cells if cell.note)
    notes += [f"{CATALOGUE[dataset].title}: {note}." for dataset, note in on_datasets]
    return notes


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
    return f"{signed(cell.difference, decimals(cell.dataset))}, {judged(cell)}"


def judged(cell: Cell) -> str:
    """Returns ``within``, ``outside`` or ``n/a``."""
    return {True: "within", False: "outside", None: "n/a"}[cell.within]


def signed(value: float, places: int) -> str:
    """Returns a number with its sign; the minus is the typographic one."""
    return f"{value:+.{places}f}".replace("-", "−")


def terminal(cells: Sequence[Cell], *, width: int | None = None) -> str:
    """Returns one table per dataset, narrow enough for a terminal."""
    parts = []
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        members = [cell for cell in cells if cell.dataset == dataset]
        title = CATALOGUE[dataset].title
        if all(cell.state == "absent" for cell in members):
            parts.append(f"{title}: absent (not on this machine; see graphcl datasets)")
            continue
        lines = [
            [
                cell.title,
                cell.group,
                ours(cell),
                f"{cell.runs}" + (f" ({cell.failed} failed)" if cell.failed else ""),
                theirs(cell),
                signed(cell.difference, decimals(dataset)) if cell.difference is not None else "–",
                judged(cell) if cell.difference is not None else "–",
            ]
            for cell in members
        ]
        columns = ("Method", "", "Ours", "Runs", "Paper", "Difference", "Two errors")
        parts.append(terminal_table(title, columns, lines, width=width))
    return "\n".join([*parts, *footnotes(cells)])


def _bold(title: str) -> str:
    return f"**{title}**" if title == "GraphCL" else title


def _span(values: Sequence[int]) -> str:
    return f"{values[0]}" if len(values) == 1 else f"{values[0]} to {values[-1]}"


def draw(cells: Sequence[Cell]) -> Any:
    """Draws our scores and the paper's, one panel per dataset that has any."""
    shown = [cell for cell in cells if cell.mean is not None]
    datasets = list(dict.fromkeys(cell.dataset for cell in shown)) or [cells[0].dataset]
    members = {name: [c for c in shown if c.dataset == name][::-1] for name in datasets}
    tallest = max(len(found) for found in members.values())
    figure, axes = new_figure(
        4.2 * len(datasets) + 1.5, 1.4 + 0.36 * max(tallest, 2), len(datasets)
    )
    for axis, dataset in zip(axes, datasets, strict=True):
        found = members[dataset]
        places = np.arange(len(found))
        cited = [(place, cell) for place, cell in zip(places, found, strict=True) if cell.paper]
        sides = (
            ("ours", places + 0.13, [(cell.mean, cell.std) for cell in found]),
            (
                "paper",
                [place - 0.13 for place, _ in cited],
                [(cell.paper, cell.paper_std) for _, cell in cited],
            ),
        )
        for index, (label, y, scores) in enumerate(sides):
            x, error = [mean for mean, _ in scores], [std or 0 for _, std in scores]
            style = {"fmt": MARKERS[index], "color": COLOURS[index], "markersize": 5}
            axis.errorbar(x, y, xerr=error, capsize=2, label=label, lw=1.2, **style)
        unit = "accuracy, %" if decimals(dataset) == 1 else "micro-averaged F1"
        axis.set(title=CATALOGUE[dataset].title, xlabel=unit, yticks=places)
        axis.set_yticklabels([cell.title for cell in found])
        axis.set_ylim(-0.6, max(len(found), 1) - 0.4)
        finish(axis)
    axes[0].legend(frameon=False, fontsize=9)
    return figure
