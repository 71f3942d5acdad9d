"""Corrupted data at test time: missing links, spurious links, missing features.

Every system is trained on the clean graph. Then the graph is corrupted and its nodes are classified
again. The probe is trained on the embeddings of the clean graph. A supervised system is trained on
the disjoint union of the clean graph and its corrupted versions, where only the clean graph has
labels. No edge connects them, so the weights depend on the clean graph alone.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.evaluation.probe import node_split, transfer_probe
from graphcl.graphs.collection import GraphCollection, disjoint_union, labelled_nodes
from graphcl.graphs.graph import Graph
from graphcl.research.output import plot, title_of
from graphcl.research.rows import Job, Row, Scoring, number, text
from graphcl.research.studies.study import (
    SCORE,
    Plan,
    Study,
    averages,
    load_one_graph,
    run_identity,
)
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.system import Unsupervised, settings_of
from graphcl.research.trials import applicable

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


def _job(plan: Plan, dataset: str, method: str, seed: int) -> Job:
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
        assert graph.y is not None
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


def _summary(rows: Sequence[Row]) -> list[Row]:
    columns = ("graph", "kind", "method", "level")
    return averages(rows, columns, lambda row: 100 * number(row, "accuracy"))


def _draw(rows: Sequence[Row]) -> Any:
    """Draws a panel per kind and dataset; every line starts at the clean graph."""
    lines = [
        line | {"panel": f"{title_of(text(line, 'graph'))}: {kind}", "title": TITLES[method]}
        for method in RIVALS
        for line in sorted(_summary(rows), key=lambda line: number(line, "level"))
        for kind in KINDS
        if line["method"] == method and line["kind"] in ("none", kind)
    ]
    labels = {"xlabel": "share that is missing or added", "ylabel": SCORE}
    return plot(lines, x="level", by="title", panel="panel", **labels)


CORRUPTION = Study(
    name="corruption",
    title="Robustness to corrupted data",
    claim=(
        "The paper expects robustness to missing links, spurious links and missing features. Here "
        "every system is trained on the clean graph and classifies the nodes of a corrupted one. "
        "The probe, too, is trained on the clean graph."
    ),
    variables=("kind", "level"),
    jobs=lambda plan: [_job(plan, *one) for one in product(plan.datasets, RIVALS, plan.seeds)],
    summary=_summary,
    draw=_draw,
    methods=RIVALS,
)
