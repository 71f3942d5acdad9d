"""GraphCL with many settings: sweeps, epochs, and the bound."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from graphcl.embedding import embed
from graphcl.estimator import GraphCL
from graphcl.estimator.components import Components
from graphcl.research.output import COLOURS, finish, new_figure, plot_grid, title_of
from graphcl.research.rows import Job, Row, Scoring, numbers, text
from graphcl.research.studies.study import (
    Plan,
    Study,
    averages,
    draw_by,
    load_one_graph,
    probe_scoring,
    run_identity,
    summary_by,
    training_job,
)
from graphcl.training import EpochMetrics

EDGE_DROPS = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75)
FEATURE_DROPS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
TEMPERATURES = (0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0)
BATCHES = (64, 128, 256, 512, 1024, 2048, 0)  # 0: all nodes
MARKS = (0, 5, 10, 20, 50, 100, 150, 200, 300)


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


def _epochs_jobs(plan: Plan) -> list[Job]:
    return [_epochs_job(plan, dataset, seed) for dataset in plan.datasets for seed in plan.seeds]


def _epochs_job(plan: Plan, dataset: str, seed: int) -> Job:
    """Returns one long training that is probed at several epochs; 0 is the untrained encoder."""
    last = plan.recipe(dataset).epochs if "epochs" in plan.settings else max(MARKS)
    marks = sorted({epoch for epoch in MARKS if epoch < last} | {last})
    recipe = plan.recipe(dataset, epochs=last)
    settings: Row = asdict(recipe)
    about = run_identity("epochs", dataset, seed, settings)

    def run() -> Iterable[Scoring]:
        graph = load_one_graph(dataset)
        model = GraphCL(recipe, seed=seed, device=str(plan.device), verbose=False)
        (prepared,) = Components(recipe).prepare([graph])
        tensors = prepared.tensors(plan.device)
        untrained = Components(recipe).new_encoder(prepared.schema, seed=seed).to(plan.device)
        found = {0: embed(untrained, *tensors)}

        def keep(metrics: EpochMetrics) -> None:
            if metrics.epoch in marks:
                found[metrics.epoch] = embed(model.encoder_, *tensors)
                model.encoder_.train()  # `embed` has left it in evaluation mode

        model.fit(graph, on_epoch=keep)
        for epoch, z in found.items():
            row = about | {"epochs": epoch, "settings": settings}
            yield probe_scoring(row, z, graph, device=plan.device)

    return Job(f"epochs on {dataset}", tuple(about | {"epochs": mark} for mark in marks), run)


def _bound_jobs(plan: Plan) -> list[Job]:
    return [
        training_job("bound", plan, dataset, seed, plan.recipe(dataset), {}, _series)
        for dataset in plan.datasets
        for seed in plan.seeds
    ]


def _series(model: GraphCL) -> Row:
    return {
        "loss_by_epoch": [metrics.loss for metrics in model.history_],
        "bound_by_epoch": [metrics.mi_bound for metrics in model.history_],
    }


def _bound_summary(rows: Sequence[Row]) -> list[Row]:
    """Returns two bounds at a few epochs: the paper's, and the one for a single direction."""
    scored = [row for row in rows if "failed" not in row]
    return [
        {"graph": line["graph"], "epoch": epoch, "bound": name, **line}
        for epoch, name, pick in _bound_points(scored)
        for line in averages(scored, ("graph",), pick)
    ]


def _bound_points(rows: Sequence[Row]) -> list[tuple[int, str, Callable[[Row], float]]]:
    longest = max((len(numbers(row, "loss_by_epoch")) for row in rows), default=0)
    marks = [epoch for epoch in (1, 5, 10, 20, 50, 100, 150, 200) if epoch <= longest]
    marks += [longest] if longest and longest not in marks else []
    return [
        (epoch, name, partial(_bound_at, epoch=epoch, halved=halved))
        for epoch in marks
        for name, halved in (("log k − L", False), ("log k − L/2", True))
    ]


def _bound_at(row: Row, *, epoch: int, halved: bool) -> float:
    """Returns the bound with L, or with L/2: L sums two directions, and the proof is for one."""
    loss = numbers(row, "loss_by_epoch")[epoch - 1]
    bound = numbers(row, "bound_by_epoch")[epoch - 1]
    return bound + loss / 2 if halved else bound


def _draw_bound(rows: Sequence[Row]) -> Any:
    scored = [row for row in rows if "failed" not in row]
    datasets = list(dict.fromkeys(text(row, "graph") for row in scored))
    figure, axes = new_figure(4.6 * max(len(datasets), 1) + 0.6, 3.8, max(len(datasets), 1))
    for axis, dataset in zip(axes, datasets, strict=False):
        members = [row for row in scored if row["graph"] == dataset]
        epochs = np.arange(1, 1 + min(len(numbers(row, "loss_by_epoch")) for row in members))
        for halved, label, style in (
            (True, "log k − L/2: one direction", "-"),
            (False, "log k − L: as the paper writes it", "--"),
        ):
            curves = np.array(
                [[_bound_at(row, epoch=int(e), halved=halved) for e in epochs] for row in members]
            )
            colour = COLOURS[0] if halved else COLOURS[1]
            axis.plot(epochs, curves.mean(0), style, color=colour, label=label)
            axis.fill_between(epochs, curves.min(0), curves.max(0), color=colour, alpha=0.2)
        first = members[0]
        log_k = numbers(first, "bound_by_epoch")[0] + numbers(first, "loss_by_epoch")[0]
        axis.axhline(log_k, color="#222222", lw=1, ls=":", label=f"log k = {log_k:.2f}")
        axis.set(xlabel="epoch", ylabel="nats", title=title_of(dataset))
        finish(axis)
        axis.legend(frameon=False, fontsize=8)
    return figure


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
EPOCH_COUNT = Study(
    name="epochs",
    title="Epochs",
    claim=(
        "The paper tunes the number of epochs in {20, 50, 100, 150, 200}. Here one training is "
        "probed at several epochs; epoch 0 is the encoder with its initial weights."
    ),
    variables=("epochs",),
    jobs=_epochs_jobs,
    summary=partial(summary_by, "epochs"),
    draw=partial(draw_by, "epochs", "epochs", False),
)
BOUND = Study(
    name="bound",
    title="The bound on mutual information",
    claim=(
        "The paper reads the loss as a lower bound on mutual information, I ≥ log k − L with k "
        "negatives, and warns that it can be weak. Its L sums both directions, but the bound is "
        "proven for one of them, so log k − L/2 is drawn too."
    ),
    variables=(),
    jobs=_bound_jobs,
    summary=_bound_summary,
    draw=_draw_bound,
)
