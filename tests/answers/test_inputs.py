import json
import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest

import graphcl
from graphcl.answers.evidence import EMBEDDING, Evidence
from graphcl.answers.inputs import MOST_CLASSES, embeddings_of, ids_of, known_labels
from graphcl.cli.main import run
from graphcl.errors import GraphError, RunError
from graphcl.estimator.model import GraphCL
from graphcl.evaluation.probe import standardiser
from graphcl.partitioned.embeddings import read_parts_nodes
from graphcl.runs.files import weights_digest
from graphcl.store.header import read_store
from graphcl.tabular.build import build_store
from tests.cli.conftest import fails
from tests.conftest import random_graph
from tests.partitioned.test_embeddings import make_shards


class Model:
    def transform(self, graph):
        return np.ones((graph.num_nodes, 2), np.float32)


def test_embeddings_come_from_an_array_a_table_or_a_model(graph):
    import pandas

    assert embeddings_of(Model(), graph, "x").shape == (60, 2)
    assert embeddings_of(pandas.DataFrame(np.eye(60)), graph, "x").shape == (60, 60)
    assert embeddings_of([np.ones((20, 2)), np.ones((40, 2))], graph, "x").shape == (60, 2)
    assert embeddings_of([[1.0, 2.0], [3, 4]], None, "x").tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("wrong", [np.ones(60), np.ones((60, 0)), np.full((60, 2), "a")])
def test_what_is_no_table_of_numbers_is_refused(wrong, graph):
    with pytest.raises(GraphError, match=r"x: embeddings must be numbers \[nodes, dim\]"):
        embeddings_of(wrong, graph, "x")


def test_sizes_must_fit_and_a_model_needs_a_graph(graph):
    with pytest.raises(GraphError, match=r"embeddings \(3, \d+\) for a graph of 60 nodes"):
        embeddings_of(np.eye(3), graph, "x")
    with pytest.raises(GraphError, match="a model needs the graph"):
        embeddings_of(Model(), None, "x")


def test_ids_of_a_graph_without_any_are_numbers(graph):
    assert ids_of(graph, np.eye(60)).tolist() == list(range(60))
    assert ids_of(None, np.eye(3)).tolist() == [0, 1, 2]


NAMES = np.array([f"person {row}" for row in range(90)])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run, its graph in parts, and its embeddings in shards of both kinds."""
    folder = tmp_path_factory.mktemp("made")
    graph = random_graph(num_nodes=90)
    y = np.where(np.arange(90) % 3 == 0, -1, graph.y)
    graph = graph.replace(y=y, node_ids=NAMES, train_mask=None, val_mask=None, test_mask=None)
    graph.save(folder / "store")
    GraphCL("default", epochs=2, dim=8, device="cpu").fit(graph).save(folder / "run", graph=graph)
    build_store(folder / "store", out=folder / "parts", parts=3, order="hash")
    parts, ids = read_store(folder / "parts"), list(read_parts_nodes(folder / "parts").node_ids)
    z = np.load(folder / "run/embeddings.npy")[[NAMES.tolist().index(name) for name in ids]]
    about = {"build": parts.build, "model": weights_digest(folder / "run")}
    names = np.array(ids, dtype=object)
    for suffix in (".npy", ".parquet"):
        make_shards(folder / f"z{suffix}", z, parts.types["node"].starts, suffix, names, **about)
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "made")
    monkeypatch.chdir(tmp_path / "made")


def told(capsys, *arguments):
    assert run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


SHARDS = [["--embeddings", "z.parquet"], ["--embeddings", "z.npy", "--graph", "parts"]]


@pytest.mark.parametrize("shards", SHARDS)
def test_neighbors(here, capsys, monkeypatch, shards):
    monkeypatch.setattr("graphcl.answers.similar._BLOCK", 16)
    asked = ["neighbors", "run", "person 3", "person 70", "-k", "89"]
    whole, found = told(capsys, *asked), told(capsys, *asked, *shards)
    z = np.load("run/embeddings.npy").astype(np.float64)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    for one, other in zip(whole["nodes"], found["nodes"], strict=True):
        own = unit[NAMES.tolist().index(one["id"])]
        got = {near["id"]: near["cosine"] for near in other["neighbors"]}
        assert set(got) == {near["id"] for near in one["neighbors"]}
        for name, cosine in got.items():
            assert cosine == pytest.approx(unit[NAMES.tolist().index(name)] @ own, abs=1e-6)
        values = [near["cosine"] for near in other["neighbors"]]
        assert values == sorted(values, reverse=True)
        if "--graph" in shards:  # the parts have labels
            labels = {near["id"]: near.get("label") for near in one["neighbors"]}
            assert labels == {near["id"]: near.get("label") for near in other["neighbors"]}
    python = graphcl.neighbors("z.parquet", ["person 3", "person 70"], 89)
    assert python.columns()["neighbor"].tolist() == [
        near["id"] for one in found["nodes"] for near in one["neighbors"]
    ]
    by_row = graphcl.neighbors("z.npy", 5, 4)
    assert by_row.columns()["id"].tolist() == [5] * 4
    by_name = graphcl.neighbors(
        "z.npy", list(read_parts_nodes(Path("parts")).node_ids)[5], 4, graph="parts"
    )
    np.testing.assert_array_equal(by_name.nearest, by_row.nearest)


def test_predict(here, capsys, monkeypatch):
    monkeypatch.setattr("graphcl.answers.learning._BLOCK", 7)
    monkeypatch.setattr("graphcl.evaluation.probe._BLOCK_ROWS", 11)
    # Of shards, embeddings are all that is looked at.
    monkeypatch.setattr(
        "graphcl.answers.learning.gather_evidence",
        lambda z, *_, **__: Evidence({EMBEDDING: z}, {EMBEDDING: standardiser(z)}, {}),
    )
    labels = Path("labels.csv")
    with labels.open("w") as file:
        file.write("id,label\n")
        y = random_graph(num_nodes=90).y
        file.writelines(f"{NAMES[row]},c{y[row]}\n" for row in range(0, 90, 2))
    for options in ([], ["--all"]):
        tables = {}
        for name, shards in {"w": [], "n": SHARDS[1], "p": SHARDS[0]}.items():
            asked = ["predict", "run", "--labels", "labels.csv", *options, "--out", f"{name}.csv"]
            assert run([*asked, *shards, "--overwrite"]) == 0
            tables[name] = pandas.read_csv(f"{name}.csv").set_index("id").sort_index()
        for name in ("n", "p"):
            assert tables[name].index.tolist() == tables["w"].index.tolist()
            assert tables[name]["label"].tolist() == tables["w"]["label"].tolist()
            both = [table[["p:c0", "p:c1", "p:c2"]] for table in (tables[name], tables["w"])]
            np.testing.assert_allclose(both[0], both[1], atol=1e-3)  # means over all nodes round
    capsys.readouterr()
    from_parts = told(capsys, "predict", "run", "--embeddings", "z.parquet", "--graph", "parts")
    assert from_parts["nodes"] == 30
    python = graphcl.predict("z.npy", "parts")
    assert {row["id"]: row["label"] for row in from_parts["rows"]} == dict(
        zip(python.ids.tolist(), python.labels, strict=True)
    )
    whole = told(capsys, "predict", "run")
    assert whole["labelled"] == from_parts["labelled"]
    both = [{**one["error"], "how": 0, "roc_auc": 0} for one in (whole, from_parts)]
    each = [np.array(one.pop("by_class")) for one in both]
    np.testing.assert_allclose(each[0], each[1], atol=2e-3)
    assert both[0] == pytest.approx(both[1], abs=1e-3, rel=1e-3)


def test_cluster_and_links(here, capsys):
    whole = told(capsys, "cluster", "run", "--count", "3")
    found = told(capsys, "cluster", "run", "--count", "3", *SHARDS[0])
    groups = {row["id"]: row["group"] for row in found["rows"]}
    assert sorted(whole["sizes"]) == pytest.approx(sorted(found["sizes"]), abs=9)
    assert groups.keys() == {row["id"] for row in whole["rows"]}
    pairs = [("person 3", "person 4"), ("person 8", "person 80")]
    z = np.load("run/embeddings.npy")
    graph = graphcl.Graph.open("store")
    np.testing.assert_allclose(
        graphcl.links("z.parquet", pairs).scores,
        graphcl.links(z, pairs, graph=graph, by="embeddings").scores,
        rtol=1e-5,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--embeddings", "none"], "none: no such folder of embeddings"),
        (["--embeddings", "z.npy"], ".npy shards have no ids; pass --graph PARTS"),
        (["--embeddings", "z.npy", "--graph", "store"], "--graph must be the store in parts"),
        (["--embeddings", "z.npy", "--graph", "other"], "other has the build"),
        (["--embeddings", "z.npy", "--graph", "parts", "--label", "y"], "not tables"),
    ],
)
def test_what_does_not_fit_is_one_line(here, capsys, arguments, message):
    build_store(Path("store"), out=Path("other"), parts=2, order="hash")
    for command in (["neighbors", "run", "person 3"], ["predict", "run"], ["cluster", "run"]):
        assert message in fails(capsys, *command, *arguments)


def test_a_missing_shard_and_another_model(here, capsys):
    GraphCL("default", epochs=1, dim=8, seed=1, device="cpu").fit(random_graph()).save("second")
    second = ["neighbors", "second", "person 3", "--embeddings", "z.parquet"]
    assert "made by another model than that of second" in fails(capsys, *second)
    assert "no node has the id 'person'" in fails(
        capsys, "neighbors", "run", "person", "--embeddings", "z.parquet"
    )
    Path("z.parquet/part-00001.parquet").unlink()
    asked = ["neighbors", "run", "person 3", "--embeddings", "z.parquet"]
    assert "part-00001.parquet: shard 1 of 3 is missing" in fails(capsys, *asked)
    with pytest.raises(RunError, match="shard 1 of 3 is missing"):
        graphcl.neighbors("z.parquet", "person 3")
    with pytest.raises(GraphError, match="graph must be the path of the store in parts"):
        graphcl.neighbors("z.npy", 3, graph=graphcl.Graph.open("store"))


@pytest.mark.parametrize("kind", ["pyg", "networkx"])
def test_answers_take_graphs_of_others(kind):
    if kind == "pyg":
        torch, data = pytest.importorskip("torch"), pytest.importorskip("torch_geometric.data")
        ends = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        given = data.Data(x=torch.eye(6), edge_index=ends, y=torch.arange(6) % 2)
    else:
        networkx = pytest.importorskip("networkx")
        given = networkx.cycle_graph(6)
        for node in given:
            given.nodes[node].update(x=np.eye(6)[node].tolist(), y=node % 2)
    z = np.random.default_rng(0).normal(size=(6, 3))
    assert len(graphcl.cluster(z, 2, graph=given)) == 2
    assert graphcl.neighbors(z, [4], 2, graph=given).rows.tolist() == [4]
    assert len(graphcl.links(z, graph=given, k=2)) == 2
    assert len(graphcl.predict(z, given, nodes="all")) == 6
    assert 0 <= graphcl.linear_probe(z, given).accuracy <= 1


def test_ids_that_differ_by_zeros_are_proposed():
    graph = graphcl.Graph.from_edge_index(
        [[0, 1], [1, 2]], np.eye(3), node_ids=["0712", "0012", "1200"]
    )
    with pytest.raises(GraphError, match="did you mean '0012'"):
        graphcl.neighbors(np.eye(3), ["12"], 1, graph=graph)


def test_classes_several_labels_and_numbers_have_one_form():
    ids = np.arange(4)
    classes = known_labels(np.array([2, -1, 5, 2]), ids)
    assert (classes.kind, classes.classes) == ("classes", (2, 5))
    assert classes.targets.tolist() == [[1, 0], [0, 0], [0, 1], [1, 0]]
    several = known_labels({0: ["a", "b"], 3: ["b"]}, ids)
    assert (several.kind, several.classes, several.known.tolist()) == (
        "several",
        ("a", "b"),
        [True, False, False, True],
    )
    number = known_labels(np.array([1.5, np.nan, -3, 1e9]), ids)
    assert (number.kind, number.classes) == ("number", ())
    assert number.targets[number.known].tolist() == [1.5, -3, 1e9]
    assert known_labels({0: 1, 1: 2, 2: 1}, ids, kind="number").number
    assert known_labels(np.array([0.5, 1.5, np.nan, 0.5]), ids, kind="classes").kind == "classes"


def test_hidden_labels_leave_no_trace():
    for labels in (np.array([1, 0, 1, 0]), np.array([0.5, 2.5, 7.5, 1.5])):
        known = known_labels(labels, np.arange(4)).only(np.array([True, True, False, False]))
        other = known_labels(labels[[0, 1, 1, 1]], np.arange(4))
        again = other.only(np.array([True, True, False, False]))
        assert known.known.tolist() == [True, True, False, False]
        assert known.targets.tolist() == again.targets.tolist()


def test_a_label_of_its_own_for_nearly_every_node_is_no_class():
    names = {row: f"name {row}" for row in range(MOST_CLASSES + 10)}
    with pytest.raises(GraphError, match="60 different labels of 60 nodes are no classes"):
        known_labels(names, np.arange(100))
