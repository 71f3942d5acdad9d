r"""Table 2 from rows: means, deviations, and how far they are from the paper's.

A difference is judged against two standard errors,

.. math:: |\bar x - x_{paper}| \le 2 \sqrt{s^2 / n + s_{paper}^2 / 50} ,

where :math:`s` is our sample deviation over :math:`n` runs; the paper's term is there where the
paper prints a deviation (over its 50 runs). With one run of a random system, or where neither side
has a deviation, nothing is judged.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from graphcl.baselines import BASELINES
from graphcl.paper.published import (
    BEYOND,
    INDUCTIVE,
    PAPER_RUNS,
    TABLE_2,
    TRANSDUCTIVE,
    UNSUPERVISED,
    Published,
    System,
    scale,
    score_key,
    systems,
)
from graphcl.recipes import load_recipe, recipe_names
from graphcl.trials.rows import Row

ERRORS_STATED = (
    "within: |ours − paper| ≤ 2 standard errors, √(s²/n + s_paper²/50) with our deviation s over n "
    "runs, and the paper's where it prints one (50 runs), else ours alone; "
    "n/a: no deviation to judge by"
)
# How benchmarks/ppi.py names what it measures.
_WHAT = {"trained": "graphcl", "random encoder": "random-encoder", "raw features": "raw"}


@dataclass(frozen=True)
class Cell:
    """One system on one dataset, ours beside the paper's.

    Attributes:
        method: the system's name.
        title: what the table calls it.
        group: the part of the table.
        dataset: the dataset's name.
        state: ``measured``, ``not measured``, ``failed`` (every run) or ``absent`` (no data here).
        runs: runs that gave a score.
        failed: runs that did not.
        deterministic: whether every seed gives this result, so that one run is all there is.
        mean: in the table's unit, or None.
        std: the sample's deviation, or None for one run of a random system.
        paper: the published mean, or None.
        paper_std: its deviation, or None.
        note: what must be said beside the score.
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
        """Two standard errors of the difference; None where there is nothing to judge by."""
        if self.difference is None or self.std is None:
            return None
        ours = self.std**2 / self.runs
        theirs = self.paper_std**2 / PAPER_RUNS if self.paper_std is not None else 0.0
        return 2 * math.sqrt(ours + theirs) or None

    @property
    def within(self) -> bool | None:
        """Whether the difference lies within two standard errors; None: not judged."""
        if self.difference is None or self.two_errors is None:
            return None
        return abs(self.difference) <= self.two_errors

    def as_row(self) -> Row:
        """Returns fields and derived figures as plain values."""
        derived = {name: getattr(self, name) for name in ("difference", "two_errors", "within")}
        return asdict(self) | derived


def normalised(row: Mapping[str, Any]) -> Row | None:
    """Returns a row with ``method``, ``graph``, ``settings`` and ``variant``; None: no score row.

    Rows of GraphCL come from several scripts: those of one recipe over many seeds name no method,
    those on PPI say ``what`` was measured.
    """
    if "graph" not in row or "seed" not in row or row.get("study"):
        return None
    method = row.get("method") or _WHAT.get(row.get("what", "trained"))
    if method is None:
        return None
    settings = row.get("settings", row.get("recipe")) or {}
    if "method" not in row and method != "graphcl":
        settings = {}  # the row tells the recipe of the encoder that it stands beside
    named = row.get("recipe_name", row["graph"])
    if method == "random-encoder" and named != row["graph"]:
        return None  # the encoder of a recipe that is not the paper's
    variant = named if method == "graphcl" and named != row["graph"] else ""
    return {**row, "method": method, "settings": settings, "variant": variant}


def assemble(
    rows: Iterable[Mapping[str, Any]],
    *,
    datasets: Sequence[str],
    methods: Sequence[str] | None = None,
    absent: Sequence[str] = (),
) -> list[Cell]:
    """Returns the cells of Table 2, by dataset and in the paper's order.

    Where a system was measured with several settings, the shipped ones count, else the last.

    Args:
        rows: of any scripts; others than scores are passed over.
        datasets: those to show.
        methods: those to show; None shows all.
        absent: datasets that are not on this machine; shown so where no row is there.
    """
    by: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in map(normalised, rows):
        if row is not None:
            by[row["method"], row["graph"], row["variant"]].append(row)
    cells = []
    for dataset in datasets:
        lines = [(system, "") for system in systems(dataset)]
        lines += [
            (_variant(method, variant, dataset), variant)
            for method, graph, variant in by
            if graph == dataset and (variant or method not in {system.name for system, _ in lines})
        ]
        for system, variant in lines:
            if methods is None or system.name in methods:
                found = by.get((system.name, dataset, variant), [])
                cells.append(_cell(system, dataset, _chosen(found), absent=dataset in absent))
    return cells


def _variant(method: str, variant: str, dataset: str) -> System:
    """Returns a line for a system, or a recipe of ours, that the paper does not have."""
    known = [system.title for system in TABLE_2 if system.name == method]
    known += [BASELINES[method].title] if method in BASELINES else []
    title = (known[0] if known else method) + (f", recipe {variant}" if variant else "")
    return System(method, title, BEYOND, {}, also=(dataset,))


def _chosen(found: list[Row]) -> list[Row]:
    """Returns the rows of one setting, the last row of each seed: shipped settings, else newest."""
    if not found:
        return []
    shipped = [row for row in found if _is_shipped(row)]
    if not shipped:
        last = found[-1]["settings"]
        shipped = [row for row in found if row["settings"] == last]
    return list({row["seed"]: row for row in shipped}.values())


def _is_shipped(row: Row) -> bool:
    """Whether a row's settings are what this version would run on its dataset.

    Keys that the row does not record, because they came later, do not count against it.
    """
    method, dataset = row["method"], row["graph"]
    if method == "graphcl":
        name = row["variant"] or dataset
        if name not in recipe_names():
            return False
        ours: dict[str, Any] = asdict(load_recipe(name))
    elif method in BASELINES:
        ours = vars(BASELINES[method].method(dataset))
    else:
        return False
    return all(_plain(ours.get(key)) == _plain(value) for key, value in row["settings"].items())


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _cell(system: System, dataset: str, rows: list[Row], *, absent: bool) -> Cell:
    paper = system.scores.get(dataset, Published(math.nan))
    cited = {"paper": None if math.isnan(paper.mean) else paper.mean, "paper_std": paper.std}
    about: dict[str, Any] = {
        "method": system.name,
        "title": system.title,
        "group": system.group,
        "dataset": dataset,
        **cited,
    }
    if not rows:
        return Cell(**about, state="absent" if absent else "not measured")
    key, factor = score_key(dataset), scale(dataset)
    values = [factor * row[key] for row in rows if "failed" not in row and key in row]
    reasons = Counter(str(row["failed"]) for row in rows if "failed" in row)
    about |= {
        "failed": sum(reasons.values()),
        "reason": reasons.most_common(1)[0][0] if reasons else "",
        "note": next((row["note"] for row in rows if row.get("note")), ""),
    }
    if not values:
        return Cell(**about, state="failed")
    # A row without a seed comes from what has none.
    fixed = any(row.get("runs_identical") or row["seed"] is None for row in rows)
    spread = statistics.stdev(values) if len(values) > 1 else (0.0 if fixed else None)
    return Cell(
        **about,
        state="measured",
        runs=len(values),
        deterministic=fixed,
        mean=statistics.fmean(values),
        std=spread,
    )


def rank_of(method: str, cells: Sequence[Cell], dataset: str) -> tuple[int, list[str]] | None:
    """Returns a system's place among the paper's unsupervised ones, and those it is tied with.

    Two systems are tied where their means differ by no more than two standard errors of the
    difference. None where the system was not measured.
    """
    rivals = [
        cell
        for cell in cells
        if cell.dataset == dataset and cell.group == UNSUPERVISED and cell.mean is not None
    ]
    mine = next((cell for cell in rivals if cell.method == method), None)
    if mine is None or mine.mean is None:
        return None
    better = [cell for cell in rivals if cell.mean is not None and cell.mean > mine.mean]
    tied = [cell.title for cell in rivals if cell is not mine and _tied(mine, cell)]
    return len(better) + 1, tied


def _tied(one: Cell, other: Cell) -> bool:
    if one.mean is None or other.mean is None:
        return False
    error = math.sqrt(sum((cell.std or 0.0) ** 2 / cell.runs for cell in (one, other)))
    return abs(one.mean - other.mean) <= 2 * error


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
