"""A study: a claim, the runs that test it, and a table and a picture of the results.

Studies report test scores, but nothing is chosen by them: recipes were chosen on validation nodes.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from graphcl.errors import GraphError, counted
from graphcl.estimator.model import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.recipes import Recipe, load_recipe, recipe_for
from graphcl.research.output import Report, Table, plot, title_of
from graphcl.research.rows import Job, Json, Row, Scoring, mean_and_deviation, number, text
from graphcl.research.trials import (
    Trial,
    applicable,
    cached_dataset,
    scoring_of,
    settings_hash,
)
from graphcl.settings import PROBE_STEPS

INDUCTIVE = ("reddit", "ppi")
SCORE = "test accuracy, % (PPI: micro-F1)"
IDENTITY = ("study", "method", "graph", "seed", "settings_hash")


@dataclass(frozen=True)
class Plan:
    """What Table 2 or a study should run.

    Attributes:
        datasets: names of datasets that are present.
        seeds: one run per seed.
        device: where to train.
        settings: changes to every recipe, applied before the study's own; keys that are not in a
            recipe are for other systems.
        methods: the systems of Table 2; None runs all.
        probe_steps: of Table 2's probe, if nodes have several labels.
    """

    datasets: tuple[str, ...]
    seeds: tuple[int, ...]
    device: torch.device
    settings: Row
    methods: tuple[str, ...] | None = None
    probe_steps: int = PROBE_STEPS

    def recipe(self, dataset: str, **changed: Json) -> Recipe:
        """Returns the dataset's recipe, updated with the plan's settings and then `changed`."""
        mine = applicable("graphcl", self.settings)
        return load_recipe(recipe_for(dataset)).with_texts(**mine | changed)


@dataclass(frozen=True, kw_only=True)
class Study:
    """One claim of the paper as an experiment: runs, and what is shown of them.

    Attributes:
        name: its name on the command line.
        jobs: returns the runs of a plan.
        title: its title in reports.
        claim: what the paper claims, and how it is tested here.
        summary: returns the lines of the table for rows.
        draw: returns a figure of matplotlib for rows.
        variables: columns that identify a row in addition to `IDENTITY`.
        datasets: the default datasets; empty if it generates its graphs.
        runs: the default number of seeds.
        methods: the systems that run; None are those of the plan.
    """

    name: str
    jobs: Callable[[Plan], list[Job]]
    title: str = ""
    claim: str = ""
    summary: Callable[[Sequence[Row]], list[Row]] = list
    draw: Callable[[Sequence[Row]], Any] = list
    variables: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ("cora",)
    runs: int = 5
    methods: tuple[str, ...] | None = ("graphcl",)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return (*IDENTITY, *self.variables)

    def report(
        self,
        rows: Sequence[Row],
        plan: Plan,  # noqa: ARG002 (a study shows all its rows)
        absent: Sequence[str] = (),
    ) -> Report:
        """Returns the rows with a claim, a table and a picture; `absent` datasets are not here.

        Mean and deviation share a column of the table.
        """
        scored = [row for row in rows if "failed" not in row]
        summary = self.summary(rows)
        names = [name for name in (summary[0] if summary else {}) if name not in ("std", "failed")]
        columns = [name.replace("_", " ") for name in names]
        lines = [[_text(line, name) for name in names] for line in summary]
        return Report(
            self.name,
            {"summary": summary, "absent": list(absent)},
            tables=[Table(columns, lines, self.title)],
            notes=[provenance_text(rows), *(f"{title_of(name)}: absent" for name in absent)],
            lines=summary,
            claim=self.claim,
            draw=partial(self.draw, scored) if scored else None,
        )


def run_identity(
    study: str, dataset: str, seed: int, settings: Row, method: str = "graphcl"
) -> Row:
    """Returns the columns that identify a run in a study."""
    return {
        "study": study,
        "method": method,
        "graph": dataset,
        "seed": seed,
        "settings_hash": settings_hash(settings),
    }


def costs(model: GraphCL) -> Row:
    """Returns the last loss and the duration of a training."""
    return {"loss": model.history_[-1].loss, "train_seconds": model.seconds_}


def training_job(
    study: str,
    plan: Plan,
    dataset: str,
    seed: int,
    recipe: Recipe,
    variables: Row,
    measure: Callable[[GraphCL], Row] = costs,
) -> Job:
    """Returns a job that trains GraphCL once, measures the training and probes it once."""
    settings: Row = asdict(recipe)
    about = run_identity(study, dataset, seed, settings) | variables

    def run() -> Iterable[Scoring]:
        data = cached_dataset(dataset)
        model = GraphCL(recipe, seed=seed, device=str(plan.device), verbose=False)
        z = model.fit_transform(data)
        row = about | {"settings": settings} | measure(model)
        yield scoring_of(row, Trial({}, z), data, device=plan.device)

    return Job(f"{study} on {dataset}", (about,), run)


def score_key(dataset: str) -> str:
    """Returns the column of a row with the score that the paper reports on `dataset`."""
    return "micro_f1" if dataset in INDUCTIVE else "accuracy"


def scale(dataset: str) -> float:
    """Returns the factor from a row's fraction to the table's unit."""
    return 1.0 if dataset in INDUCTIVE else 100.0


def score(row: Row) -> float:
    """Returns the score that the paper reports on the row's dataset, in the table's unit."""
    graph = text(row, "graph")
    return scale(graph) * number(row, score_key(graph))


def averages(
    rows: Sequence[Row], by: Sequence[str], value: Callable[[Row], float] = score
) -> list[Row]:
    """Returns mean, deviation and number of runs for each combination of `by`, sorted by it."""
    groups: dict[tuple[Json, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in by)].append(row)
    lines: list[Row] = []
    # Numbers and text do not compare.
    for key in sorted(groups, key=lambda key: [(isinstance(one, str), one) for one in key]):
        members = groups[key]
        values = [value(row) for row in members if "failed" not in row]
        mean, std = mean_and_deviation(values)
        runs: Row = {"runs": len(values), "failed": len(members) - len(values)}
        lines.append({**dict(zip(by, key, strict=True)), "mean": mean, "std": std, **runs})
    return lines


def draw_by(name: str, label: str, xscale: str, rows: Sequence[Row]) -> Any:
    """Draws the averages over the column `name`, a line per dataset."""
    lines = [
        line | {"title": title_of(text(line, "graph")), "panel": ""}
        for line in averages(rows, ("graph", name))
    ]
    return plot(lines, x=name, by="title", panel="panel", xscale=xscale, xlabel=label, ylabel=SCORE)


def load_one_graph(dataset: str) -> Graph:
    """Returns a dataset, which must be a single graph."""
    data = cached_dataset(dataset)
    if not isinstance(data, Graph):
        raise GraphError(f"{dataset}: this study needs a single graph, not {len(data.graphs)}")
    return data


def provenance_text(rows: Sequence[Row]) -> str:
    """Returns a sentence on how the numbers were measured: nodes, seeds, device, failures."""
    scored = [row for row in rows if "failed" not in row]
    devices = ", ".join(sorted({str(row.get("device")) for row in scored})) or "nothing measured"
    seeds = len({row["seed"] for row in scored})
    failed = len(rows) - len(scored)
    lost = f"; {counted(failed, 'run')} failed" if failed else ""
    timed = any("seconds" in row for row in scored)
    what = "Seconds" if timed else "Scores on test nodes (nothing was chosen by them)"
    over = f"mean ± sample deviation over {seeds} seeds" if seeds > 1 else "one seed"
    return f"{what}; {over}; {devices}{lost}."


def _text(line: Row, name: str) -> str:
    value = line[name]
    if value is None:
        return "–"
    if name == "mean" and isinstance(value, int | float):
        places = 1 if abs(value) > 1.5 else 3
        spread = f" ± {line['std']:.{places}f}" if line["std"] is not None else ""
        return f"{value:.{places}f}{spread}"
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
