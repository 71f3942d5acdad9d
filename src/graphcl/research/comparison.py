"""Systems side by side on many graphs: `graphcl compare`.

Each training gives a row per regime, the graph's splits and as many with few labels of each class
as are asked for, scored alike; `graphcl.evaluation.splits` has the protocol. Systems run
with their defaults: no setting that was chosen for a certain dataset is used, so that a graph meets
all systems out of the box.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphcl.errors import GraphError, ParameterError, RunError, counted, demand, option
from graphcl.evaluation.splits import METRICS, compare_learner, compare_probe
from graphcl.graphs.collection import labelled_fingerprint
from graphcl.graphs.graph import Graph
from graphcl.research.output import Report, Table, failure_text, plot, runs_text
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
    read,
    text,
)
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.system import (
    SplitBySplit,
    System,
    Unsupervised,
    settings_of,
)
from graphcl.research.trials import find_system, train_method

NAME = "compare"
COLUMNS = ("graph", "system", "seed", "labels")  # without `labels`: the splits of the graph
RAW = "raw"
POINT = 0.01  # a loss to raw features counts if it is larger
MEAN, DISTANCE = "Mean", "Mean distance to the best"
LOSSES = "Graphs over a point below raw features"


def read_systems(texts: Iterable[str]) -> list[System]:
    """Reads systems: ``NAME`` or ``NAME:key=value,key=value``, separated by commas.

    The label of each is the text that it was read from.

    Raises:
        ParameterError: a name or a setting is unknown, or a system knows one split alone.
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
    demand(
        wrong is None, f"compare: a setting is KEY=VALUE; got {wrong!r} in {text!r}", ParameterError
    )
    settings = {key.strip(): value.strip() for key, _, value in pairs}
    found = find_system(method)
    system = replace(found, label=text, changed={**found.changed, **settings})
    if not _is_comparable(system):
        known = ", ".join(name for name, one in SYSTEMS.items() if _is_comparable(one))
        raise ParameterError(
            f"compare: {method} learns from the labels of one split; others: {known}"
        )
    return system


def _is_comparable(system: System) -> bool:
    return isinstance(system.method(""), Unsupervised | SplitBySplit)


def compare(
    graphs: Mapping[str, Callable[[], Graph]],
    systems: Sequence[System],
    path: Path,
    *,
    seeds: Sequence[int],
    device: torch.device,
    labels: Sequence[int] = (),
    workers: int = 1,
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
        labels: numbers of labels of each class to score with too, beside the graph's splits.
        workers: processes in which systems learn that have no embedding; 1 is this one.
        budget: no training starts after this many seconds.
        on_progress: called after each training.
    """

    @lru_cache(maxsize=1)  # one graph in memory at a time
    def loaded(name: str) -> Graph:
        return graphs[name]()

    for name, contents in _contents(path, graphs, systems).items():
        demand(
            contents == {labelled_fingerprint((loaded(name),))},
            f"{path}: its rows of {name!r} are of another graph; choose another {option('out')}",
            RunError,
        )

    def job(name: str, system: System, seed: int) -> Job:
        about: Row = {"graph": name, "system": system.label, "seed": seed}
        several = {None: about} | {count: about | {"labels": count} for count in labels}
        run = partial(_scorings, several, system, partial(loaded, name), seed, device)
        return Job(f"{system.label} on {name}", tuple(several.values()), run)

    jobs = [
        job(name, system, seed)
        for place, seed in enumerate(seeds)
        for name in graphs
        for system in systems
        if place == 0 or not system.deterministic
    ]
    return execute(
        jobs,
        path,
        columns=COLUMNS,
        device=device,
        workers=workers,
        budget=budget,
        on_progress=on_progress,
    )


def _contents(
    path: Path, graphs: Mapping[str, Any], systems: Iterable[System]
) -> dict[str, set[str]]:
    """Returns the fingerprints of the graphs that rows of a file are of, by the graph's name."""
    found, labels = defaultdict[str, set[str]](set), {system.label for system in systems}
    for row in read(path):
        asked = (name := text(row, "graph")) in graphs and text(row, "system") in labels
        if asked and "content" in row:
            found[name].add(text(row, "content"))
    return found


def _scorings(
    about: Mapping[int | None, Row],
    system: System,
    load: Callable[[], Graph],
    seed: int,
    device: torch.device,
) -> Iterator[Scoring]:
    """Trains a system once and scores it in every regime; `about` has the rows of each."""
    graph, method = load(), system.method("")
    content = {"content": labelled_fingerprint((graph,))}
    if isinstance(method, SplitBySplit):
        known: Row = content | {
            "method": system.name,
            "title": system.title,
            "settings": settings_of(method),
            "runs_identical": system.deterministic,
        }
        for labels, one in about.items():
            score = partial(_learned, method, graph.flatten(), labels, seed)
            yield Scoring((one | known,), score)
        return
    trial = train_method(system, graph, seed=seed, device=device)
    about = {labels: one | content for labels, one in about.items()}
    for labels, one in about.items():
        row = trial.row | one
        if trial.embeddings is None:
            yield Scoring(({"failed": "no embeddings"} | row,))
            continue
        began = time.perf_counter()
        try:
            found = compare_probe(trial.embeddings, graph, labels=labels, device=device)
        except GraphError as error:
            yield Scoring((row | {"failed": str(error)},))
        else:
            seconds = {"probe_seconds": time.perf_counter() - began}
            yield Scoring((row | asdict(found) | seconds,))


def _learned(method: SplitBySplit, graph: Graph, labels: int | None, seed: int) -> list[Row]:
    began = time.perf_counter()
    found = compare_learner(method.learner(graph, seed=seed), graph, labels=labels)
    return [asdict(found) | {"train_seconds": time.perf_counter() - began}]


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
    """A comparison in one regime.

    Attributes:
        graphs: names of the graphs, in order.
        systems: names of the systems, in order.
        cells: by graph and system.
        overall: by system.
        common: the graphs behind `overall`.
        labels: of each class to learn from; None for the graphs' splits.
    """

    graphs: list[str]
    systems: list[str]
    cells: dict[tuple[str, str], Score]
    overall: list[Overall]
    common: list[str]
    labels: int | None = None


def summarise_rows(
    rows: Sequence[Row], systems: Sequence[str] = (), labels: int | None = None
) -> Summary:
    """Returns the summary of a comparison's rows in one regime.

    `systems` are shown in this order, first.
    """
    mine = [row for row in rows if row.get("labels") == labels]
    known: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in latest(mine, lambda row: key_of(row, COLUMNS)).values():
        known[text(row, "graph"), text(row, "system")].append(row)
    graphs = sorted({graph for graph, _ in known})
    there = [system for _, system in known]
    found = list(dict.fromkeys([*(one for one in systems if one in there), *there]))
    cells = {(g, name): _cell(g, name, known.get((g, name), [])) for g in graphs for name in found}
    common = [g for g in graphs if all(cells[g, name].mean is not None for name in found)]
    if not common:
        return Summary(graphs, found, cells, [], [], labels)
    scores = np.array([[cells[g, name].mean for g in common] for name in found], dtype=float)
    means, distances = scores.mean(axis=1), (scores.max(axis=0) - scores).mean(axis=1)
    losses: list[int | None] = [None] * len(found)
    if RAW in found:
        losses = (scores < scores[found.index(RAW)] - POINT).sum(axis=1).tolist()
    each = zip(found, means.tolist(), distances.tolist(), losses, strict=True)
    return Summary(graphs, found, cells, [Overall(*one) for one in each], common, labels)


def _cell(graph: str, system: str, rows: list[Row]) -> Score:
    scored = [row for row in rows if "failed" not in row]
    reasons = [text(row, "failed") for row in rows if "failed" in row]
    mean, std = mean_and_deviation([number(row, "score") for row in scored])
    seconds = [number(row, "train_seconds") for row in scored]
    return Score(
        graph,
        system,
        metric=text(scored[0], "metric") if scored else "",
        mean=mean,
        std=std,
        runs=len(scored),
        failed=len(reasons),
        reason=reasons[-1] if reasons else "",
        seconds=statistics.median(seconds) if scored else None,
        identical=any(row.get("runs_identical") for row in scored),
    )


def regimes(rows: Sequence[Row], systems: Sequence[str] = ()) -> list[Summary]:
    """Returns a comparison's summary in every regime that it has, the graphs' splits first."""
    counts = {int(number(row, "labels")) for row in rows if row.get("labels") is not None}
    return [summarise_rows(rows, systems, one) for one in (None, *sorted(counts, reverse=True))]


def report_of(*summaries: Summary) -> Report:
    """Returns a comparison as it is shown and written, a table per regime."""
    labelled = [({} if one.labels is None else {"labels": one.labels}, one) for one in summaries]
    cells = [about | asdict(cell) for about, one in labelled for cell in one.cells.values()]
    overall = [about | asdict(line) for about, one in labelled for line in one.overall]
    scored = any(cell.mean is not None for cell in summaries[0].cells.values())
    return Report(
        NAME,
        {"cells": cells, "overall": overall, "common": summaries[0].common},
        tables=[table(one) for one in summaries],
        notes=footnotes(*summaries),
        lines=[{"labels": None} | cell for cell in cells] if len(summaries) > 1 else cells,
        draw=partial(draw, summaries[0]) if scored else None,
    )


def footnotes(*summaries: Summary) -> list[str]:
    """Returns how to read the tables, and every failure."""
    cells = [cell for one in summaries for cell in one.cells.values()]
    runs = runs_text([cell.runs for cell in cells if cell.runs and not cell.identical])
    common = list(dict.fromkeys(counted(len(one.common), "graph") for one in summaries))
    return [
        f"In %: mean over runs{runs}, each a mean over the graph's splits, ± sample standard "
        "deviation over runs. Logistic regression on frozen embeddings, the same for all systems, "
        "its settings chosen on validation nodes. The best of each graph is bold.",
        f"The last lines are over the {' or '.join(common)} that every system was scored on.",
        *(failure_text(f"{c.system} on {c.graph}", c) for c in cells if c.failed),
    ]


def table(summary: Summary) -> Table:
    """Returns a line per graph, the best score of each in bold, then the three of `Overall`."""
    lines = []
    for graph in summary.graphs:
        cells = [summary.cells[graph, system] for system in summary.systems]
        best = max((cell.mean for cell in cells if cell.mean is not None), default=None)
        metric = next((METRICS.get(cell.metric, cell.metric) for cell in cells if cell.metric), "–")
        lines.append([graph, metric, *(score_text(cell, best) for cell in cells)])
    if overall := summary.overall:
        losses = (None if one.system == RAW else one.losses for one in overall)
        lines += [
            [MEAN, "", *(f"{100 * one.mean:.1f}" for one in overall)],
            [DISTANCE, "", *(f"{100 * one.distance:.1f}" for one in overall)],
            [LOSSES, "", *("–" if one is None else str(one) for one in losses)],
        ]
    first = "Graph" if summary.labels is None else f"{summary.labels} labels a class"
    return Table([first, "Score", *summary.systems], lines)


def score_text(cell: Score, best: float | None = None) -> str:
    """Returns a score in per cent, in bold if it is the `best`, or why there is none."""
    if cell.mean is None:
        return "failed" if cell.failed else "–"
    spread = f" ± {100 * cell.std:.1f}" if cell.std is not None else ""
    shown = f"{100 * cell.mean:.1f}{spread}"
    return f"**{shown}**" if cell.mean == best else shown


def draw(summary: Summary) -> Any:
    """Draws the score of each system on each graph, and its mean distance to the best."""
    each, points = summary.cells.values(), f"{DISTANCE}, points"
    shown: Any = [(c.graph, c, c.mean, c.std, "Each graph: score, %") for c in each]
    shown += [(one.system, one, one.distance, None, points) for one in summary.overall]
    lines: list[Row] = [
        {
            "x": x,
            "system": one.system,
            "mean": mean and 100 * mean,
            "std": std and 100 * std,
            "panel": panel,
        }
        for x, one, mean, std, panel in shown
    ]
    return plot(lines, x="x", by="system", panel="panel")
