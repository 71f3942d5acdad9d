"""Corrupted data at test time: missing links, spurious links, missing features.

Every system is trained on the clean graph. Then the graph is corrupted and its nodes are classified
again. The probe is trained on the embeddings of the clean graph. A supervised system is trained on
the disjoint union of the clean graph and its corrupted versions, where only the clean graph has
labels. No edge connects them, so the weights depend on the clean graph alone.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from graphcl.baselines import BASELINES
from graphcl.baselines.protocol import Data, is_unsupervised
from graphcl.estimator import GraphCL
from graphcl.evaluation.probe import node_split, transfer_probe
from graphcl.graphs.collection import GraphCollection, disjoint_union
from graphcl.graphs.damage import missing_features, missing_links, spurious_links
from graphcl.graphs.graph import Graph
from graphcl.paper.plots import plot_lines, title_of
from graphcl.paper.reproduce import applicable, method_settings
from graphcl.paper.studies.study import SCORE, Plan, Study, averages, load_one_graph
from graphcl.trials.rows import Row, number, text
from graphcl.trials.runner import Job, Scoring
from graphcl.trials.scoring import labels_only, settings_hash

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
RIVALS = ("graphcl", "raw", "dgi", "gcn")
TITLES = {"graphcl": "GraphCL", "raw": "raw features", "dgi": "DGI", "gcn": "GCN (supervised)"}
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

    return replace(
        union,
        y=padded(graph.y, -1),
        train_mask=padded(graph.train_mask, False),
        val_mask=padded(graph.val_mask, False),
        test_mask=padded(graph.test_mask, False),
    )


def _jobs(plan: Plan) -> list[Job]:
    return [
        _job(plan, dataset, method, seed)
        for dataset in plan.datasets
        for method in RIVALS
        if method == "graphcl" or method in BASELINES
        for seed in plan.seeds
    ]


def _job(plan: Plan, dataset: str, method: str, seed: int) -> Job:
    settings = applicable(method, dataset, plan.settings)
    complete = method_settings(method, dataset, settings)
    row: Row = {
        "study": "corruption",
        "method": method,
        "graph": dataset,
        "seed": seed,
        "settings_hash": settings_hash(complete),
    }
    points = [("none", 0.0), *((kind, level) for kind in KINDS for level in LEVELS)]
    about: tuple[Row, ...] = tuple(row | {"kind": kind, "level": level} for kind, level in points)

    def run() -> Iterable[Scoring]:
        graph = load_one_graph(dataset)
        versions = [
            KINDS[kind](graph, level, np.random.default_rng([seed, number]))
            for number, (kind, level) in enumerate(points[1:])
        ]
        known = tuple(one | {"settings": complete} for one in about)
        assert graph.y is not None
        test = node_split(graph, graph.y, 0)[2]
        if method != "graphcl" and not is_unsupervised(BASELINES[method].method(dataset)):
            predicted = _predictions(method, dataset, settings, graph, versions, seed, plan.device)
            scores = [float((part[test] == graph.y[test]).mean()) for part in predicted]
            pairs = zip(known, scores, strict=True)
            yield Scoring(tuple(one | {"accuracy": score} for one, score in pairs))
            return
        z = _embeddings(method, dataset, settings, graph, versions, seed, plan)
        others = [h[test] for h in z[1:]]
        yield Scoring(known, partial(_transfer_rows, z[0], labels_only(graph), others))

    return Job(f"corruption, {method} on {dataset}", about, run)


def _transfer_rows(z: Any, graph: Data, others: Sequence[Any]) -> list[Row]:
    assert isinstance(graph, Graph)
    return [{"accuracy": accuracy} for accuracy in transfer_probe(z, graph, others)]


def _embeddings(
    method: str,
    dataset: str,
    settings: Row,
    graph: Graph,
    versions: list[Graph],
    seed: int,
    plan: Plan,
) -> list[npt.NDArray[np.float32]]:
    """Returns the embeddings of the graph and of its versions; only the graph is trained on."""
    if method == "graphcl":
        model = GraphCL(plan.recipe(dataset), seed=seed, device=str(plan.device)).fit(graph)
        return [model.transform(one) for one in (graph, *versions)]
    collection = GraphCollection((graph,), test=tuple(versions), name=dataset)
    system: Any = BASELINES[method].method(dataset, **settings)
    z = system.embed(collection, seed=seed, device=plan.device)
    return list(np.split(z, len(versions) + 1))


def _predictions(
    method: str,
    dataset: str,
    settings: Row,
    graph: Graph,
    versions: list[Graph],
    seed: int,
    device: torch.device,
) -> list[npt.NDArray[np.int64]]:
    system: Any = BASELINES[method].method(dataset, **settings)
    predicted = system.fit_predict(with_versions(graph, versions), seed=seed, device=device)
    return list(np.split(predicted, len(versions) + 1))


def _accuracy(row: Row) -> float:
    return 100 * number(row, "accuracy")


def _summary(rows: Sequence[Row]) -> list[Row]:
    return averages(rows, ("graph", "kind", "method", "level"), _accuracy)


def _draw(rows: Sequence[Row]) -> Any:
    """Draws a panel per kind and dataset; every line starts at the clean graph."""
    lines = [
        line | {"panel": f"{title_of(text(line, 'graph'))}: {kind}"}
        for line in _summary(rows)
        for kind in (KINDS if line["kind"] == "none" else (text(line, "kind"),))
    ]
    lines.sort(
        key=lambda line: (
            text(line, "panel"),
            RIVALS.index(text(line, "method")),
            number(line, "level"),
        )
    )
    return plot_lines(
        lines,
        x="level",
        by="method",
        xlabel="share that is missing or added",
        ylabel=SCORE,
        titles=TITLES,
        panel="panel",
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
    jobs=_jobs,
    summary=_summary,
    draw=_draw,
)
