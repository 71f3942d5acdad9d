from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl.baselines import BASELINES
from graphcl.graphs.damage import missing_features, missing_links, spurious_links
from graphcl.paper.studies import STUDIES, corruption
from graphcl.paper.studies.corruption import with_versions
from graphcl.paper.studies.study import Plan
from graphcl.store.columns import ScaledFeatures
from graphcl.trials.runner import execute

CPU = torch.device("cpu")


def pairs(graph):
    return set(map(tuple, graph.edge_index().T.tolist()))


def rng():
    return np.random.default_rng(0)


def test_links_go_missing_and_come_up(graph):
    fewer, more = missing_links(graph, 0.5, rng()), spurious_links(graph, 0.5, rng())
    assert pairs(fewer) < pairs(graph) < pairs(more)
    assert abs(fewer.num_edges / graph.num_edges - 0.5) < 0.2
    assert graph.num_edges < more.num_edges <= 1.5 * graph.num_edges
    for one in (fewer, more):
        assert np.array_equal(one.x, graph.x)
        assert np.array_equal(one.test_mask, graph.test_mask)


def test_features_go_missing_and_the_graph_is_untouched(graph):
    before = graph.x.copy()
    poorer = missing_features(graph, 0.5, rng())
    kept = poorer.x == graph.x
    assert 0.4 < kept.mean() < 0.6
    assert not poorer.x[~kept].any()
    assert pairs(poorer) == pairs(graph)
    assert np.array_equal(graph.x, before)


def test_damage_keeps_weights_and_the_kind_of_features(graph):
    random = np.random.default_rng(1)
    edges = graph.edge_index()
    once = edges[:, edges[0] < edges[1]]
    weights = random.uniform(1, 2, once.shape[1]).astype("float32")
    weighted = graph.from_edge_index(once, graph.x, edge_weight=weights)
    known = dict(zip(map(tuple, edges.T.tolist()), weighted.edge_weight, strict=True))
    for one in (missing_links(weighted, 0.5, rng()), spurious_links(weighted, 0.5, rng())):
        found = zip(map(tuple, one.edge_index().T.tolist()), one.edge_weight, strict=True)
        new = weights.mean()
        assert all(weight == pytest.approx(known.get(pair, new)) for pair, weight in found)
    scaled = ScaledFeatures(random.integers(1, 9, (4, 3)).astype("int8"), np.ones(3, "float32"))
    table = scipy.sparse.csr_array(np.ones((4, 3), "float32"))
    small = graph.from_edge_index([[0], [1]], np.eye(4, 3))
    for x in (scaled, table, np.ones((4, 3), "float16")):
        poorer = missing_features(replace(small, x=x), 0.5, rng())
        assert type(poorer.x) is type(x)
        damaged = poorer.x.toarray() if scipy.sparse.issparse(poorer.x) else np.asarray(poorer.x)
        whole = x.toarray() if scipy.sparse.issparse(x) else np.asarray(x)
        assert ((damaged == whole) | (damaged == 0)).all()
        assert (damaged != whole).any()
        assert not scipy.sparse.issparse(poorer.x) or poorer.x.data.all()


def test_predictions_in_a_version_are_those_of_weights_learned_on_the_graph(graph):
    # A version equal to the graph must be classified as the graph is, and labels stay in the graph.
    same = with_versions(graph, [graph, missing_links(graph, 0.9, rng())])
    assert same.num_nodes == 3 * graph.num_nodes
    assert (same.y[graph.num_nodes :] == -1).all()
    assert same.train_mask.sum() == graph.train_mask.sum()
    if "gcn" in BASELINES:
        predicted = BASELINES["gcn"].method("cora", epochs=5).fit_predict(same, seed=0, device=CPU)
        first, second, third = np.split(predicted, 3)
        assert np.array_equal(first, second)
        assert not np.array_equal(first, third)


def test_every_rival_is_scored_at_every_level(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(corruption, "LEVELS", (0.3, 0.9))
    study = STUDIES["corruption"]
    plan = Plan(datasets=("cora",), seeds=(0,), device=CPU, settings={"epochs": 3, "dim": 8})
    found = execute(study.jobs(plan), tmp_path / "r.jsonl", columns=study.columns, device=CPU)
    assert [row["failed"] for row in found if "failed" in row] == []
    by = {(row["method"], row["kind"], row["level"]): row["accuracy"] for row in found}
    assert len(by) == len({key[0] for key in by}) * 7
    assert {method for method, *_ in by} == {"graphcl", "raw", "dgi", "gcn"}
    # Links do not reach raw features.
    assert by["raw", "missing links", 0.9] == by["raw", "none", 0.0]
    assert by["raw", "missing features", 0.9] < by["raw", "none", 0.0]
    assert study.draw(found) is not None


@pytest.mark.parametrize("method", ["graphcl", "dgi"])
def test_training_never_sees_the_corrupted_versions(method, tiny):
    plan = Plan(datasets=("cora",), seeds=(0,), device=CPU, settings={"epochs": 2, "dim": 8})
    graph = tiny["cora"]
    other = replace(graph, x=np.random.default_rng(1).normal(size=graph.x.shape).astype("float32"))

    def clean(versions):
        settings = {"epochs": 2, "dim": 8}
        return corruption._embeddings(method, "cora", settings, graph, versions, 0, plan)[0]

    assert np.array_equal(clean([graph]), clean([other]))
