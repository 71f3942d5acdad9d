"""GraphCL with many settings, in many sizes, and on corrupted data: sweeps, the bound, time.

Time is measured against N; the paper claims that it is linear at a fixed batch size M. Two modes
are timed. ``sampled`` is the paper's inductive setting: an epoch visits every node, M at a time,
each with a tree of R^L sampled neighbours, in O(R^L · N · P'²). ``full`` is the paper's
transductive encoder at a fixed M: a step encodes all N nodes and computes the loss over M of them,
in O(L · N · P'²). (Over all N nodes the loss needs N² products, which the paper does not count.)

Data are corrupted at test time: missing links, spurious links, missing features. Every system is
trained on the clean graph. Then the graph is corrupted and its nodes are classified again. The
probe is trained on the embeddings of the clean graph. A supervised system is trained on the
disjoint union of the clean graph and its corrupted versions, where only the clean graph has labels.
No edge connects them, so the weights depend on the clean graph alone.
"""

import math
import statistics
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import asdict
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from graphcl.datasets.synthetic import synthetic_graph
from graphcl.devices import peak_memory_bytes, reset_peak_memory
from graphcl.embedding import embed
from graphcl.estimator.fitted import Components
from graphcl.estimator.model import GraphCL
from graphcl.evaluation.probe import node_split, transfer_probe
from graphcl.graphs.collection import GraphCollection, disjoint_union, labelled_nodes
from graphcl.graphs.graph import Graph
from graphcl.recipes import Recipe, load_recipe
from graphcl.research.output import plot, title_of
from graphcl.research.rows import Job, Row, Scoring, number, numbers, text
from graphcl.research.studies.study import (
    SCORE,
    Plan,
    Study,
    averages,
    draw_by,
    load_one_graph,
    run_identity,
    training_job,
)
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.system import Unsupervised, settings_of
from graphcl.research.trials import Trial, applicable, scoring_of
from graphcl.training import EpochMetrics, train
from graphcl.training.loop import TrainingState

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
        for dataset, seed, point in product(plan.datasets, plan.seeds, points)
    ]


_by_drops = partial(averages, by=("graph", "edge_drop", "feature_drop"))


def _draw_perturbation(rows: Sequence[Row]) -> Any:
    lines = [line | {"dropped": f"feature_drop {line['feature_drop']}"} for line in _by_drops(rows)]
    return plot(
        lines,
        x="edge_drop",
        by="dropped",
        panel="graph",
        xlabel="probability that an edge is dropped",
        ylabel=SCORE,
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
            yield scoring_of(row, Trial({}, z), graph, device=plan.device)

    return Job(f"epochs on {dataset}", tuple(about | {"epochs": mark} for mark in marks), run)


def _series(model: GraphCL) -> Row:
    return {
        "loss_by_epoch": [metrics.loss for metrics in model.history_],
        "bound_by_epoch": [metrics.mi_bound for metrics in model.history_],
    }


BOUNDS = ("log k − L", "log k − L/2")


def _bounds(rows: Sequence[Row], marks: Container[int], names: Sequence[str]) -> list[Row]:
    """Returns bounds at some epochs, and at the last one."""
    scored = [row for row in rows if "failed" not in row]
    longest = max((len(numbers(row, "loss_by_epoch")) for row in scored), default=0)
    return [
        {"graph": line["graph"], "epoch": epoch, "bound": name, **line}
        for epoch in range(1, longest + 1)
        if epoch in marks or epoch == longest
        for name in names
        for line in averages(scored, ("graph",), partial(_bound_at, epoch=epoch, name=name))
    ]


def _bound_at(row: Row, *, epoch: int, name: str) -> float:
    """Returns log k, or a bound; L sums two directions, and the proof is for one of them."""
    loss = numbers(row, "loss_by_epoch")[epoch - 1]
    part = {"log k": 1.0, "log k − L/2": 0.5, "log k − L": 0.0}[name]
    return numbers(row, "bound_by_epoch")[epoch - 1] + part * loss


def _draw_bound(rows: Sequence[Row]) -> Any:
    shortest = min(len(numbers(row, "loss_by_epoch")) for row in rows)
    cut: list[Row] = [
        row | {name: numbers(row, name)[:shortest] for name in ("loss_by_epoch", "bound_by_epoch")}
        for row in rows
    ]
    lines = _bounds(cut, range(shortest + 1), ("log k", *BOUNDS))
    return plot(lines, x="epoch", by="bound", panel="graph", xlabel="epoch", ylabel="nats")


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
    summary=_by_drops,
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
    summary=partial(averages, by=("graph", "temperature")),
    draw=partial(draw_by, "temperature", "temperature τ", "log"),
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
    summary=partial(averages, by=("graph", "batch_nodes")),
    draw=partial(draw_by, "batch_nodes", "nodes per batch M", "log"),
)
EPOCH_COUNT = Study(
    name="epochs",
    title="Epochs",
    claim=(
        "The paper tunes the number of epochs in {20, 50, 100, 150, 200}. Here one training is "
        "probed at several epochs; epoch 0 is the encoder with its initial weights."
    ),
    variables=("epochs",),
    jobs=lambda plan: [_epochs_job(plan, *one) for one in product(plan.datasets, plan.seeds)],
    summary=partial(averages, by=("graph", "epochs")),
    draw=partial(draw_by, "epochs", "epochs", "linear"),
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
    jobs=lambda plan: [
        training_job("bound", plan, dataset, seed, plan.recipe(dataset), {}, _series)
        for dataset, seed in product(plan.datasets, plan.seeds)
    ],
    # The paper's bound, and the one for a single direction.
    summary=partial(_bounds, marks={1, 5, 10, 20, 50, 100, 150, 200}, names=BOUNDS),
    draw=_draw_bound,
)


# No size is in both, so that rows of a CPU and of a GPU can share a file.
SIZES = {
    "cpu": (3_000, 6_000, 12_000, 24_000, 48_000),
    "cuda": (16_000, 32_000, 64_000, 128_000, 256_000),
}
LARGEST = 3  # number of sizes that the exponent is fitted to
DEGREE, FEATURES, CLASSES, FIXED = 10, 64, 8, 512
MODES = ("sampled", "full")
WHAT = {"sampled": "an epoch, sampled", "full": "a step, whole graph"}
STEPS = 20  # timed steps on a whole graph


SMALL: Row = {"layers": 2, "dim": 128, "batch_nodes": FIXED, "fan_out": 10, "epochs": 1}


def _complexity_jobs(plan: Plan) -> list[Job]:
    sizes = SIZES["cuda" if plan.device.type == "cuda" else "cpu"]
    return [_complexity_job(plan, *one) for one in product(sizes, MODES, plan.seeds)]


def _complexity_job(plan: Plan, nodes: int, mode: str, seed: int) -> Job:
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


def _complexity_summary(rows: Sequence[Row]) -> list[Row]:
    columns = ("graph", "device", "mode", "nodes")
    lines = averages(rows, columns, lambda row: number(row, "seconds"))
    for line in lines:
        curve = (line["device"], line["mode"])
        line["exponent"] = exponent([o for o in lines if (o["device"], o["mode"]) == curve])
    return lines


def _draw_complexity(rows: Sequence[Row]) -> Any:
    lines = []
    for line in _complexity_summary(rows):
        slope = "" if line["exponent"] is None else f": N^{line['exponent']:.2f}"
        lines.append(line | {"curve": f"{WHAT[text(line, 'mode')]}, {line['device']}{slope}"})
    return plot(
        lines,
        x="nodes",
        by="curve",
        panel="graph",
        xscale="log",
        yscale="log",
        xlabel="nodes N",
        ylabel="seconds",
    )


COMPLEXITY = Study(
    name="complexity",
    title="Computational complexity",
    claim=(
        "The paper counts O(L·N·P'²) for the whole graph and O(R^L·N·P'²) for sampled "
        "neighbourhoods: linear in N at a fixed batch size M. We time both on generated graphs of "
        f"degree {DEGREE}, with M = {FIXED}, two layers of width 128 and fan-out 10. The exponent "
        f"is the slope of log time over log N at the {LARGEST} largest sizes. On a GPU, a step on "
        "a small graph takes as long as launching its kernels, whatever N is."
    ),
    variables=("mode", "nodes"),
    jobs=_complexity_jobs,
    summary=_complexity_summary,
    draw=_draw_complexity,
    datasets=(),
    runs=3,
)


LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
RIVALS = ("graphcl", "raw", "dgi", "gcn")
TITLES = {"graphcl": "GraphCL", "raw": "raw features", "dgi": "DGI", "gcn": "GCN (supervised)"}


def _edges(graph: Graph) -> npt.NDArray[Any]:
    both = graph.edge_index()
    return both[:, both[0] < both[1]]


def missing_links(graph: Graph, rate: float, random: np.random.Generator) -> Graph:
    """Returns the graph without each undirected edge with probability `rate`."""
    edges = _edges(graph)
    return _relinked(graph, edges[:, random.random(edges.shape[1]) >= rate])


def spurious_links(graph: Graph, rate: float, random: np.random.Generator) -> Graph:
    """Returns the graph with ``rate * num_edges`` links added between random pairs of nodes.

    A drawn pair that is a self-loop or an existing link adds nothing; in sparse graphs such pairs
    are rare.
    """
    added = random.integers(0, graph.num_nodes, (2, round(rate * graph.num_edges)))
    return _relinked(graph, np.concatenate([_edges(graph), added], axis=1))


def missing_features(graph: Graph, rate: float, random: np.random.Generator) -> Graph:
    """Returns the graph with each feature of each node set to zero with probability `rate`."""
    x: Any = graph.x
    if isinstance(x, np.ndarray):
        return graph.replace(x=x * (random.random(x.shape) >= rate), store=None)
    x = x.copy()
    x.data = x.data * (random.random(len(x.data)) >= rate)
    x.eliminate_zeros()  # sparse features of a graph never store zeros
    return graph.replace(x=x, store=None)


def _relinked(graph: Graph, edges: npt.NDArray[Any]) -> Graph:
    linked = Graph.from_edge_index(edges, np.zeros((graph.num_nodes, 1), dtype=np.float32))
    # Features, labels and masks were checked when the graph was built.
    return graph.replace(indptr=linked.indptr, indices=linked.indices, store=None)


KINDS: dict[str, Callable[[Graph, float, np.random.Generator], Graph]] = {
    "missing links": missing_links,
    "spurious links": spurious_links,
    "missing features": missing_features,
}


def with_versions(graph: Graph, versions: Sequence[Graph]) -> Graph:
    """Returns the disjoint union; nodes of `versions` have no labels and are in no split."""
    union = disjoint_union([graph, *versions], graph.name)

    def padded(values: Any, fill: Any) -> npt.NDArray[Any]:
        added = union.num_nodes - graph.num_nodes
        return np.concatenate([values, np.full(added, fill, values.dtype)])

    return union.replace(
        y=padded(graph.y, -1),
        train_mask=padded(graph.train_mask, False),
        val_mask=padded(graph.val_mask, False),
        test_mask=padded(graph.test_mask, False),
    )


def _corruption_job(plan: Plan, dataset: str, method: str, seed: int) -> Job:
    system = SYSTEMS[method].method(dataset, **applicable(method, plan.settings))
    complete: Row = settings_of(system)
    row = run_identity("corruption", dataset, seed, complete, method)
    points = [("none", 0.0), *((kind, level) for kind in KINDS for level in LEVELS)]
    about: tuple[Row, ...] = tuple(row | {"kind": kind, "level": level} for kind, level in points)

    def run() -> Iterable[Scoring]:
        graph = load_one_graph(dataset)
        versions = [
            KINDS[kind](graph, level, np.random.default_rng([seed, number]))
            for number, (kind, level) in enumerate(points[1:])
        ]
        known = tuple(one | {"settings": complete} for one in about)
        test = node_split(graph, graph.y, 0)[2]
        if not isinstance(system, Unsupervised):
            union = with_versions(graph, versions)
            predicted = system.fit_predict(union, seed=seed, device=plan.device)
            parts = (part[test] for part in np.split(predicted, len(known)))
            scores: list[Row] = [{"accuracy": float((y == graph.y[test]).mean())} for y in parts]
            yield Scoring(tuple(one | score for one, score in zip(known, scores, strict=True)))
            return
        collection = GraphCollection((graph,), test=tuple(versions), name=dataset)
        rows = system.embed(collection, seed=seed, device=plan.device)
        z, *others = np.split(rows, len(known))
        tested = [h[test] for h in others]
        yield Scoring(known, partial(_transfer_rows, z, labelled_nodes(graph), tested))

    return Job(f"corruption, {method} on {dataset}", about, run)


def _transfer_rows(z: Any, graph: Any, others: Sequence[Any]) -> list[Row]:
    return [{"accuracy": accuracy} for accuracy in transfer_probe(z, graph, others)]


def _corruption_summary(rows: Sequence[Row]) -> list[Row]:
    columns = ("graph", "kind", "method", "level")
    return averages(rows, columns, lambda row: 100 * number(row, "accuracy"))


def _draw_corruption(rows: Sequence[Row]) -> Any:
    """Draws a panel per kind and dataset; every line starts at the clean graph."""
    lines = [
        line | {"panel": f"{title_of(text(line, 'graph'))}: {kind}", "title": TITLES[method]}
        for method in RIVALS
        for line in sorted(_corruption_summary(rows), key=lambda line: number(line, "level"))
        for kind in KINDS
        if line["method"] == method and line["kind"] in ("none", kind)
    ]
    return plot(
        lines,
        x="level",
        by="title",
        panel="panel",
        xlabel="share that is missing or added",
        ylabel=SCORE,
    )


CORRUPTION = Study(
    name="corruption",
    title="Robustness to corrupted data",
    claim=(
        "The paper expects robustness to missing links, spurious links and missing features. Here "
        "every system is trained on the clean graph and classifies the nodes of a corrupted one. "
        "The probe, too, is trained on the clean graph."
    ),
    variables=("kind", "level"),
    jobs=lambda plan: [
        _corruption_job(plan, *one) for one in product(plan.datasets, RIVALS, plan.seeds)
    ],
    summary=_corruption_summary,
    draw=_draw_corruption,
    methods=RIVALS,
)
