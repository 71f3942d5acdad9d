"""Time against N on generated graphs; the paper claims linear time at a fixed batch size M.

Two modes are timed. ``sampled`` is the paper's inductive setting: an epoch visits every node, M at
a time, each with a tree of R^L sampled neighbours, in O(R^L · N · P'²). ``full`` is the paper's
transductive encoder at a fixed M: a step encodes all N nodes and computes the loss over M of them,
in O(L · N · P'²). (Over all N nodes the loss needs N² products, which the paper does not count.)
"""

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch

from graphcl.datasets.synthetic import synthetic_graph
from graphcl.devices import peak_memory_bytes, reset_peak_memory
from graphcl.estimator.components import Components
from graphcl.estimator.model import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.recipes import Recipe, load_recipe
from graphcl.research.output import plot
from graphcl.research.rows import Job, Row, Scoring, number, text
from graphcl.research.studies.study import Plan, Study, averages, run_identity
from graphcl.training import train
from graphcl.training.loop import TrainingState

# No size is in both, so that rows of a CPU and of a GPU can share a file.
SIZES = {
    "cpu": (3_000, 6_000, 12_000, 24_000, 48_000),
    "cuda": (16_000, 32_000, 64_000, 128_000, 256_000),
}
LARGEST = 3  # number of sizes that the exponent is fitted to
DEGREE, FEATURES, CLASSES, BATCH = 10, 64, 8, 512
MODES = ("sampled", "full")
WHAT = {"sampled": "an epoch, sampled", "full": "a step, whole graph"}
STEPS = 20  # timed steps on a whole graph


SMALL: Row = {"layers": 2, "dim": 128, "batch_nodes": BATCH, "fan_out": 10, "epochs": 1}


def _jobs(plan: Plan) -> list[Job]:
    sizes = SIZES["cuda" if plan.device.type == "cuda" else "cpu"]
    return [_job(plan, *one) for one in product(sizes, MODES, plan.seeds)]


def _job(plan: Plan, nodes: int, mode: str, seed: int) -> Job:
    recipe = load_recipe("default").with_texts(**SMALL | plan.settings | {"mode": mode})
    settings: Row = asdict(recipe)
    identity = run_identity("complexity", "synthetic", seed, settings)
    about: Row = identity | {"mode": mode, "nodes": nodes}

    def run() -> Iterable[Scoring]:
        graph = _graph(nodes)
        _seconds(recipe, graph, seed, plan.device)  # compiles kernels, fills caches
        reset_peak_memory(plan.device)
        seconds = _seconds(recipe, graph, seed, plan.device)
        measured: Row = {
            "seconds": seconds,
            "peak_memory_bytes": peak_memory_bytes(plan.device),
            "settings": settings,
            "edges": graph.num_edges,
        }
        yield Scoring((about | measured,))

    return Job(f"complexity, {mode}, N = {nodes}", (about,), run)


@cache
def _graph(nodes: int) -> Graph:
    return synthetic_graph(nodes, nodes * DEGREE // 2, FEATURES, CLASSES, seed=0)


def _seconds(recipe: Recipe, graph: Graph, seed: int, device: torch.device) -> float:
    """Returns the seconds of a sampled epoch, or of the median step on the whole graph."""
    if recipe.mode == "sampled":
        model = GraphCL(recipe, seed=seed, device=str(device), verbose=False)
        return model.fit(graph).history_[-1].seconds
    return _step_seconds(recipe, graph, seed, device)


def _step_seconds(recipe: Recipe, graph: Graph, seed: int, device: torch.device) -> float:
    components = Components(recipe)
    (prepared,) = components.prepare([graph])
    source, _ = components.source(prepared, device=device)
    encoder = components.new_encoder(prepared.schema, seed=seed).to(device)
    marks = [time.perf_counter()]

    def mark(_: TrainingState) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        marks.append(time.perf_counter())

    train(
        encoder,
        source,
        perturbation=components.perturbation,
        loss=components.loss,
        epochs=1,
        steps=STEPS,
        seed=seed,
        on_step=mark,
    )
    return statistics.median(np.diff(marks[:-1]).tolist())  # the last mark is the epoch's end


def exponent(lines: Sequence[Row]) -> float | None:
    """Returns the slope of log time over log N at the largest sizes; 1 is linear.

    At smaller sizes the fixed cost of a step hides the slope.
    """
    points = sorted((number(line, "nodes"), number(line, "mean")) for line in lines if line["mean"])
    if len(points) < 2:
        return None
    x, y = np.log(np.array(points[-LARGEST:], dtype=float)).T
    return float(np.polyfit(x, y, 1)[0])


def _summary(rows: Sequence[Row]) -> list[Row]:
    columns = ("graph", "device", "mode", "nodes")
    lines = averages(rows, columns, lambda row: number(row, "seconds"))
    for line in lines:
        curve = (line["device"], line["mode"])
        line["exponent"] = exponent([o for o in lines if (o["device"], o["mode"]) == curve])
    return lines


def _draw(rows: Sequence[Row]) -> Any:
    lines = []
    for line in _summary(rows):
        slope = "" if line["exponent"] is None else f": N^{line['exponent']:.2f}"
        lines.append(line | {"curve": f"{WHAT[text(line, 'mode')]}, {line['device']}{slope}"})
    settings = {"xscale": "log", "yscale": "log", "xlabel": "nodes N", "ylabel": "seconds"}
    return plot(lines, x="nodes", by="curve", panel="graph", **settings)


COMPLEXITY = Study(
    name="complexity",
    title="Computational complexity",
    claim=(
        "The paper counts O(L·N·P'²) for the whole graph and O(R^L·N·P'²) for sampled "
        "neighbourhoods: linear in N at a fixed batch size M. We time both on generated graphs of "
        f"degree {DEGREE}, with M = {BATCH}, two layers of width 128 and fan-out 10. The exponent "
        f"is the slope of log time over log N at the {LARGEST} largest sizes. On a GPU, a step on "
        "a small graph takes as long as launching its kernels, whatever N is."
    ),
    variables=("mode", "nodes"),
    jobs=_jobs,
    summary=_summary,
    draw=_draw,
    datasets=(),
    runs=3,
)
