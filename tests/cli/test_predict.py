import json
from dataclasses import asdict

import numpy as np
import pyarrow.parquet
import pytest

from graphcl.cli.main import run
from graphcl.cli.predict import error_line
from graphcl.evaluation.prediction_error import measure
from graphcl.runs.files import read_answers
from graphcl.runs.nodes import NODES
from tests.cli.conftest import QUICK, fails


@pytest.fixture
def labels(folder, graph):
    lines = [f"node {n},{'abc'[graph.y[n]]}" for n in range(24)]
    (folder / "labels.csv").write_text("\n".join(["id,label", *lines]))
    return folder / "labels.csv"


def test_a_few_labels_give_the_others_theirs(trained, labels, graph, capsys):
    assert run(["train", "mine.npz", "--set", "dim=32", "--set", "epochs=20", "--overwrite"]) == 0
    capsys.readouterr()
    command = ["predict", "runs/mine", "--labels", "labels.csv"]
    assert run([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["nodes"] == len(told["rows"]) == 36
    assert told["classes"] == ["a", "b", "c"]
    assert sum(told["labelled"].values()) == told["error"]["nodes"] == 24
    right = np.mean(
        [row["label"] == "abc"[graph.y[int(row["id"].split()[1])]] for row in told["rows"]]
    )
    assert right > 0.7
    for row in told["rows"]:
        assert row["probability"] == max(row[f"p:{name}"] for name in "abc")
    assert read_answers(trained)["predict"]["predicted"] == told["predicted"]
    assert run([*command, "--out", "told.parquet"]) == 0
    assert "told.parquet: 36 rows" in capsys.readouterr().out
    table = pyarrow.parquet.read_table("told.parquet")
    assert table.column("id").to_pylist() == [row["id"] for row in told["rows"]]
    assert run(command) == 0
    text = capsys.readouterr().out
    assert "expected: accuracy" in text
    assert "24 labelled nodes, each held out" in text
    assert "… and 26 more" in text


def test_labels_of_the_run_with_test_nodes_hidden(trained, graph, capsys):
    message = fails(capsys, "predict", "runs/mine")
    assert "all 60 nodes have a label; --all predicts them too; --learn train hides" in message
    assert run(["predict", "runs/mine", "--learn", "train", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["nodes"] == told["test"]["nodes"] == int(graph.test_mask.sum())
    assert told["test"]["how"] == "held-out nodes"
    assert run(["predict", "runs/mine", "--all", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["given"] for row in told["rows"]] == graph.y.tolist()


def test_several_labels_per_node(folder, arrays, graph, capsys):
    y = np.stack([graph.y == 0, graph.y > 0], axis=1).astype(int)
    np.savez("several.npz", **arrays | {"y": y})
    assert run(["train", "several.npz", *QUICK, "--probe-steps", "5"]) == 0
    capsys.readouterr()
    assert run(["predict", "runs/several", "--learn", "train", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["several"]
    assert {tuple(row["label"]) for row in told["rows"]} <= {(), (0,), (1,), (0, 1)}
    lines = [f"node {n},{name}" for n in range(20) for name in ("odd", "even")[n % 2 :]]
    (folder / "many.csv").write_text("\n".join(["id,label", *lines, "node 1,third"]))
    assert run(["predict", "runs/several", "--labels", "many.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == ["even", "odd", "third"]


def test_a_run_without_its_nodes_reads_the_graph(trained, labels, capsys):
    (trained / NODES).unlink()
    assert run(["predict", "runs/mine", "--labels", "labels.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["id"] == "node 24"


def test_class_names_of_a_table(folder, graph, capsys):
    edges = [f"{u},{v}" for u, v in graph.edge_index().T if u < v]
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]))
    names = ["Art", "Law", "Zoology"]
    cells = [
        f"{n},{graph.x[n, 0]:.3f},{graph.x[n, 1]:.3f},{graph.x[n, 2]:.3f},"
        f"{names[graph.y[n]] if n < 40 else ''}"
        for n in range(60)
    ]
    (folder / "nodes.csv").write_text("\n".join(["id,a,b,c,topic", *cells]))
    assert run(["train", "edges.csv", "--nodes", "nodes.csv", "--label", "topic", *QUICK]) == 0
    capsys.readouterr()
    assert run(["predict", "runs/edges", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["classes"] == names
    assert told["nodes"] == 20
    assert {row["label"] for row in told["rows"]} <= set(names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/absent"], "no such run"),
        (["runs/mine", "--labels", "absent.csv"], "absent.csv: no such file"),
        (["runs/mine", "--labels", "strange.csv"], "no node has the id 'nobody'"),
        (["runs/mine", "--labels", "empty.csv"], "holds no label"),
        (["runs/mine", "--labels", "one.csv"], "no second class"),
        (["runs/mine", "--labels", "unnamed.csv"], "must name the columns, id and label"),
        (["runs/mine", "--out", "x.txt"], "must end in .parquet, .csv or .json"),
        (["runs/mine", "--learn", "most"], "--learn must be all or train"),
    ],
)
def test_what_cannot_be_answered(trained, capsys, arguments, message):
    folder = trained.parents[1]
    (folder / "strange.csv").write_text("id,label\nnobody,a\n")
    (folder / "empty.csv").write_text("id,label\n")
    (folder / "one.csv").write_text("id,label\nnode 1,a\n")
    (folder / "unnamed.csv").write_text("node 1,a\nnode 2,b\nnode 3,a\n")
    assert message in fails(capsys, "predict", *arguments)
    assert not list(trained.glob("answer-*"))


def test_empty_cells_of_several_labels_are_predicted(folder, graph, capsys):
    names = ["0|2", "1", "1|2"]
    cells = [names[graph.y[n]] if n < 40 else "" for n in range(60)]
    rows = [f"{n},{','.join(map(str, graph.x[n, :4]))},{cells[n]}" for n in range(60)]
    (folder / "n.csv").write_text("\n".join(["id,a,b,c,d,genre", *rows]))
    pairs = [f"{u},{v}" for u, v in graph.edge_index().T]
    (folder / "e.csv").write_text("\n".join(["source,target", *pairs]))
    tables = ["--nodes", "n.csv", "--label", "genre", "--label-separator", "|"]
    assert run(["train", "e.csv", *tables, *QUICK, "--probe-steps", "5", "--out", "few"]) == 0
    result = json.loads((folder / "few/result.json").read_text())
    assert result["probe"]["nodes"] == [40, 0, 40]
    capsys.readouterr()
    assert run(["predict", "few", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in told["rows"]] == list(range(40, 60))
    assert told["error"]["nodes"] == 40
    assert "given" not in told["rows"][0]
    assert run(["predict", "few", "--all", "--json"]) == 0
    given = [row["given"] for row in json.loads(capsys.readouterr().out)["rows"]]
    assert given == [cells[n].split("|") if n < 40 else None for n in range(60)]
    assert run(["report", "few", "--out", "page.html"]) == 0


def test_a_perfect_score_of_several_labels_is_still_a_micro_f1():
    y = np.array([[1, 0], [1, 0], [0, 1]])
    error = asdict(measure(y.astype(float), y, True, nodes=3))
    said = error_line(error, ("node", "nodes"), several=True)
    assert "micro-F1 1.000 (majority 0.667)" in said
    assert "accuracy" not in said


def test_a_number_with_its_interval_and_by_a_rival(trained, folder, graph, capsys):
    lines = [f"node {n},{0.5 + graph.degrees()[n] + n / 1000:.3f}" for n in range(40)]
    (folder / "prices.csv").write_text("\n".join(["id,label", *lines]))
    command = ["predict", "runs/mine", "--labels", "prices.csv"]
    assert run([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["nodes"] == len(told["rows"]) == 20
    assert all(row["low"] < row["value"] < row["high"] for row in told["rows"])
    assert [one["name"] for one in told["rivals"]][:2] == ["graphcl", "median"]
    assert run([*command, "--with", "ridge regression"]) == 0
    text = capsys.readouterr().out
    assert "rests on: ridge regression 100 %" in text
    assert "expected: R²" in text
    assert "within the interval" not in text  # nobody has measured a rival's
    assert "--wanted must be left out" in fails(capsys, *command, "--wanted", "3")


def test_a_ranking_is_said_and_a_threshold_holds(trained, folder, graph, capsys):
    lines = [f"node {n},{'yes' if graph.y[n] == 0 else 'no'}" for n in range(40)]
    (folder / "two.csv").write_text("\n".join(["id,label", *lines]))
    command = ["predict", "runs/mine", "--labels", "two.csv", "--no-rivals"]
    assert run([*command, "--wanted", "yes", "--cost", "1:4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    risk = [row["p:yes"] for row in told["rows"]]
    assert risk == sorted(risk, reverse=True)
    assert [row["label"] == "yes" for row in told["rows"]] == [one >= 0.2 for one in risk]
    assert told["ranking"]["threshold"] == 0.2
    assert run([*command, "--wanted", "yes"]) == 0
    text = capsys.readouterr().out
    assert "looked for: yes" in text
    assert "id\tlabel\tp:yes\twhy" in text
    for wrong, message in (
        (["--cost", "5"], "--cost: must be two numbers"),
        (["--shares", "yes"], "--shares: must be CLASS=SHARE"),
        (["--shares", "yes=0.2"], "a positive share for each of no, yes"),
        (["--evaluate"], "--evaluate and --after must be given together"),
    ):
        assert message in fails(capsys, *command, *wrong)
