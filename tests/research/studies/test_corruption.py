import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl.graphs.collection import GraphCollection
from graphcl.research.rows import execute
from graphcl.research.studies import STUDIES, corruption
from graphcl.research.studies.corruption import (
    missing_features,
    missing_links,
    spurious_links,
    with_versions,
)
from graphcl.research.studies.study import Plan
from graphcl.research.systems import SYSTEMS


def rng():
    return np.random.default_rng(0)


CPU = torch.device("cpu")


def pairs(graph):
    return set(map(tuple, graph.edge_index().T.tolist()))


def test_links_are_removed_and_added(graph):
    fewer, more = missing_links(graph, 0.5, rng()), spurious_links(graph, 0.5, rng())
    assert pairs(fewer) < pairs(graph) < pairs(more)
    assert abs(fewer.num_edges / graph.num_edges - 0.5) < 0.2
    assert graph.num_edges < more.num_edges <= 1.5 * graph.num_edges
    for one in (fewer, more):
        assert np.array_equal(one.x, graph.x)
        assert np.array_equal(one.test_mask, graph.test_mask)


def test_features_are_removed_and_the_graph_is_unchanged(graph):
    before = graph.x.copy()
    poorer = missing_features(graph, 0.5, rng())
    kept = poorer.x == graph.x
    assert 0.4 < kept.mean() < 0.6
    assert not poorer.x[~kept].any()
    assert pairs(poorer) == pairs(graph)
    assert np.array_equal(graph.x, before)


def test_sparse_features_lose_values_and_store_no_zeros(graph):
    x = scipy.sparse.csr_array(np.ones((graph.num_nodes, 3), "float32"))
    poorer = missing_features(graph.replace(x=x), 0.5, rng()).x
    assert 0.4 < poorer.nnz / x.nnz < 0.6
    assert (poorer.data == 1).all()


def test_predictions_in_a_version_are_those_of_weights_learned_on_the_graph(graph):
    # A version equal to the graph must be classified as the graph is, and labels stay in the graph.
    same = with_versions(graph, [graph, missing_links(graph, 0.9, rng())])
    assert same.num_nodes == 3 * graph.num_nodes
    assert (same.y[graph.num_nodes :] == -1).all()
    assert same.train_mask.sum() == graph.train_mask.sum()
    if "gcn" in SYSTEMS:
        predicted = SYSTEMS["gcn"].method("cora", epochs=5).fit_predict(same, seed=0, device=CPU)
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
    other = graph.replace(x=np.random.default_rng(1).normal(size=graph.x.shape).astype("float32"))

    def clean(version):
        system = SYSTEMS[method].method("cora", **plan.settings)
        collection = GraphCollection((graph,), test=(version,), name="cora")
        return np.split(system.embed(collection, seed=0, device=CPU), 2)[0]

    assert np.array_equal(clean(graph), clean(other))
