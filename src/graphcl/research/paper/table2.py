r"""Table 2 from rows: means, deviations, and how far they are from the paper's.

A difference is judged against two standard errors,

.. math:: |\bar x - x_{paper}| \le 2 \sqrt{s^2 / n + s_{paper}^2 / 50} ,

where :math:`s` is our sample deviation over :math:`n` runs. The paper's term is included if the
paper prints a deviation (over its 50 runs). A single run of a random system is not judged, nor a
difference where neither side has a deviation.
"""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from graphcl.errors import RunError
from graphcl.recipes import load_recipe, recipe_names
from graphcl.research.paper.published import (
    BEYOND,
    INDUCTIVE,
    PAPER_RUNS,
    TABLE_2,
    TRANSDUCTIVE,
    Published,
    System,
    scale,
    score_key,
    systems,
)
from graphcl.research.systems import BASELINES
from graphcl.research.trials.methods import field_values
from graphcl.research.trials.rows import Json, Row, Trial, number, text

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
        lines = [(system, "") for system in systems(dataset)]
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


def _variant(method: str, variant: str, dataset: str) -> System:
    """Returns a line for a system, or a recipe of GraphCL, that the paper does not have."""
    known = [system.title for system in TABLE_2 if system.name == method]
    known += [BASELINES[method].title] if method in BASELINES else []
    title = (known[0] if known else method) + (f", recipe {variant}" if variant else "")
    return System(method, title, BEYOND, {}, also=(dataset,))


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
    if trial.method == "graphcl":
        name = trial.variant or trial.graph
        if name not in recipe_names():
            return False
        ours: Row = asdict(load_recipe(name))
    elif trial.method in BASELINES:
        ours = field_values(BASELINES[trial.method].method(trial.graph))
    else:
        return False
    return all(_plain(ours.get(key)) == _plain(value) for key, value in trial.settings.items())


def _plain(value: Json) -> Json:
    return list(value) if isinstance(value, tuple) else value


def _cell(system: System, dataset: str, trials: list[Trial], *, absent: bool) -> Cell:
    paper = system.scores.get(dataset, Published(math.nan))
    cell = Cell(
        method=system.name,
        title=system.title,
        group=system.group,
        dataset=dataset,
        paper=None if math.isnan(paper.mean) else paper.mean,
        paper_std=paper.std,
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
    return replace(
        cell,
        state="measured",
        runs=len(values),
        deterministic=fixed,
        mean=statistics.fmean(values),
        std=statistics.stdev(values) if len(values) > 1 else (0.0 if fixed else None),
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
