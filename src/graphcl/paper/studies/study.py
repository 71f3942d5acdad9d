"""What a study is: a question, the runs that answer it, and a table and a picture of them.

Studies report test scores. Nothing is chosen by them: recipes were chosen on validation.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from graphcl.errors import GraphError
from graphcl.estimator import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.paper.plots import plot_lines, title_of
from graphcl.paper.published import scale, score_key
from graphcl.paper.reproduce import cached_dataset
from graphcl.recipes import Recipe, load_recipe, recipe_for
from graphcl.recipes.recipe import recipe_keys
from graphcl.trials.rows import Json, Row, number, text
from graphcl.trials.runner import Job, Scoring
from graphcl.trials.scoring import probe_scoring, settings_hash

SCORE = "test accuracy, % (PPI: micro-F1)"
IDENTITY = ("study", "method", "graph", "seed", "settings_hash")


@dataclass(frozen=True)
class Plan:
    """What a study is asked to run.

    Attributes:
        datasets: names, all of them present.
        seeds: one run each.
        device: where to train.
        settings: changes of every recipe, over which the study lays its own; what is no key of a
            recipe is for another system.
    """

    datasets: tuple[str, ...]
    seeds: tuple[int, ...]
    device: torch.device
    settings: Row

    def recipe(self, dataset: str, **changed: Json) -> Recipe:
        """Returns the dataset's recipe with the plan's settings and then `changed` over it."""
        mine = {key: value for key, value in self.settings.items() if key in recipe_keys()}
        return load_recipe(recipe_for(dataset)).with_values(**mine | changed)


@dataclass(frozen=True)
class Study:
    """One claim of the paper as an experiment.

    Attributes:
        name: what the command line calls it.
        title: what the page calls it.
        claim: what the paper says, and how it is tested here.
        variables: columns that identify a row beside `IDENTITY`.
        jobs: the runs of a plan.
        summary: from rows to lines of figures.
        draw: from rows to a figure of matplotlib.
        datasets: those it runs on unless told otherwise; empty: it makes its own.
        runs: seeds, unless told otherwise.
    """

    name: str
    title: str
    claim: str
    variables: tuple[str, ...]
    jobs: Callable[[Plan], list[Job]]
    summary: Callable[[Sequence[Row]], list[Row]]
    draw: Callable[[Sequence[Row]], Any]
    datasets: tuple[str, ...] = ("cora",)
    runs: int = 5

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return (*IDENTITY, *self.variables)


def run_identity(
    study: str, dataset: str, seed: int, recipe: Recipe, method: str = "graphcl"
) -> Row:
    """Returns the columns that identify a run of GraphCL in a study."""
    return {
        "study": study,
        "method": method,
        "graph": dataset,
        "seed": seed,
        "settings_hash": settings_hash(asdict(recipe)),
    }


def training_job(
    study: str, plan: Plan, dataset: str, seed: int, recipe: Recipe, variables: Row
) -> Job:
    """Returns a job that trains GraphCL once and probes it once."""
    about = run_identity(study, dataset, seed, recipe) | variables

    def run() -> Iterable[Scoring]:
        data = cached_dataset(dataset)
        model = GraphCL(recipe, seed=seed, device=str(plan.device))
        z = model.fit_transform(data)
        row = about | {
            "settings": asdict(recipe),
            "loss": model.history_[-1].loss,
            "train_seconds": model.seconds_,
        }
        yield probe_scoring(row, z, data, device=plan.device)

    return Job(f"{study} on {dataset}", (about,), run)


def score(row: Row) -> float:
    """Returns the score that the paper reports on the row's dataset, in the table's unit."""
    graph = text(row, "graph")
    return scale(graph) * number(row, score_key(graph))


def spread(values: Sequence[float]) -> float | None:
    """Returns the sample's deviation, or None for one value."""
    return statistics.stdev(values) if len(values) > 1 else None


def averages(
    rows: Sequence[Row], by: Sequence[str], value: Callable[[Row], float] = score
) -> list[Row]:
    """Returns mean, deviation and number of runs for each combination of `by`, in its order."""
    groups: dict[tuple[Json, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in by)].append(row)
    lines: list[Row] = []
    for key, members in sorted(groups.items(), key=lambda item: _sortable(item[0])):
        values = [value(row) for row in members if "failed" not in row]
        lines.append(
            {
                **dict(zip(by, key, strict=True)),
                "mean": statistics.fmean(values) if values else None,
                "std": spread(values),
                "runs": len(values),
                "failed": len(members) - len(values),
            }
        )
    return lines


def summary_by(name: str, rows: Sequence[Row]) -> list[Row]:
    """Returns averages over the runs of each dataset and value of the column `name`."""
    return averages(rows, ("graph", name))


def draw_by(name: str, label: str, log: bool, rows: Sequence[Row]) -> Any:
    """Draws those averages over the column `name`, a line per dataset."""
    lines = [line | {"title": title_of(text(line, "graph"))} for line in summary_by(name, rows)]
    return plot_lines(lines, x=name, by="title", xlabel=label, ylabel=SCORE, log=log)


def load_one_graph(dataset: str) -> Graph:
    """Returns a dataset that must be one graph."""
    data = cached_dataset(dataset)
    if not isinstance(data, Graph):
        raise GraphError(f"{dataset}: this study takes one graph, not {len(data.graphs)}")
    return data


def _sortable(key: tuple[Json, ...]) -> tuple[Any, ...]:  # of numbers and texts alone
    return tuple((isinstance(part, str), part) for part in key)
