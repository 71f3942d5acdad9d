"""A study: a claim, the runs that test it, and a table and a picture of the results.

Studies report test scores, but nothing is chosen by them: recipes were chosen on validation nodes.
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
from graphcl.recipes import Recipe, load_recipe, recipe_for
from graphcl.recipes.recipe import recipe_keys
from graphcl.research.paper.plots import plot_lines, title_of
from graphcl.research.paper.published import scale, score_key
from graphcl.research.paper.reproduce import cached_dataset
from graphcl.research.trials.rows import Json, Row, number, text
from graphcl.research.trials.runner import Job, Scoring
from graphcl.research.trials.scoring import probe_scoring, settings_hash

SCORE = "test accuracy, % (PPI: micro-F1)"
IDENTITY = ("study", "method", "graph", "seed", "settings_hash")


@dataclass(frozen=True)
class Plan:
    """What a study should run.

    Attributes:
        datasets: names of datasets that are present.
        seeds: one run per seed.
        device: where to train.
        settings: changes to every recipe, applied before the study's own; keys that are not in a
            recipe are for other systems.
    """

    datasets: tuple[str, ...]
    seeds: tuple[int, ...]
    device: torch.device
    settings: Row

    def recipe(self, dataset: str, **changed: Json) -> Recipe:
        """Returns the dataset's recipe, updated with the plan's settings and then `changed`."""
        mine = {key: value for key, value in self.settings.items() if key in recipe_keys()}
        return load_recipe(recipe_for(dataset)).with_texts(**mine | changed)


@dataclass(frozen=True)
class Study:
    """One claim of the paper as an experiment.

    Attributes:
        name: its name on the command line.
        title: its title in reports.
        claim: what the paper claims, and how it is tested here.
        variables: columns that identify a row in addition to `IDENTITY`.
        jobs: returns the runs of a plan.
        summary: returns the lines of the table for rows.
        draw: returns a figure of matplotlib for rows.
        datasets: the default datasets; empty if the study generates its graphs.
        runs: the default number of seeds.
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
        model = GraphCL(recipe, seed=seed, device=str(plan.device))
        z = model.fit_transform(data)
        row = about | {"settings": settings} | measure(model)
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
    """Returns mean, deviation and number of runs for each combination of `by`, sorted by it."""
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
    """Draws the averages of `summary_by` over the column `name`, a line per dataset."""
    lines = [line | {"title": title_of(text(line, "graph"))} for line in summary_by(name, rows)]
    return plot_lines(lines, x=name, by="title", xlabel=label, ylabel=SCORE, log=log)


def load_one_graph(dataset: str) -> Graph:
    """Returns a dataset, which must be a single graph."""
    data = cached_dataset(dataset)
    if not isinstance(data, Graph):
        raise GraphError(f"{dataset}: this study needs a single graph, not {len(data.graphs)}")
    return data


def _sortable(key: tuple[Json, ...]) -> tuple[Any, ...]:  # numbers and text do not compare
    return tuple((isinstance(part, str), part) for part in key)
