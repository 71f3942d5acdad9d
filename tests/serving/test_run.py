"""What a run answers, against the commands' own functions."""

import gc
import io
import json
import shutil
import threading
import time
import weakref
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

import graphcl
from graphcl.answers.learning import learn
from graphcl.answers.prediction import predict
from graphcl.answers.similar import neighbors
from graphcl.cli.main import run
from graphcl.errors import RunError
from graphcl.estimator.model import GraphCL
from graphcl.evaluation.unsupervised import build_index, unit_rows
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.runs.versions import current_run, mark_of, own_graph
from graphcl.serving import run as served_run
from graphcl.serving.app import build_app
from graphcl.serving.requests import ARROW, Bounds, New
from graphcl.serving.run import Current, NotYetError, ServedRun, UnknownError
from tests.serving.conftest import Client, client_of


def test_similar_nodes_are_those_of_the_command(served, a_run):
    graph = a_run[1]
    rows = np.array([0, 7, 59])
    found = served.near(served.z[rows], 5, list(rows[:, None]))
    expected = neighbors(np.asarray(served.z), [f"node {row}" for row in rows], 5, graph=graph)
    for one, nearest, cosines in zip(found, expected.nearest, expected.cosines, strict=True):
        assert one[0].tolist() == nearest.tolist()
        np.testing.assert_allclose(one[1], cosines, atol=1e-6)


def test_similar_nodes_through_an_index(a_run, tmp_path, monkeypatch):
    """One thread builds the index: it is the same every time, and rounds to half precision."""
    path = shutil.copytree(a_run[0], tmp_path / "run")
    monkeypatch.setattr("graphcl.serving.run.EXACT_ROWS", 10)
    monkeypatch.setattr("graphcl.answers.similar.build_index", partial(build_index, threads=1))
    by_index = ServedRun(path, a_run[1])
    monkeypatch.undo()
    exact = ServedRun(*a_run)
    rows, unit = np.arange(60), unit_rows(exact.z)
    both = [one.near(one.z[rows], 4, list(rows[:, None])) for one in (by_index, exact)]
    for row, (near, cosines), (_, best) in zip(rows, *both, strict=True):
        assert len({*near.tolist(), row}) == 5
        np.testing.assert_allclose(cosines, unit[near] @ unit[row], atol=1e-6)
        assert (cosines >= best - 2**-10).all()  # none is missed for one that is less similar


def test_more_similar_nodes_than_there_are(served):
    (found,) = served.near(served.z[:1], 1000, [np.array([0, 1])])
    assert sorted(found[0].tolist()) == list(range(2, 60))


def test_predictions_are_those_of_the_command(served, a_run):
    expected = predict(np.asarray(served.z), a_run[1], nodes="all")
    found = served.predict(np.arange(60))
    names = expected.classes
    table = [[one["probabilities"][name] for name in names] for one in found]
    np.testing.assert_allclose(table, expected.probabilities, atol=1e-6)
    assert [one["label"] for one in found] == expected.labels


def test_a_new_node_that_is_a_copy_is_looked_at_like_the_node(served, a_run):
    relation, row = a_run[1].only_relation, 7
    near = relation.indices[relation.indptr[row] : relation.indptr[row + 1]]
    new = New(np.asarray(a_run[1].x[[row]]), [[f"node {one}" for one in near]])
    learned = served._fit_labels()
    evidence = learned.evidence
    z = np.asarray(served.z[[row]])
    known = evidence.take(np.array([row]))
    copied = evidence.of_new(z, new.features, [near])
    assert known.keys() == copied.keys()
    assert len(known) >= 5
    for name, table in known.items():
        np.testing.assert_allclose(copied[name], table, atol=1e-4)
    (found,) = served.predict_new(z, new)
    (expected,) = learned.of_rows(np.array([row]))  # with what its neighbours add
    np.testing.assert_allclose(list(found["probabilities"].values()), expected, atol=1e-4)


def test_labels_that_take_long_to_learn(a_run, monkeypatch):
    from graphcl.serving import run as module

    whole = ServedRun(*a_run).predict(np.array([50]))
    begun = threading.Event()

    def slow(*arguments, **options):
        begun.wait(10)
        return learn(*arguments, **options)

    monkeypatch.setattr(module, "LEARNING_SECONDS", 0.05)
    monkeypatch.setattr(module, "learn", slow)
    served = ServedRun(*a_run)
    for _ in range(2):
        with pytest.raises(NotYetError):
            served.predict(np.array([0]))
    begun.set()
    served._labels_learner.done.result(60)
    assert served.predict(np.array([50])) == whole


def test_labels_that_are_being_learned_keep_no_thread_waiting(a_run, monkeypatch):
    from graphcl.serving import run as module

    begun = threading.Event()
    monkeypatch.setattr(module, "LEARNING_SECONDS", 0.5)
    monkeypatch.setattr(module, "learn", lambda *_, **__: begun.wait(10))
    served = ServedRun(*a_run)
    began = time.monotonic()
    for _ in range(6):  # the first waits; by then it is known that they take long
        with pytest.raises(NotYetError):
            served.predict(np.array([0]))
    assert time.monotonic() - began < 1.5
    begun.set()


def test_a_fault_while_labels_are_learned_is_raised_where_they_are_asked_for(a_run, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("graphcl.serving.run.learn", fails)
    served = ServedRun(*a_run)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a fault of ours"):
            served.predict(np.array([0]))


def test_labels_are_learned_once_for_all_workers_and_starts(a_run, tmp_path, monkeypatch):
    path = shutil.copytree(a_run[0], tmp_path / "run")
    (path / "labels.safetensors").unlink(missing_ok=True)
    rows, first = np.arange(60), ServedRun(path, a_run[1])
    expected = first.predict(rows)
    assert (path / "labels.safetensors").is_file()
    monkeypatch.setattr("graphcl.evaluation.calibration._fit", None)  # nobody learns again
    assert ServedRun(path, a_run[1]).predict(rows) == expected


def test_of_many_labels_a_sample_is_learned(a_run, monkeypatch):
    monkeypatch.setattr("graphcl.serving.run.MOST_LABELLED", 20)
    served = ServedRun(*a_run)
    rows = np.arange(60)
    found = served.predict(rows)
    assert len(served._fit_labels().labelled) == 20
    plain = served._fit_labels().of_rows(rows)
    others = np.setdiff1d(rows, served._fit_labels().labelled)
    names = ("red", "green", "blue")
    table = np.array([[one["probabilities"][name] for name in names] for one in found])
    np.testing.assert_array_equal(table[others], plain[others].astype(float))


def test_new_nodes_are_the_models(served, a_run, new_node):
    features, near = new_node[1]
    path, graph = a_run
    expected = GraphCL.load(path, device="cpu").embed_new(features, near, graph=graph)
    np.testing.assert_array_equal(served.embed_new(New(features[None], [near]))[0], expected)


def test_neighbours_in_the_graph(served, a_run):
    graph = a_run[1]
    for row, found in enumerate(served.linked(np.arange(60))):
        own = [int(b) for a, b in graph.edge_index().T if a == row]
        assert found.tolist() == [*own, row]


def test_a_run_without_labels_predicts_nothing(tmp_path):
    graph = Graph.from_edge_index([[0, 1], [1, 2]], np.eye(3))
    GraphCL(epochs=1, dim=8, device="cpu").fit(graph).save(tmp_path / "run", graph=graph)
    served = ServedRun(tmp_path / "run", graph)
    assert not served.can_predict
    with pytest.raises(UnknownError, match="no labels"):
        served.predict(np.array([0]))
    with pytest.raises(UnknownError, match="no node has the id 'x'"):
        served.rows(["x"])
    assert served.id(2) == 2


def test_graphs_that_do_not_fit_are_refused(a_run, tmp_path):
    path, graph = a_run
    with pytest.raises(RunError, match="a service is of one"):
        ServedRun(path, GraphCollection((graph,), (), (), name="several"))
    fewer = Graph.from_edge_index([[0], [1]], graph.x[:5])
    with pytest.raises(RunError, match="60 embeddings and 60 nodes for a graph of 5"):
        ServedRun(path, fewer)


@pytest.fixture(scope="module")
def from_tables(tmp_path_factory):
    """A run of tables: numbers, categories, dates and text, with missing values."""
    place = tmp_path_factory.mktemp("columns")
    number = 40
    table = pyarrow.table(
        {
            "id": [f"n{row}" for row in range(number)],
            "age": [None if row == 3 else row * 1.5 for row in range(number)],
            "city": [("Oslo", "Bergen", None)[row % 3] for row in range(number)],
            "born": [f"19{50 + row}-03-0{1 + row % 9}" for row in range(number)],
            "says": [f"word{row % 7} and {row % 5} things" for row in range(number)],
        }
    )
    ends = [(row, (row + step) % number) for row in range(number) for step in (1, 5)]
    listed = [[f"n{pair[at]}" for pair in ends] for at in (0, 1)]
    edges = pyarrow.table(dict(zip(("source", "target"), listed, strict=True)))
    graph = graphcl.read_tables(edges, table, text="says", missing="mean")
    pyarrow.parquet.write_table(table, place / "nodes.parquet")
    pyarrow.parquet.write_table(edges, place / "edges.parquet")
    words = ["train", str(place / "edges.parquet"), "--nodes", str(place / "nodes.parquet")]
    words += ["--text", "says", "--missing", "mean", "--set", "epochs=1", "--set", "dim=8"]
    assert run([*words, "--out", str(place / "run")]) == 0
    return place / "run", graph


RAW = {"age": 30, "city": "Oslo", "born": "1971-05-06", "says": "word3 things"}
HOLES = {"age": None, "city": None, "born": None, "says": None}


def test_columns_of_the_users_table_are_prepared(from_tables, tmp_path, monkeypatch):
    """The same as `embed --new`, and as the rows of an update."""
    monkeypatch.chdir(tmp_path)
    path, graph = from_tables
    shutil.copytree(path, "run")
    graph.save("store")
    client = client_of(ServedRun(Path("run"), graph))
    new = [{"columns": row, "neighbors": near} for row, near in ((RAW, ["n3"]), (HOLES, ["n9"]))]
    answer = client.post("/v1/embed", {"new": new}).json()
    found = np.array([one["embedding"] for one in answer["nodes"]], np.float32)
    # Arrow: columns under their own names.
    rows = [{**one["columns"], "neighbors": one["neighbors"]} for one in new]
    rows[0]["born"] = date(1971, 5, 6)
    # Also where nothing is known of any node: these columns have no type.
    for some, by_json in ((rows, new), (rows[1:], new[1:])):
        body = io.BytesIO()
        listed = pyarrow.Table.from_pylist(some)
        with pyarrow.ipc.new_stream(body, listed.schema) as writer:
            writer.write_table(listed)
        headers = {"content-type": ARROW}
        by_arrow = client("POST", "/v1/embed", content=body.getvalue(), headers=headers).json()
        assert by_arrow == client.post("/v1/embed", {"new": by_json}).json()
    # The command line.
    Path("new.json").write_text(json.dumps({"new": new}))
    assert run(["embed", "run", "store", "--new", "new.json", "--out", "z.npy"]) == 0
    np.testing.assert_array_equal(np.load("z.npy"), found)
    # One at a time, so that they do not see each other: an update with the same rows.
    for place, one in enumerate(new):
        (alone,) = client.post("/v1/embed", {"new": [one]}).json()["nodes"]
        more = pyarrow.table(
            {"id": ["new"], **{key: pyarrow.array([value]) for key, value in RAW.items()}}
        )
        if place:
            none = {key: pyarrow.nulls(1, more.schema.field(key).type) for key in HOLES}
            more = pyarrow.table({"id": ["new"], **none})
        links = pyarrow.table({"source": ["new"], "target": one["neighbors"]})
        done = graphcl.Run("run", graph=graph, device="cpu").update(nodes=more, edges=links)
        z = np.load(done.path / "embeddings.npy")[-1]
        np.testing.assert_allclose(alone["embedding"], z, atol=1e-6)
        graphcl.Run("run").rollback(0)
    about = client.get("/openapi.json").json()["components"]["schemas"]["NewNode"]
    assert set(about["properties"]["columns"]["properties"]) == set(RAW)
    examples = client.get("/openapi.json").json()["paths"]["/v1/embed"]["post"]["requestBody"]
    shown = examples["content"]["application/json"]["examples"]["new"]["value"]
    assert client.post("/v1/embed", shown).status_code == 200


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"columns": RAW | {"agee": 1}}, "unknown column 'agee'; did you mean 'age'?"),
        ({"columns": {"age": 1}}, "has no column 'city'"),
        ({"columns": RAW | {"age": "old"}}, "column 'age': 'old' is not a number"),
        ({"columns": RAW | {"born": "soon"}}, "'soon' is not a date"),
        ({"columns": RAW | {"city": {}}}, "is not a category"),
        ({"columns": RAW | {"age": 1e300}}, "outside the range of float32"),
        ({"columns": [1, 2]}, "new.0.columns: Input should be a valid dictionary"),
        ({"columns": RAW, "features": {}}, "features or columns"),
        ({"neighbors": []}, "features or columns"),
    ],
)
def test_columns_that_do_not_fit_are_refused(from_tables, node, message):
    client = client_of(ServedRun(*from_tables))
    answer = client.post("/v1/embed", {"new": [node]})
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_a_run_without_a_table_takes_features(client):
    answer = client.post("/v1/embed", {"new": [{"columns": {"age": 3}}]})
    assert answer.status_code == 400
    assert "not trained on a table with columns; give features" in answer.json()["error"]
    about = client.get("/openapi.json").json()["components"]["schemas"]["NewNode"]
    assert "columns" not in about["properties"]


@pytest.fixture
def place(a_run, tmp_path):
    """A copy of the run, what loads its version in use, and its graph."""
    path = Path(shutil.copytree(a_run[0], tmp_path / "run"))

    def load(before):
        folder = current_run(path)
        own = own_graph(folder)
        return ServedRun(folder, Graph.open(own) if own else a_run[1], before=before)

    return path, load, a_run[1]


def update(path, graph, **changes):
    return graphcl.Run(path, graph=graph, device="cpu").update(**changes)


def test_it_turns_to_an_update_and_back(place):
    path, load, graph = place
    current = Current(load, lambda: mark_of(path))
    client = Client(build_app(current, bounds=Bounds(per_second=0)))
    assert client.get("/ready").status_code == 503  # labels are not learned yet
    current.served.learn()
    client.post("/v1/predict", {"ids": ["node 1"]})
    assert client.get("/ready").json()["version"] == 0
    current.turn()
    assert client.get("/ready").json()["version"] == 0
    done = update(path, graph, remove_nodes=["node 7"])
    assert client.get("/ready").json()["version"] == 0  # it has not looked yet
    current.turn()
    about = client.get("/ready").json()
    assert (about["ready"], about["version"], about["nodes"]) == (True, 1, 59)
    assert client.post("/v1/embed", {"ids": ["node 7"]}).status_code == 404
    found = client.post("/v1/embed", {"ids": ["node 8"]}).json()["nodes"][0]["embedding"]
    expected = np.load(done.path / "embeddings.npy")[7]
    np.testing.assert_array_equal(np.array(found, np.float32), expected)
    graphcl.Run(path).rollback()
    current.turn()
    assert client.get("/ready").json()["version"] == 0
    assert client.post("/v1/embed", {"ids": ["node 7"]}).status_code == 200


def test_a_request_keeps_its_version_and_none_is_dropped(place, monkeypatch):
    path, load, graph = place
    current = Current(load, lambda: mark_of(path))
    client = Client(build_app(current, bounds=Bounds(per_second=0)))
    begun, go_on, statuses = threading.Event(), threading.Event(), []
    near = ServedRun.near

    def slow(self, *arguments):
        if self.version == 0:
            begun.set()
            go_on.wait(10)
        return near(self, *arguments)

    monkeypatch.setattr(ServedRun, "near", slow)

    def ask():
        statuses.append(client.post("/v1/neighbors", {"ids": ["node 7"]}).status_code)

    asker = threading.Thread(target=ask)
    asker.start()
    assert begun.wait(10)
    update(path, graph, remove_nodes=["node 7"])
    current.turn()
    assert client.post("/v1/embed", {"ids": ["node 7"]}).status_code == 404
    go_on.set()
    asker.join()
    assert statuses == [200]


def test_the_old_version_is_let_go(place):
    path, load, graph = place
    current = Current(load, lambda: mark_of(path))
    client = Client(build_app(current, bounds=Bounds(per_second=0)))
    assert client.post("/v1/links", {"ids": ["node 1"]}).status_code in (200, 503)
    old = weakref.ref(current.served)
    update(path, graph, remove_nodes=["node 7"])
    current.turn()
    assert current.served._links_learner.done.done()  # as the old one had learned it
    client.get("/ready")
    gc.collect()
    assert old() is None


def test_a_version_that_cannot_be_loaded_changes_nothing(place, capsys, monkeypatch):
    path, load, graph = place
    current = Current(load, lambda: mark_of(path))
    done = update(path, graph, remove_nodes=["node 7"])
    (done.path / "model.safetensors").rename(done.path / "gone")
    for _ in range(3):
        current.turn()
    assert current.served.version == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("serve: stays at version 0: ")
    (done.path / "gone").rename(done.path / "model.safetensors")
    monkeypatch.setattr("graphcl.serving.run.AGAIN", 0.0)
    current._again = 0.0
    current.turn()
    assert current.served.version == 1


def test_versions_that_come_more_quickly_than_they_are_loaded(place):
    """Each one that was loaded answers, and is whole; the service does not wait for a pause."""
    path, load, graph = place
    made = [update(path, graph, remove_nodes=["node 7"]).version]

    def late(before):
        found = load(before)
        if before is not None and len(made) < 3:
            more = graphcl.Run(path, device="cpu").update(remove_nodes=[f"node {len(made) + 20}"])
            made.append(more.version)
        return found

    graphcl.Run(path).rollback(0)
    current = Current(late, lambda: mark_of(path))
    graphcl.Run(path).rollback(1)
    answered = []
    for _ in range(4):
        current.turn()
        answered.append((current.served.version, len(current.served.z)))
    assert answered == [(1, 59), (2, 58), (3, 57), (3, 57)]


def test_it_looks_by_itself(place, monkeypatch):
    path, load, graph = place
    monkeypatch.setattr("graphcl.serving.run.LOOK", 0.02)
    current, looks = Current(load, lambda: mark_of(path)), []
    current.watch(lambda: looks.append(current.served.version))
    update(path, graph, remove_nodes=["node 7"])
    ends = time.monotonic() + 60
    while (not looks or looks[-1] != 1) and time.monotonic() < ends:
        time.sleep(0.02)
    assert looks[0] == 0
    assert looks[-1] == 1
    current.close()
    time.sleep(0.1)
    seen = len(looks)
    time.sleep(0.2)
    assert len(looks) == seen  # it looks no more


def test_the_index_follows_an_update(place, monkeypatch):
    """Rows that differ are put in anew, and found; an index now and then misses a node."""
    path, load, graph = place
    monkeypatch.setattr(served_run, "EXACT_ROWS", 10)
    monkeypatch.setattr(served_run, "MOST_ANEW", 1)
    before = load(None)
    made = []
    monkeypatch.setattr(served_run, "stored_index", lambda *_: made.append(1))
    update(path, graph, edges={"source": ["node 3"], "target": ["node 40"]})
    after = load(before)
    assert not np.array_equal(before.z, after.z)
    assert_near(after)
    # Of rows that have hardly turned, none is put in anew; of others, no old place is left.
    turned = 1 - (unit_rows(before.z[:]) * unit_rows(after.z[:])).sum(axis=1)
    held = unit_rows(np.stack(after._index.get(np.arange(60))))
    stale = 1 - (held * unit_rows(after.z[:])).sum(axis=1)
    assert (turned > served_run.STAYS).any()
    assert stale.max() <= served_run.STAYS + 1e-6
    # More nodes, and the way back to fewer.
    update(path, None, nodes=new_node(graph), edges={"source": ["new"], "target": ["node 3"]})
    grown = load(after)
    assert len(grown._index) == 61
    assert_near(grown)
    graphcl.Run(path).rollback()
    back = load(grown)
    assert len(back._index) == 60
    assert_near(back)
    assert made == []


def new_node(graph):
    columns = {f"x{place}": [0.5] for place in range(graph.num_features)}
    return {"id": ["new"], **columns}


def assert_near(served):
    """Nodes find those that are most similar; an index now and then misses one."""
    unit, missed = unit_rows(np.asarray(served.z)), 0
    rows = np.arange(len(unit))
    for row, (near, cosines) in zip(
        rows, served.near(served.z[rows], 3, list(rows[:, None])), strict=True
    ):
        np.testing.assert_allclose(cosines, unit[near] @ unit[row], atol=1e-6)
        best = np.sort(np.delete(unit @ unit[row], row))[::-1][:3]
        missed += int((cosines < best - 2**-8).sum())
    assert missed <= 9  # of 180; with the old rows, most are wrong


def test_a_run_that_is_trained_anew_in_another_width(place, monkeypatch):
    path, load, graph = place
    monkeypatch.setattr(served_run, "EXACT_ROWS", 10)
    before = load(None)
    model = GraphCL(epochs=1, dim=8, device="cpu").fit(graph)
    model.save(path, graph=graph, overwrite=True)
    assert_near(load(before))
