import numpy as np
import pytest
import scipy.sparse

from graphcl.graphs.collection import GraphCollection
from graphcl.research.rows import execute
from graphcl.research.studies import STUDIES, sweeps
from graphcl.research.studies.study import Plan
from graphcl.research.studies.sweeps import (
    missing_features,
    missing_links,
    spurious_links,
    with_versions,
)
from graphcl.research.systems import SYSTEMS
from tests.research.studies.conftest import CPU, run


def test_the_grid_covers_the_papers_ranges():
    assert (min(sweeps.EDGE_DROPS), max(sweeps.EDGE_DROPS)) == (0.05, 0.75)
    assert (min(sweeps.FEATURE_DROPS), max(sweeps.FEATURE_DROPS)) == (0.2, 0.8)
    assert {0.1, 0.5, 0.8, 1.0} <= set(sweeps.TEMPERATURES)
    assert {20, 50, 100, 150, 200} <= set(sweeps.MARKS)


def test_every_batch_size_gets_as_many_updates(tiny, monkeypatch):
    monkeypatch.setattr(sweeps, "BATCHES", (16, 30, 1000, 0))
    plan = Plan(datasets=("cora",), seeds=(0,), device=CPU, settings={"epochs": 20, "dim": 8})
    about = [one for job in STUDIES["batch"].jobs(plan) for one in job.about]
    # 60 nodes: 4 batches of 16, 2 of 30, 1 of all; 1,000 nodes are more than there are.
    assert [(one["batch_nodes"], one["updates"]) for one in about] == [(16, 20), (30, 20), (60, 20)]


def test_epochs_are_probed_on_the_way(tmp_path, tiny, monkeypatch):
    from graphcl import GraphCL, linear_probe
    from graphcl.recipes import load_recipe

    monkeypatch.setattr(sweeps, "MARKS", (0, 2))
    _, found = run("epochs", tmp_path / "r.jsonl", seeds=(0,))
    by = {row["epochs"]: row for row in found}
    assert set(by) == {0, 2, 3}
    for epochs in (2, 3):
        recipe = load_recipe("cora").replace(dim=8, epochs=epochs)
        z = GraphCL(recipe, seed=0, device="cpu").fit_transform(tiny["cora"])
        assert by[epochs]["accuracy"] == linear_probe(z, tiny["cora"]).accuracy


def test_the_bound_of_one_direction_is_the_tighter(tmp_path, tiny):
    study, found = run("bound", tmp_path / "r.jsonl", seeds=(0,))
    (row,) = found
    assert len(row["loss_by_epoch"]) == 3
    by = {(line["epoch"], line["bound"]): line["mean"] for line in study.summary(found)}
    log_k = row["bound_by_epoch"][0] + row["loss_by_epoch"][0]
    assert by[1, "log k − L/2"] == pytest.approx(log_k - row["loss_by_epoch"][0] / 2)
    assert by[1, "log k − L"] == row["bound_by_epoch"][0] < by[1, "log k − L/2"] < log_k


def test_complexity_times_both_ways_to_train(tmp_path, monkeypatch):
    monkeypatch.setitem(sweeps.SIZES, "cpu", (64, 128))
    study, found = run("complexity", tmp_path / "r.jsonl", seeds=(0,), datasets=())
    assert {(row["mode"], row["nodes"]) for row in found} == {
        (mode, nodes) for mode in ("sampled", "full") for nodes in (64, 128)
    }
    assert all(row["seconds"] > 0 for row in found)
    assert study.draw(found) is not None


def test_the_exponent_is_a_slope():
    lines = [{"nodes": n, "mean": 3e-4 * n**2} for n in (10, 100, 1000)]
    assert sweeps.exponent(lines) == pytest.approx(2)
    assert sweeps.exponent([{"nodes": 1, "mean": 5.0}, *lines]) == pytest.approx(2)
    assert sweeps.exponent(lines[:1]) is None


def test_devices_are_not_averaged_with_each_other():
    found = [
        {
            "graph": "synthetic",
            "seed": 0,
            "mode": "full",
            "device": device,
            "nodes": n,
            "seconds": s,
        }
        for device, rate in (("cpu", 1.0), ("GPU", 0.01))
        for n, s in ((10, rate * 10), (20, rate * 20))
    ]
    study = STUDIES["complexity"]
    lines = study.summary(found)
    assert [line["mean"] for line in lines] == [0.1, 0.2, 10, 20]
    assert all(line["exponent"] == pytest.approx(1) for line in lines)
    assert len(study.draw(found).axes[0].get_legend_handles_labels()[0]) == 2


def rng():
    return np.random.default_rng(0)


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
    monkeypatch.setattr(sweeps, "LEVELS", (0.3, 0.9))
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
