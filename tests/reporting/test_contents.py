import shutil
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

import graphcl
from graphcl.cli.main import run
from graphcl.errors import ParameterError
from graphcl.estimator.model import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.partitioned.embeddings import read_parts_nodes
from graphcl.reporting import contents as module
from graphcl.reporting.contents import Sharded, all_columns, gather, read_ranking
from graphcl.reporting.page import render
from graphcl.runs.files import weights_digest
from graphcl.store.header import read_store
from graphcl.tabular.build import build_store
from graphcl.tabular.originals import Original
from tests.cli.conftest import fails
from tests.conftest import random_graph
from tests.partitioned.test_embeddings import make_shards

IDS = ["a", "b", "c", 7]
ABOUT = {"several": False, "labelled": {"no": 90, "yes": 4}}
TABLE = {
    "id": ["a", "7", "c"],
    "label": ["no", "yes", "no"],
    "probability": [0.9, 0.8, 0.7],
    "p:no": [0.9, 0.2, 0.7],
    "p:yes": [0.1, 0.8, 0.3],
}


def shown(found):
    return {one.name: [one.text(row) for row in found.rows.tolist()] for one in found.columns}


def texts(*values):
    return np.array([*values, None], dtype=object)[:-1]


def test_two_classes_are_ranked_by_the_rarer_one():
    found = read_ranking(TABLE, ABOUT, IDS)
    assert [IDS[row] for row in found.rows] == [7, "c", "a"]
    assert shown(found) == {
        "probability of yes": ["80 %", "30 %", "10 %"],
        "prediction": ["yes", "no", "no"],
    }
    assert found.columns[0].text(1) == ""  # b was not predicted


def test_a_sorted_table_says_which_class_is_looked_for_and_reasons_are_shown():
    table = TABLE | {"p:no": [0.9, 0.6, 0.5], "p:yes": [0.1, 0.4, 0.5], "why": ["x", None, "z"]}
    found = read_ranking(table, ABOUT, IDS)
    assert shown(found)["probability of no"] == ["90 %", "60 %", "50 %"]
    assert shown(found)["why"] == ["x", "", "z"]


def test_several_classes_come_by_certainty_numbers_by_value_and_others_as_they_are():
    found = read_ranking(TABLE | {"p:maybe": [0, 0, 0]}, ABOUT, IDS)
    assert shown(found)["probability"] == ["90 %", "80 %", "70 %"]
    value = {"id": ["b", "c"], "value": [1.5, 1200.0], "low": [1.0, 900.0], "high": [2.0, 1500.0]}
    found = read_ranking(value, {}, IDS)
    assert list(shown(found).items()) == [
        ("predicted value", ["1,200", "1.5"]),
        ("at least", ["900", "1"]),
        ("at most", ["1,500", "2"]),
    ]
    several = {"id": ["c", "a"], "label": [["x", "y"], []], "p:x": [1.0, 0.0], "p:y": [1.0, 0.0]}
    found = read_ranking(several, {"several": True}, IDS)
    assert shown(found) == {"prediction": ["x, y", ""]}


def test_unknown_ids_are_left_out():
    found = read_ranking({"id": ["q", "c"], "probability": [0.5, 0.25]}, {}, IDS)
    assert found.rows.tolist() == [2]


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"id": ["a"]},
        {"id": ["x", "y"], "label": ["a", "b"]},
        {"id": ["a", "a"], "probability": [1.0, 2.0]},
        {"id": ["a"], "probability": ["much"]},
        {"id": ["a", "b", "c"], "p:x": [{}, [], 1], "p:y": [1, 2, 3]},
    ],
)
def test_what_is_no_table_of_predictions_of_these_nodes_is_none(table):
    assert read_ranking(table, ABOUT, IDS) is None


def test_predictions_come_first_then_groups_labels_split_and_own_columns():
    nodes = Nodes(
        "node", 4, y=np.array([0, 1, -1, 0]), train_mask=np.array([True, False, False, True])
    )
    label = Original("label", "category", texts("x", "y", None, "x"))
    age = Original("age", "number", np.arange(4.0))
    groups = np.array([0, 1, 1, -1])
    found, own = all_columns(nodes, None, groups, [age, label])
    assert [one.name for one in found] == ["label", "group", "split"]
    assert found[1].values.tolist() == ["group 1", "group 2", "group 2", None]
    assert found[2].values.tolist() == ["train", None, None, "train"]
    assert own == [age]
    ranking = read_ranking(TABLE, ABOUT, IDS)
    found, own = all_columns(nodes, ranking, groups, [age, label])
    names = ["probability of yes", "prediction", "group", "split"]
    assert [one.name for one in found] == names
    assert own == [age, label]


def test_of_many_features_the_largest_of_a_node_are_named():
    flags = scipy.sparse.csr_array(np.array([[1, 1, 1], [1, 1, 0], [0, 1, 0]]))
    wide = np.random.default_rng(0).normal(size=(3, 40))
    wide[1, 7] = 50.0
    columns = [
        Original("said", "text", texts("x" * 999, None, "y")),
        Original("tags", "flags", flags, ("a", "b", "c")),
        Original("features", "features", wide[:, :2], ("one", "two")),
        Original("features", "features", wide, tuple(map(str, range(40)))),
    ]
    _, (said, tags, one, two, many) = all_columns(Nodes("node", 3), None, None, columns)
    assert (len(said.text(0)), said.text(1)) == (160, "")
    assert tags.values.tolist() == ["c, a, b", "a, b", "b"]  # the rarest first
    assert (one.name, two.name) == ("one", "two")
    assert many.text(1).startswith("7 = 50")


def test_several_graphs_have_a_report(collection, tmp_path, recipe):
    GraphCL(recipe, device="cpu").fit(collection).save(tmp_path / "run", graph=collection)
    contents = gather(tmp_path / "run", collection, method="pca")
    assert len(contents.nodes) == collection.num_nodes
    assert np.bincount(contents.nodes.split_codes, minlength=4).tolist() == [
        0,
        *collection.split_nodes,
    ]
    assert '"title":"split"' in render(contents)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    graph = random_graph(num_nodes=90)
    graph.save(folder / "store")
    GraphCL("default", epochs=2, dim=8, device="cpu").fit(graph).save(folder / "run", graph=graph)
    build_store(folder / "store", out=folder / "parts", parts=3, order="hash")
    parts, ids = read_store(folder / "parts"), read_parts_nodes(folder / "parts").node_ids
    about = {"build": parts.build, "model": weights_digest(folder / "run")}
    z = np.load(folder / "run/embeddings.npy")[ids]
    make_shards(folder / "z.npy", z, parts.types["node"].starts, ".npy", ids, **about)
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "made")
    monkeypatch.chdir(tmp_path / "made")


def test_scores_are_those_of_the_whole_graph_and_edges_are_left_out(here):
    sharded = Sharded(Path("run"), Path("z.npy"), "parts", seed=0)
    whole = Graph.open(Path("parts"), restored=False)
    found = gather(Path("run"), None, method="pca", sharded=sharded)
    result = {"graph": {"name": "g"}, "probe": None}
    np.save("run/embeddings.npy", sharded.z[:])  # in the order of the parts: the same folds
    Path("run/nodes.npz").unlink()
    plain = gather(Path("run"), whole, method="pca", result=result)
    assert (found.confusion.counts == plain.confusion.counts).all()
    assert (found.assigned == plain.assigned).all()
    counts = found.confusion.counts
    assert found.result["probe"]["accuracy"] == np.trace(counts) / counts.sum()
    assert found.result["graph"]["edges"] == whole.num_edges
    source = np.repeat(np.arange(90), np.diff(whole.indptr))
    assert plain.homophily == pytest.approx(np.mean(whole.y[source] == whole.y[whole.indices]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_CONFUSED", 2)
        many = gather(Path("run"), whole, method="pca", result=result)
    assert many.confusion is None
    of_edges = ("components", "homophily")
    assert [getattr(found, name) for name in of_edges] == [None] * 2
    assert None not in [getattr(plain, name) for name in of_edges]
    assert "left out" in found.notes[0]


def test_few_labelled_nodes_are_scored_of_many(here, monkeypatch):
    monkeypatch.setattr(module, "SCORED_NODES", 60)
    sharded = Sharded(Path("run"), Path("z.npy"), "parts", seed=0)
    assert len(sharded.scored) == 60
    found = gather(Path("run"), None, method="pca", sharded=sharded)
    assert sum(found.result["probe"]["nodes"]) == 60
    assert found.notes[1] == "The probe sees 60 of the labelled nodes."


def test_the_command_and_python_write_a_page(here, capsys):
    shards = ["--embeddings", "z.npy", "--graph", "parts"]
    assert run(["report", "run", "--map", "pca", "--out", "a.html", *shards]) == 0
    graphcl.Run("run", graph="parts", embeddings="z.npy").report("b.html", layout="pca")
    page = Path("a.html").read_text()
    assert page == Path("b.html").read_text()
    for text in ("Confusion matrix", "is left out"):
        assert text in page
    capsys.readouterr()
    alone = ["report", "run", "--map", "pca", "--embeddings", "z.npy"]
    assert "--graph must be the store in parts" in fails(capsys, *alone)
    with pytest.raises(ParameterError, match="the store in parts"):
        graphcl.Run("run", embeddings="z.npy").report("c.html", layout="pca")
