"""What rows of a comparison say: a score per graph and system, and how each system does overall."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from graphcl.research.gallery.comparison import COLUMNS, RAW
from graphcl.research.trials.rows import Row, latest, number, text
from graphcl.research.trials.runner import key_of

POINT = 0.01  # a loss to raw features counts if it is larger


@dataclass(frozen=True)
class Cell:
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

    cells: tuple[Cell, ...]
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

    def cell(self, graph: str, system: str) -> Cell:
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


def _cell(graph: str, system: str, rows: list[Row]) -> Cell:
    scored = [row for row in rows if "failed" not in row]
    failed = [row for row in rows if "failed" in row]
    reason = text(failed[-1], "failed") if failed else ""
    if not scored:
        return Cell(graph, system, failed=len(failed), reason=reason)
    values = [number(row, "score") for row in scored]
    seconds = [number(row, "train_seconds") for row in scored]
    return Cell(
        graph,
        system,
        metric=text(scored[0], "metric"),
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else None,
        runs=len(values),
        failed=len(failed),
        reason=reason,
        seconds=statistics.median(seconds),
        identical=bool(scored[0].get("runs_identical")),
    )
