"""Updates of large runs, whose versions keep patches and the layers below the last."""

import numpy as np
import pytest

import graphcl
from graphcl.estimator.model import GraphCL
from graphcl.files import patched
from graphcl.graphs.graph import Graph
from graphcl.runs import versions
from graphcl.runs.files import read_embeddings
from graphcl.updating import version
from tests.conftest import random_graph
from tests.updating.test_run import ENCODERS, assert_exact, features, pairs, saved

NODES = "graph/part-00000/nodes-0"


@pytest.fixture
def large(monkeypatch):
    """Every table counts as large."""
    monkeypatch.setattr(patched, "SMALL_BYTES", 0)
    monkeypatch.setattr(version, "SMALL_BYTES", 0)


def ring(size=400, width=6):
    random = np.random.default_rng(0)
    ends = np.arange(size)
    edges = np.concatenate([np.stack([ends, (ends + step) % size]) for step in (1, 2)], axis=1)
    return Graph.from_edge_index(edges, random.normal(size=(size, width)).astype(np.float32))


def hidden(path):
    return sorted(file.name for file in path.glob("hidden-*"))


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_a_version_holds_what_changed(tmp_path, large, kind):
    graph = ring()
    graph.save(tmp_path / "store", features=kind)
    stored = Graph.open(tmp_path / "store")
    saved(tmp_path / "run", stored, recipe="cora", encoder="mean", layers=2)
    first = (
        graphcl.Run(tmp_path / "run", graph=stored)
        .update(nodes=features([400], 6), edges=pairs([(400, 399)]))
        .path
    )
    assert sorted(file.name for file in first.glob("embeddings*")) == [
        *("embeddings.base.npy", "embeddings.patch.npy", "embeddings.rows.npy"),
    ]
    assert (first / f"{NODES}/x.base.npy").samefile(tmp_path / "store/part-00000/nodes-0/x.npy")
    assert (first / "embeddings.base.npy").samefile(tmp_path / "run/embeddings.npy")
    Graph.open(first / "graph", verify=True)
    assert_exact(tmp_path / "run")
    second = graphcl.Run(tmp_path / "run").update(nodes=features([7, 401], 6, seed=1)).path
    assert (second / f"{NODES}/x.base.npy").samefile(tmp_path / "store/part-00000/nodes-0/x.npy")
    for name in ("indptr", "indices"):
        base = second / f"graph/part-00000/relation-0/{name}.base.npy"
        assert base.samefile(tmp_path / f"store/part-00000/relation-0/{name}.npy")
    Graph.open(second / "graph", verify=True)
    assert_exact(tmp_path / "run")
    # A change of edges alone shares the features as they are.
    third = graphcl.Run(tmp_path / "run").update(edges=pairs([(0, 100)])).path
    assert (third / f"{NODES}/x.rows.npy").samefile(second / f"{NODES}/x.rows.npy")
    Graph.open(third / "graph", verify=True)
    assert_exact(tmp_path / "run")
    # A patch that was altered is found.
    (third / f"{NODES}/x.patch.npy").unlink()
    np.save(
        third / f"{NODES}/x.patch.npy",
        np.load(second / f"{NODES}/x.patch.npy") * 2,
    )
    with pytest.raises(graphcl.errors.StoreError, match=r"x\.patch\.npy: altered or damaged"):
        Graph.open(third / "graph", verify=True)
    # The way back, and removed nodes, whose rows move.
    graphcl.Run(tmp_path / "run").rollback(2)
    assert_exact(tmp_path / "run")
    fourth = graphcl.Run(tmp_path / "run").update(remove_nodes=[5]).path
    assert (fourth / "embeddings.npy").exists()
    assert_exact(tmp_path / "run")


@pytest.mark.parametrize("name", ENCODERS)
def test_layers_that_are_kept_give_the_same_embeddings(tmp_path, large, monkeypatch, name):
    monkeypatch.setattr(version, "AROUND", 0.0)
    graph = random_graph()
    saved(tmp_path / "run", graph, **ENCODERS[name])
    done = graphcl.Run(tmp_path / "run", graph=graph, device="cpu").update(
        nodes=features([60]), edges=pairs([(60, 3)])
    )
    layers = {"mean": 2, "residual": 3, "gcn": 1}.get(name, 2)
    assert hidden(done.path) == [f"hidden-{number}.npy" for number in range(1, layers)]
    assert_exact(tmp_path / "run")
    for step in (
        {"nodes": features([2, 61], seed=1), "edges": pairs([(61, 60), (2, 40)])},
        {"remove_nodes": [2, 30]},
        {"nodes": features([9], seed=2), "remove_edges": pairs([(60, 3)])},
    ):
        done = graphcl.Run(tmp_path / "run", device="cpu").update(**step)
        assert bool(hidden(done.path)) == (layers > 1)
        assert_exact(tmp_path / "run")
    # Another model has other layers: none is kept, and the next update begins anew.
    done = graphcl.Run(tmp_path / "run", device="cpu").update(retrain=True, epochs=1)
    assert hidden(done.path) == []
    assert_exact(tmp_path / "run")
    done = graphcl.Run(tmp_path / "run", device="cpu").update(nodes=features([11], seed=3))
    assert bool(hidden(done.path)) == (layers > 1)
    assert_exact(tmp_path / "run")


def test_layers_are_kept_where_many_are_needed(tmp_path, large):
    graph = ring(2000)
    saved(tmp_path / "run", graph, recipe="cora", encoder="mean", layers=2)
    near = graphcl.Run(tmp_path / "run", graph=graph).update(edges=pairs([(0, 3)]))
    assert hidden(near.path) == []
    far = pairs([(one, one + 1000) for one in range(0, 1000, 10)])
    done = graphcl.Run(tmp_path / "run").update(edges=far)
    assert hidden(done.path) == ["hidden-1.npy"]
    assert_exact(tmp_path / "run")
    again = graphcl.Run(tmp_path / "run").update(edges=pairs([(1, 1500)]))
    assert hidden(again.path) == ["hidden-1.base.npy", "hidden-1.patch.npy", "hidden-1.rows.npy"]
    assert len(np.load(again.path / "hidden-1.rows.npy")) == 2
    assert_exact(tmp_path / "run")
    # A table of another shape is not taken for a layer.
    np.save(again.path / "hidden-1.npy", np.zeros((3, 12), np.float32))
    assert hidden(graphcl.Run(tmp_path / "run").update(edges=pairs([(5, 9)])).path) == []
    assert_exact(tmp_path / "run")


def test_weighted_and_sparse_graphs_too(tmp_path, large, monkeypatch):
    import scipy.sparse

    monkeypatch.setattr(version, "AROUND", 0.0)
    plain = ring(60)
    weight = np.random.default_rng(1).uniform(0.5, 2, plain.num_edges).astype(np.float32)
    once = plain.edge_index()[:, plain.edge_index()[0] < plain.edge_index()[1]]
    x = scipy.sparse.csr_array(np.where(np.abs(plain.x) > 1, plain.x, 0))
    graph = Graph.from_edge_index(once, x, edge_weight=weight)
    saved(tmp_path / "run", graph, recipe="default", layers=2)
    new = pairs([(60, 3)]).append_column("weight", [[1.5]])
    graphcl.Run(tmp_path / "run", graph=graph).update(
        nodes=features([60], 6), edges=new, weight="weight"
    )
    assert_exact(tmp_path / "run")
    graphcl.Run(tmp_path / "run").update(nodes=features([4], 6, seed=1))
    assert_exact(tmp_path / "run")


def test_every_command_reads_a_patched_version(tmp_path, large, monkeypatch, capsys):
    from graphcl.cli.main import run

    monkeypatch.chdir(tmp_path)
    graph = ring(60)
    saved("run", graph, recipe="cora", encoder="mean", layers=2)
    done = graphcl.Run("run", graph=graph).update(nodes=features([60], 6), edges=pairs([(60, 59)]))
    assert not (done.path / "embeddings.npy").exists()
    z = read_embeddings(versions.current_run(tmp_path / "run"))
    model = GraphCL.load("run", device="cpu")
    np.testing.assert_array_equal(model.transform(Graph.open(done.path / "graph")), z)
    for words in (
        ["neighbors", "run", "60", "-k", "2"],
        ["cluster", "run", "--out", "groups.csv"],
        ["links", "run", "--out", "links.csv"],
        ["embed", "run", "--out", "z.npy"],
        ["embed", "run", "--out", "z.parquet"],
        ["export", "run", "--to", "card", "--out", "card"],
        ["report", "run", "--map", "pca"],
    ):
        assert run(words) == 0, (words, capsys.readouterr().err)
    np.testing.assert_array_equal(np.load("z.npy"), z)
