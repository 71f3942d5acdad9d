"""Scores of `benchmarks.gallery` by system and graph, and ours against another's."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from scipy.stats import wilcoxon

from graphcl.research import rows
from graphcl.research.comparison import COLUMNS, POINT
from graphcl.research.rows import Row, key_of, number, text

OURS = "graphcl"
MOST = 0.8  # of the graphs: a system with fewer stands in a table of its own
REGIMES = {
    None: "Published splits, else 10 %",
    20: "20 labels a class",
    5: "5 labels a class",
}

Rows = Sequence[Row]
Scores = dict[str, dict[str, float]]  # by system, then by graph


class Against(NamedTuple):
    """Ours against one rival on the graphs that both have; gains in points."""

    graphs: int
    mean: float
    median: float
    ahead: int
    p: float | None


def scores(found: Iterable[Row], labels: int | None = None) -> Scores:
    """Returns the mean score over seeds of each system on each graph, in one regime."""
    each: dict[str, dict[str, list[float]]] = {}
    mine = (row for row in found if row.get("labels") == labels and "failed" not in row)
    for row in rows.latest(mine, lambda row: key_of(row, COLUMNS)).values():
        graphs = each.setdefault(text(row, "system"), {})
        graphs.setdefault(text(row, "graph"), []).append(number(row, "score"))
    return {name: {g: fmean(v) for g, v in graphs.items()} for name, graphs in each.items()}


def against(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Against:
    """Compares on the graphs that both have; p is that of Wilcoxon's paired test, two-sided."""
    gains = [100 * (ours[graph] - theirs[graph]) for graph in sorted(ours.keys() & theirs.keys())]
    p = float(wilcoxon(gains).pvalue) if any(gains) else None
    return Against(len(gains), fmean(gains), median(gains), sum(one > 0 for one in gains), p)


def below_raw(mine: Mapping[str, float], raw: Mapping[str, float]) -> int:
    """Counts the graphs where it is over a point below the raw features."""
    return sum(mine[graph] < raw[graph] - POINT for graph in mine.keys() & raw.keys())


def signed(points: float) -> str:
    """Returns points with their sign."""
    return f"{points:+.1f}".replace("-", "−")


def short(labels: int | None) -> str:
    return "splits" if labels is None else f"{labels} labels"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
