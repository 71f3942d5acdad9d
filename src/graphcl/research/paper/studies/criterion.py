"""Tests the criterion of tuning without labels: it should rank settings as accuracy does."""

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from scipy.stats import spearmanr

from graphcl.estimator import GraphCL
from graphcl.recipes import Recipe
from graphcl.research.paper.plots import COLOURS, MARKERS, finish, new_figure, title_of
from graphcl.research.paper.studies.study import Plan, Study, load_one_graph, run_identity, score
from graphcl.research.trials.rows import Row, number, text
from graphcl.research.trials.runner import Job, Scoring
from graphcl.research.trials.scoring import probe_scoring
from graphcl.research.tuning.objective import ClusterStability
from graphcl.research.tuning.search import CHOICES, EPOCHS, RANGES

SETTINGS = 40  # drawn at random from the ranges that tuning searches
# `auto` came later; with it, other settings would be drawn than those of the committed rows.
DRAWN = CHOICES | {"feature_scaling": ("none", "row")}


def _jobs(plan: Plan) -> list[Job]:
    return [
        _job(plan, dataset, seed, trial, recipe)
        for dataset in plan.datasets
        for seed in plan.seeds
        for trial, recipe in enumerate(_recipes(plan, dataset))
    ]


def _recipes(plan: Plan, dataset: str) -> list[Recipe]:
    draw = random.Random(0)
    found = []
    for _ in range(SETTINGS):
        values: Row = {key: draw.choice(kinds) for key, kinds in DRAWN.items()}
        values |= {key: round(draw.uniform(*ends), 2) for key, ends in RANGES.items()}
        values["epochs"] = draw.choice(EPOCHS)
        found.append(plan.recipe(dataset, **values | plan.settings))
    return found


def _job(plan: Plan, dataset: str, seed: int, trial: int, recipe: Recipe) -> Job:
    settings: Row = asdict(recipe)
    about = run_identity("criterion", dataset, seed, settings) | {"trial": trial}

    def run() -> Iterable[Scoring]:
        graph = load_one_graph(dataset)
        objective = ClusterStability.of(graph, seed=0)
        model = GraphCL(recipe, seed=seed, device=str(plan.device))
        z = model.fit_transform(objective.data)
        row = about | {"settings": settings, "stability": objective(model.transform)}
        yield probe_scoring(row, z, graph, device=plan.device)

    return Job(f"criterion on {dataset}", (about,), run)


def _by_graph(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {text(row, "graph"): [] for row in rows}
    for row in rows:
        if "failed" not in row:
            found[text(row, "graph")].append(row)
    return found


def _summary(rows: Sequence[Row]) -> list[Row]:
    lines: list[Row] = []
    for graph, mine in _by_graph(rows).items():
        if len(mine) < 3:
            continue
        stable = [number(row, "stability") for row in mine]
        scores = [score(row) for row in mine]
        on_test, on_val = (
            float(spearmanr(stable, [row[column] for row in mine]).statistic)
            for column in ("accuracy", "val_accuracy")
        )
        lines.append(
            {
                "graph": graph,
                "spearman": on_test,
                "spearman_validation": on_val,
                "chosen": scores[stable.index(max(stable))],
                "median": statistics.median(scores),
                "best": max(scores),
                "settings": len(mine),
            }
        )
    return lines


def _draw(rows: Sequence[Row]) -> Any:
    figure, (axis,) = new_figure(6.0, 4.2)
    for index, (graph, mine) in enumerate(_by_graph(rows).items()):
        axis.scatter(
            [row["stability"] for row in mine],
            [score(row) for row in mine],
            color=COLOURS[index % 7],
            marker=MARKERS[index % 7],
            s=22,
            label=title_of(graph),
        )
    axis.set(xlabel="cluster stability (adjusted Rand index)", ylabel="test accuracy, %")
    finish(axis)
    axis.legend(frameon=False, fontsize=9)
    return figure


CRITERION = Study(
    name="criterion",
    title="Tuning without labels",
    claim=(
        "This is not a claim of the paper. Without labels, `graphcl tune` used to embed two "
        "damaged versions of the graph, which lack a fifth of the links and half of the features, "
        f"and to maximise the agreement of their clusters. Here {SETTINGS} settings, drawn from "
        "the ranges that it searches, are trained. The rank correlation of the agreement with "
        "accuracy shows how good a guide it was; [Choosing without labels](choosing.md) has a "
        "better one. It was chosen among a dozen candidates by its correlation with validation "
        "accuracy on Cora, Citeseer and Pubmed, so this is not an independent test."
    ),
    variables=("trial",),
    jobs=_jobs,
    summary=_summary,
    draw=_draw,
    runs=1,
)
