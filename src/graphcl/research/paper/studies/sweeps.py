"""Sweeps over hyperparameters: perturbation, temperature and batch size."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

from graphcl.research.paper.plots import plot_grid
from graphcl.research.paper.studies.study import (
    Plan,
    Study,
    averages,
    draw_by,
    load_one_graph,
    summary_by,
    training_job,
)
from graphcl.research.trials.rows import Row
from graphcl.research.trials.runner import Job

EDGE_DROPS = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75)
FEATURE_DROPS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
TEMPERATURES = (0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0)
BATCHES = (64, 128, 256, 512, 1024, 2048, 0)  # 0: all nodes


def _sweep_jobs(study: str, plan: Plan, **grid: tuple[float, ...]) -> list[Job]:
    """Returns the runs of a grid: the values of each recipe key, the last key changing fastest."""
    points: list[Row] = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    return [
        training_job(study, plan, dataset, seed, plan.recipe(dataset, **point), point)
        for dataset in plan.datasets
        for seed in plan.seeds
        for point in points
    ]


def _perturbation_summary(rows: Sequence[Row]) -> list[Row]:
    return averages(rows, ("graph", "edge_drop", "feature_drop"))


def _draw_perturbation(rows: Sequence[Row]) -> Any:
    return plot_grid(
        _perturbation_summary(rows),
        x="edge_drop",
        y="feature_drop",
        by="graph",
        xlabel="probability that an edge is dropped",
        ylabel="probability that a feature is dropped",
    )


def _batch_jobs(plan: Plan) -> list[Job]:
    """Returns the runs; every batch size gets as many updates as the recipe has epochs.

    Epochs are rounded. With equal epochs, batches of 64 nodes would get about 40 times as many
    updates on Cora as batches of all nodes.
    """
    jobs = []
    for dataset in plan.datasets:
        nodes = load_one_graph(dataset).num_nodes
        for seed in plan.seeds:
            for batch in BATCHES:
                if batch >= nodes:
                    continue
                steps = math.ceil(nodes / batch) if batch else 1
                epochs = max(1, round(plan.recipe(dataset).epochs / steps))
                recipe = plan.recipe(dataset, batch_nodes=batch, epochs=epochs, mode="full")
                about: Row = {"batch_nodes": batch or nodes, "updates": epochs * steps}
                jobs.append(training_job("batch", plan, dataset, seed, recipe, about))
    return jobs


PERTURBATION = Study(
    name="perturbation",
    title="Robustness to the choice of perturbation",
    claim=(
        "The paper finds GraphCL robust to the probabilities of dropping edges (0.05 to 0.75) and "
        "features (0.2 to 0.8), best with 10 to 20 % of edges and 50 to 70 % of features dropped. "
        "Here the whole grid is trained; everything else is as in the dataset's recipe."
    ),
    variables=("edge_drop", "feature_drop"),
    jobs=lambda plan: _sweep_jobs(
        "perturbation", plan, edge_drop=EDGE_DROPS, feature_drop=FEATURE_DROPS
    ),
    summary=_perturbation_summary,
    draw=_draw_perturbation,
    runs=3,
)
TEMPERATURE = Study(
    name="temperature",
    title="Temperature",
    claim=(
        f"The paper tunes τ in {{0.1, 0.5, 0.8, 1.0}}. Here τ goes from {min(TEMPERATURES)} to "
        f"{max(TEMPERATURES)}; everything else is as in the dataset's recipe."
    ),
    variables=("temperature",),
    jobs=lambda plan: _sweep_jobs("temperature", plan, temperature=TEMPERATURES),
    summary=partial(summary_by, "temperature"),
    draw=partial(draw_by, "temperature", "temperature τ", True),
)
BATCH = Study(
    name="batch",
    title="Batch size",
    claim=(
        "The paper says that NT-Xent benefits from large batches, and uses all nodes. Here the "
        "loss is computed over M nodes. Every M gets as many updates as the recipe has epochs "
        "(to within one epoch), so that M changes only the number of negatives."
    ),
    variables=("batch_nodes", "updates"),
    jobs=_batch_jobs,
    summary=partial(summary_by, "batch_nodes"),
    draw=partial(draw_by, "batch_nodes", "nodes per batch M", True),
)
