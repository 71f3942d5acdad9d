"""Systems side by side on many graphs: `graphcl compare`.

Each training gives one row, scored alike; `graphcl.evaluation.splits` has the protocol. Systems run
with their defaults: no setting that was chosen for a certain dataset is used, so that a graph meets
all systems out of the box.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphcl.errors import GraphError, ParameterError, counted
from graphcl.evaluation.splits import METRICS, compare_probe
from graphcl.graphs.graph import Graph
from graphcl.research.output import (
    COLOURS,
    MARKERS,
    Report,
    finish,
    latex_table,
    latex_text,
    markdown_table,
    new_figure,
    terminal_table,
)
from graphcl.research.rows import (
    Job,
    Progress,
    Row,
    Scoring,
    execute,
    key_of,
    latest,
    mean_and_deviation,
    number,
    text,
)
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.system import System, is_unsupervised
from graphcl.research.trials import find_system, train_method

NAME = "compare"
COLUMNS = ("graph", "system", "seed")
RAW = "raw"
POINT = 0.01  # a loss to raw features counts if it is larger
MEAN, DISTANCE = "Mean", "Mean distance to the best"
LOSSES = "Graphs over a point below raw features"


def read_systems(texts: Iterable[str]) -> list[System]:
    """Reads systems: ``NAME`` or ``NAME:key=value,key=value``, separated by commas.

    The label of each is the text that it was read from.

    Raises:
        ParameterError: a name or a setting is unknown, or a system predicts labels itself.
    """
    parts: list[str] = []
    for piece in (piece.strip() for given in texts for piece in given.split(",")):
        if "=" in piece and ":" not in piece and parts:
            parts[-1] += f",{piece}"  # another setting of the same system
        elif piece:
            parts.append(piece)
    return [_read_system(text) for text in dict.fromkeys(parts)]


def _read_system(text: str) -> System:
    method, _, listed = text.partition(":")
    pairs = [pair.partition("=") for pair in listed.split(",") if pair]
    wrong = next((key for key, equals, _ in pairs if not equals), None)
    if wrong is not None:
        raise ParameterError(f"compare: a setting is KEY=VALUE; got {wrong!r} in {text!r}")
    settings = {key.strip(): value.strip() for key, _, value in pairs}
    system = replace(find_system(method), label=text, changed=settings)
    if not is_unsupervised(system.method("")):
        known = ", ".join(embedding_methods())
        raise ParameterError(
            f"compare: {method} predicts labels itself; systems that embed: {known}"
        )
    return system


def embedding_methods() -> list[str]:
    """Returns the names of the systems that embed, ours first."""
    return [name for name, system in SYSTEMS.items() if is_unsupervised(system.method(""))]


def compare(
    graphs: Mapping[str, Callable[[], Graph]],
    systems: Sequence[System],
    path: Path,
    *,
    seeds: Sequence[int],
    device: torch.device,
    budget: float = float("inf"),
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> list[Row]:
    """Trains and scores what `path` does not hold yet, and returns all rows asked for.

    A failed training or scoring is a row with the reason under ``failed``; a later call tries it
    again. Rows of all graphs and systems come before those of the next seed, so that an interrupted
    comparison is even.

    Args:
        graphs: a function that loads each graph, by name.
        systems: of `read_systems`.
        path: the file of rows.
        seeds: of the trainings; a deterministic system takes the first alone.
        device: trains and probes.
        budget: no training starts after this many seconds.
        on_progress: called after each training.
    """

    @lru_cache(maxsize=1)  # one graph in memory at a time
    def loaded(name: str) -> Graph:
        return graphs[name]()

    def job(name: str, system: System, seed: int) -> Job:
        about: Row = {"graph": name, "system": system.label, "seed": seed}

        def run() -> Iterator[Scoring]:
            yield _trained_and_scored(about, system, loaded(name), seed=seed, device=device)

        return Job(f"{system.label} on {name}", (about,), run)

    jobs = [
        job(name, system, seed)
        for place, seed in enumerate(seeds)
        for name in graphs
        for system in systems
        if place == 0 or not system.deterministic
    ]
    return execute(
        jobs, path, columns=COLUMNS, device=device, budget=budget, on_progress=on_progress
    )


def _trained_and_scored(
    about: Row, system: System, graph: Graph, *, seed: int, device: torch.device
) -> Scoring:
    trial = train_method(system, graph, seed=seed, device=device)
    row = trial.to_json() | about
    if trial.embeddings is None:
        return Scoring((row | {"failed": trial.failed or "no embeddings"},))
    began = time.perf_counter()
    try:
        scores: Row = asdict(compare_probe(trial.embeddings, graph, device=device))
    except GraphError as error:
        return Scoring((row | {"failed": str(error)},))
    return Scoring((row | scores | {"probe_seconds": time.perf_counter() - began},))


@dataclass(frozen=True)
class Score:
    """One system on one graph.

    Attributes:
        graph: the graph's name.
        system: the system's name.
        metric: what `mean` measures.
        mean: mean score over runs; None if all failed.
        std: sample deviation over runs; None for fewer than two.
        runs: runs that were scored.
        failed: runs that failed.
        reason: why the last of them failed.
        seconds: median duration of a training.
        identical: whether every seed gives the same score.
    """

    graph: str
    system: str
    metric: str = ""
    mean: float | None = None
    std: float | None = None
    runs: int = 0
    failed: int = 0
    reason: str = ""
    seconds: float | None = None
    identical: bool = False


@dataclass(frozen=True)
class Overall:
    """One system on all graphs that every system was scored on.

    Attributes:
        system: its name.
        mean: mean of its scores.
        distance: mean distance to the best system of each graph.
        losses: graphs where it is more than a point below raw features; None without raw features.
    """

    system: str
    mean: float
    distance: float
    losses: int | None


@dataclass(frozen=True)
class Summary:
    """A comparison: `cells` by graph, then by system, `overall`, and the graphs behind it."""

    cells: tuple[Score, ...]
    overall: tuple[Overall, ...]
    common: tuple[str, ...]

    @property
    def graphs(self) -> list[str]:
        """Names of the graphs, in order."""
        return list(dict.fromkeys(cell.graph for cell in self.cells))

    @property
    def systems(self) -> list[str]:
        """Names of the systems, in order."""
        return list(dict.fromkeys(cell.system for cell in self.cells))

    def cell(self, graph: str, system: str) -> Score:
        """Returns one cell."""
        return next(c for c in self.cells if (c.graph, c.system) == (graph, system))


def summarise_rows(rows: Sequence[Row], systems: Sequence[str] = ()) -> Summary:
    """Returns the summary of a comparison's rows; `systems` are shown in this order, first."""
    known = list(latest(rows, lambda row: key_of(row, COLUMNS)).values())
    graphs = sorted({text(row, "graph") for row in known})
    found = [name for name in systems if any(row["system"] == name for row in known)]
    found += [
        name for name in dict.fromkeys(text(row, "system") for row in known) if name not in found
    ]
    cells = [
        _cell(graph, system, [r for r in known if (r["graph"], r["system"]) == (graph, system)])
        for graph in graphs
        for system in found
    ]
    scores = {(c.graph, c.system): c.mean for c in cells if c.mean is not None}
    common = [graph for graph in graphs if all((graph, name) in scores for name in found)]
    best = {graph: max(scores[graph, name] for name in found) for graph in common}
    overall = []
    for name in found if common else ():
        mine = [scores[graph, name] for graph in common]
        raw = [scores[graph, RAW] for graph in common] if RAW in found else None
        overall.append(
            Overall(
                system=name,
                mean=statistics.fmean(mine),
                distance=statistics.fmean(best[graph] - scores[graph, name] for graph in common),
                losses=None
                if raw is None
                else sum(ours < theirs - POINT for ours, theirs in zip(mine, raw, strict=True)),
            )
        )
    return Summary(tuple(cells), tuple(overall), tuple(common))


def _cell(graph: str, system: str, rows: list[Row]) -> Score:
    scored = [row for row in rows if "failed" not in row]
    failed = [row for row in rows if "failed" in row]
    reason = text(failed[-1], "failed") if failed else ""
    if not scored:
        return Score(graph, system, failed=len(failed), reason=reason)
    values = [number(row, "score") for row in scored]
    seconds = [number(row, "train_seconds") for row in scored]
    mean, std = mean_and_deviation(values)
    return Score(
        graph,
        system,
        metric=text(scored[0], "metric"),
        mean=mean,
        std=std,
        runs=len(values),
        failed=len(failed),
        reason=reason,
        seconds=statistics.median(seconds),
        identical=bool(scored[0].get("runs_identical")),
    )


def comparison_report(rows: Sequence[Row], systems: Sequence[str] = ()) -> Report:
    """Returns a comparison's rows as `graphcl compare` shows and writes them."""
    summary = summarise_rows(rows, systems)
    scored = any(cell.mean is not None for cell in summary.cells)
    cells = [asdict(cell) for cell in summary.cells]
    overall = [asdict(one) for one in summary.overall]
    return Report(
        NAME,
        {"cells": cells, "overall": overall, "common": list(summary.common)},
        terminal=lambda width: terminal(summary, width=width),
        markdown=markdown(summary, picture=f"{NAME}.png" if scored else ""),
        lines=cells,
        latex=latex(summary),
        draw=partial(draw, summary) if scored else None,
    )


def markdown(summary: Summary, *, picture: str = "") -> str:
    """Returns the table with its footnotes, and the picture if there is one."""
    columns, lines = _lines(summary, bold="**{}**")
    parts = [f"![Score per graph and system]({picture})"] if picture else []
    return "\n\n".join([*parts, markdown_table(columns, lines), *footnotes(summary)]) + "\n"


def terminal(summary: Summary, *, width: int | None = None) -> str:
    """Returns the table for a terminal: a line per system, as there may be many graphs."""
    lines = []
    for one in summary.overall:
        losses = "–" if one.losses is None else str(one.losses)
        lines.append([one.system, "", _percent(one.mean), f"{100 * one.distance:.1f}", losses])
    overall = terminal_table(
        f"{counted(len(summary.common), 'graph')} that every system was scored on",
        ("System", "", "Mean", "Distance to the best", "Over a point below raw"),
        lines,
        width=width,
    )
    columns, each = _lines(summary, bold="{}")
    lines = each[: len(summary.graphs)]
    table = terminal_table("Score, %", columns, lines, width=width)
    return "\n".join([table, *([overall] if summary.overall else []), *footnotes(summary)])


def latex(summary: Summary) -> str:
    """Returns a `tabular` in the style of the package booktabs."""
    columns, lines = _lines(summary, bold=r"\textbf{{{}}}", escape=latex_text)
    return latex_table(columns, lines, rule_after=len(summary.graphs))


def footnotes(summary: Summary) -> list[str]:
    """Returns how to read the table, and every failure."""
    count = len(summary.common)
    spread = sorted({cell.runs for cell in summary.cells if cell.runs and not cell.identical})
    runs = ""
    if spread:
        count_text = "–".join(str(value) for value in dict.fromkeys((spread[0], spread[-1])))
        runs = f" ({count_text} {'run' if spread[-1] == 1 else 'runs'})"
    notes = [
        f"In %: mean over runs{runs}, each a mean over the graph's splits, ± sample standard "
        "deviation over runs. Logistic regression on frozen embeddings, the same for all systems, "
        "its strength chosen on validation nodes. The best of each graph is bold.",
        f"The last lines are over the {counted(count, 'graph')} that every system was scored on.",
    ]
    failed = [cell for cell in summary.cells if cell.failed]
    for cell in failed:
        of = cell.failed + cell.runs
        notes.append(
            f"{cell.system} on {cell.graph}: {cell.failed} of {counted(of, 'run')} failed "
            f"({cell.reason})."
        )
    return notes


def _lines(
    summary: Summary, *, bold: str, escape: Any = lambda text: text
) -> tuple[list[str], list[list[str]]]:
    """Returns columns, and lines: one per graph, then the three of `Overall`."""
    lines = []
    for graph in summary.graphs:
        cells = [summary.cell(graph, system) for system in summary.systems]
        means = [cell.mean for cell in cells if cell.mean is not None]
        metric = next((METRICS.get(cell.metric, cell.metric) for cell in cells if cell.metric), "–")
        line = [escape(graph), escape(metric)]
        for cell in cells:
            best = bool(means) and cell.mean == max(means)
            shown = escape(_score(cell))
            line.append(bold.format(shown) if best else shown)
        lines.append(line)
    if summary.overall:
        lines.append([MEAN, "", *(_percent(one.mean) for one in summary.overall)])
        lines.append([DISTANCE, "", *(f"{100 * one.distance:.1f}" for one in summary.overall)])
        losses = ["–" if one.losses is None else str(one.losses) for one in summary.overall]
        lines.append(
            [
                LOSSES,
                "",
                *(
                    "–" if one.system == RAW else text
                    for one, text in zip(summary.overall, losses, strict=True)
                ),
            ]
        )
    return ["Graph", "Score", *summary.systems], lines


def _score(cell: Score) -> str:
    if cell.mean is None:
        return "failed" if cell.failed else "–"
    spread = f" ± {100 * cell.std:.1f}" if cell.std is not None else ""
    return f"{_percent(cell.mean)}{spread}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def draw(summary: Summary) -> Any:
    """Draws the score of each system on each graph, and its mean distance to the best."""
    graphs, systems = summary.graphs[::-1], summary.systems
    figure, (left, right) = new_figure(12, 1.6 + 0.3 * max(len(graphs), len(systems)), 2)
    for place, system in enumerate(systems):
        cells = [summary.cell(graph, system) for graph in graphs]
        shown = [(100 * c.mean, line) for line, c in enumerate(cells) if c.mean is not None]
        if not shown:
            continue
        x, y = zip(*shown, strict=True)
        marker = MARKERS[(place + place // len(COLOURS)) % len(MARKERS)]
        style = {"color": COLOURS[place % len(COLOURS)], "marker": marker, "s": 28, "alpha": 0.85}
        left.scatter(x, y, label=system, **style)
    left.set(xlabel="score, %", yticks=np.arange(len(graphs)), title="Each graph")
    left.set_yticklabels(graphs)
    finish(left)
    ordered = sorted(summary.overall, key=lambda one: -one.distance)
    places = np.arange(len(ordered))
    colours = [COLOURS[systems.index(one.system) % len(COLOURS)] for one in ordered]
    right.barh(places, [100 * one.distance for one in ordered], color=colours)
    right.set(xlabel="mean distance to the best, points", yticks=places)
    right.set(
        title=f"All of {counted(len(summary.common), 'graph')} that every system was scored on"
    )
    right.set_yticklabels([one.system for one in ordered])
    finish(right)
    figure.legend(
        *left.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=5,
        frameon=False,
        fontsize=8,
    )
    return figure
