"""The service answers as `graphcl predict` was told: model, classes, labels and reasons."""

import json
import shutil

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import graphcl
from graphcl.cli.main import run
from graphcl.errors import RunError
from graphcl.runs.versions import current_run
from graphcl.serving.run import ServedRun
from tests.serving.conftest import client_of


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Labels are waited for on a slow machine too."""
    monkeypatch.setattr("graphcl.serving.run.LEARNING_SECONDS", 60.0)


@pytest.fixture(scope="module")
def churn(tmp_path_factory):
    """A run of tables with two classes, half of them known, and a file of other labels."""
    place = tmp_path_factory.mktemp("churn")
    random = np.random.default_rng(0)
    number = 80
    tenure, spend = random.normal(size=number), random.normal(size=number)
    churned = np.where(np.abs(tenure) > 1, "yes", "no")
    told = [one if row % 2 else None for row, one in enumerate(churned)]
    ids = [f"c{row}" for row in range(number)]
    columns = {"id": ids, "tenure": tenure, "spend": spend, "churned": told}
    pyarrow.parquet.write_table(pyarrow.table(columns), place / "nodes.parquet")
    ends = random.integers(0, number, (2, 150))
    ends = ends[:, ends[0] != ends[1]]
    edges = {"source": [ids[row] for row in ends[0]], "target": [ids[row] for row in ends[1]]}
    pyarrow.parquet.write_table(pyarrow.table(edges), place / "edges.parquet")
    (place / "labels.csv").write_text(
        "id,label\n" + "\n".join(f"c{n},{'ab'[n % 2]}" for n in range(9))
    )
    words = ["train", str(place / "edges.parquet"), "--nodes", str(place / "nodes.parquet")]
    words += ["--label", "churned", "--set", "epochs=1", "--set", "dim=12"]
    assert run([*words, "--out", str(place / "run")]) == 0
    return place


def predicted(churn, tmp_path, capsys, *words):
    """A copy of the run in which `graphcl predict` has kept an answer, and that answer by id."""
    path = tmp_path / "run"
    shutil.copytree(churn / "run", path)
    assert run(["predict", str(path), "--json", *words]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    return path, {row["id"]: row for row in rows}


TREES = ("--with", "boosted trees")


@pytest.mark.parametrize(
    "words",
    [
        (),
        TREES,
        ("--with", "boosted trees with neighbours", "--wanted", "no"),
        (*TREES, "--cost", "1:5", "--seed", "3"),
        (*TREES, "--shares", "yes=0.01,no=0.99"),
    ],
)
def test_the_service_answers_what_predict_was_told(churn, tmp_path, capsys, words):
    """Labels, probabilities and reasons are those of the command, whose table the page shows."""
    path, kept = predicted(churn, tmp_path, capsys, *words)
    served = ServedRun(path, graphcl.Run(path).graph)
    client = client_of(served)
    answer = client.post("/v1/predict", {"ids": list(kept), "why": True}).json()["nodes"]
    for one in answer:
        expected = kept[one["id"]]
        assert one["label"] == expected["label"]
        for name in ("yes", "no"):
            assert one["probabilities"][name] == pytest.approx(expected[f"p:{name}"], abs=1e-6)
        assert one["why"]["text"] == expected["why"]
    wanted = "no" if "no" in words else "yes"
    assert {one["why"]["towards"] for one in answer} == {wanted}
    first = answer[0]["why"]
    assert first["text"].startswith(f"towards {wanted}: own columns")
    assert {name for name, _ in first["columns"]} <= {"tenure", "spend"}
    # A new node that is a copy of one is answered by the same model, with reasons.
    graph, row = served.graph, served.rows([answer[0]["id"]])[0]
    near = [str(served.id(one)) for one in graph.indices[graph.indptr[row] : graph.indptr[row + 1]]]
    new = {"features": graph.x[row].tolist(), "neighbors": near}
    (copied,) = client.post("/v1/predict", {"new": [new], "why": True}).json()["nodes"]
    for name, share in answer[0]["probabilities"].items():
        assert copied["probabilities"][name] == pytest.approx(share, abs=1e-3)
    assert copied["why"]["towards"] == wanted
    assert copied["why"]["parts"] == pytest.approx(first["parts"], abs=2e-3)


def test_an_update_keeps_the_model_that_was_chosen(churn, tmp_path, capsys):
    path, _ = predicted(churn, tmp_path, capsys, *TREES)
    edges = pyarrow.table({"source": ["c0"], "target": ["c50"]})
    graphcl.Run(path).update(edges=edges)
    served = ServedRun(current_run(path), graphcl.Run(path).graph)
    assert served.version == 1
    assert served.choice.using == "boosted trees"
    (one,) = served.predict(np.array([0]), why=True)
    assert {name for name, _ in one["why"]["columns"]} <= {"tenure", "spend"}
    assert one["why"]["like"] == ()


def test_labels_of_a_file_are_not_served_as_those_of_the_run(churn, tmp_path, capsys):
    path, _ = predicted(churn, tmp_path, capsys, "--labels", str(churn / "labels.csv"))
    client = client_of(ServedRun(path, graphcl.Run(path).graph))
    assert client.get("/ready").json()["predicts"] is False
    answer = client.post("/v1/predict", {"ids": ["c0"]})
    assert answer.status_code == 404
    assert "learned from the labels in" in answer.json()["error"]
    assert client.post("/v1/neighbors", {"ids": ["c0"]}).status_code == 200


@pytest.mark.parametrize("how", ["x", {"using": 3}, {"shares": {"yes": "x"}}, {"learn": "none"}])
def test_a_damaged_choice_is_named(churn, tmp_path, capsys, how):
    path, _ = predicted(churn, tmp_path, capsys)
    file = path / "answer-predict.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"how": how}))
    with pytest.raises(RunError, match=r"answer-predict.json: damaged"):
        ServedRun(path, graphcl.Run(path).graph)
