"""From awkward files to embeddings under the same ids."""

import csv
import gzip
import json
import shlex
from pathlib import Path

import duckdb
import numpy as np
import pandas
import polars
import pyarrow.parquet
import pytest

from graphcl.cli.main import run
from graphcl.estimator.model import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.runs.nodes import read_nodes

QUICK = ["--set", "epochs=2", "--set", "dim=8"]
PEOPLE = ["Zoë Ω", "ann  b", "007", "李 雷", 'the "q"', "a,b", " lead", "éric", "lone", "🙂"]


@pytest.fixture
def awkward(tmp_path, monkeypatch):
    """Text ids with spaces, quotes and Unicode; gzip; holes; repeated, looped, dangling edges."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    pairs = [(u, v) for u in PEOPLE[:8] for v in PEOPLE[:8] if u < v and random.random() < 0.7]
    rows = [*pairs, pairs[0], pairs[1][::-1], ("007", "007"), ("🙂", "ann  b"), ("nobody", "007")]
    with gzip.open("friends.csv.gz", "wt", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("who", "whom"), *rows])
    with Path("people.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "age", "town", "height", "group"])
        for place, person in enumerate(PEOPLE):
            age = "" if place == 3 else 20 + place
            writer.writerow([person, age, "Łódź" if place % 2 else "Köln", 1.5, "ab"[place % 2]])
    return {tuple(sorted(pair)) for pair in pairs} | {tuple(sorted(("🙂", "ann  b")))}


TABLES = ["friends.csv.gz", "--nodes", "people.csv", "--label", "group"]
SETTLED = ["--one-hot", "town", "--missing", "mean", "--unknown-edges", "add"]


def test_an_awkward_graph_says_all_that_it_needs_at_once(awkward, capsys):
    assert run(["train", *TABLES, "--strict", *QUICK]) == 2
    said = capsys.readouterr().err
    for message in (
        "graphcl: 3 problems:",
        "people.csv: column 'town' is text (row 1: 'Köln'); features are numbers: encode it ",
        "row 4, column 'age' is missing; missing values: 'age' 1; fill",
        "1 edge names 1 unknown node, first 'nobody' in row",
    ):
        assert message in said
    command = said.splitlines()[-1].removeprefix("try: graphcl ")
    assert not Path("runs").exists()
    assert run(shlex.split(command)) == 0


def test_an_awkward_graph_goes_from_files_to_embeddings_under_its_own_ids(awkward, capsys):
    assert run(["train", *TABLES, *SETTLED, *QUICK]) == 0
    said = capsys.readouterr().err
    for line in (
        "guessed: ids in 'name' of ",
        "; ends in 'who' and 'whom' of ",
        "1 missing value filled with the mean",
        "1 node that only edges name: added, with features of zero and without a label",
        "1 self-loop left out",
        "1 edge is listed in both directions: merged",
        "1 repeated row: merged",
        "1 node has no edge",
    ):
        assert line in said
    usual = ("4 features: age, town=Köln, town=Łódź, height", "2 classes: a, b")
    assert not any(line in said for line in usual)
    assert run(["check", *TABLES, *SETTLED]) == 0
    told = capsys.readouterr().err
    assert all(line in told for line in usual)
    expected = np.load("runs/friends/embeddings.npy")
    ids = [*PEOPLE, "nobody"]
    assert len(expected) == len(ids)
    for suffix in ("npy", "parquet", "csv"):
        assert run(["embed", "runs/friends", "--out", f"z.{suffix}"]) == 0
    assert np.array_equal(np.load("z.npy"), expected)

    there = pandas.read_parquet("z.parquet")
    assert there["id"].tolist() == ids
    assert np.array_equal(np.stack(there["embedding"]), expected)
    frame = polars.read_parquet("z.parquet")
    assert frame["id"].to_list() == ids
    assert frame["embedding"].dtype == polars.Array(polars.Float32, 8)
    assert np.array_equal(frame["embedding"].to_numpy(), expected)
    with duckdb.connect() as connection:
        rows = connection.execute("SELECT id, embedding FROM 'z.parquet'").fetchall()
        (kind,) = connection.execute("SELECT typeof(embedding) FROM 'z.parquet'").fetchone()
    assert [name for name, _ in rows] == ids
    assert kind.startswith("FLOAT[")
    assert np.array_equal(np.array([vector for _, vector in rows], np.float32), expected)

    table = pandas.read_csv("z.csv", dtype={"id": str}, keep_default_na=False)
    assert table["id"].tolist() == ids
    assert np.array_equal(table.iloc[:, 1:].to_numpy(np.float32), expected)
    capsys.readouterr()
    assert run(["evaluate", "runs/friends", "--json", "--seed", "0", "--device", "cpu"]) in (0, 2)
    assert "bug" not in capsys.readouterr().err
    assert run(["report", "runs/friends", "--out", "report.html", "--map", "pca"]) == 0
    page = Path("report.html").read_text(encoding="utf-8")
    assert "11 nodes placed by their first two principal components" in page
    assert "What became of 3 columns" in page
    assert read_nodes(Path("runs/friends")).class_names == ("a", "b")
    assert json.loads(Path("runs/friends/result.json").read_text())["class_names"] == ["a", "b"]


def test_build_writes_the_store_that_every_command_takes(awkward, capsys):
    arguments = ["--edges", *TABLES, *SETTLED, "--out", "store"]
    assert run(["build", *arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["nodes"], told["features"], told["classes"]) == (11, 4, 2)
    assert told["edges"] == len(awkward) + 1
    assert told["found"]["counts"]["dangling"] == 1
    assert told["found"]["columns"]["source"] == "who"
    names = Graph.open("store").node_ids.tolist()
    listed = Graph.open("store").edge_index().T.tolist()
    pairs = {tuple(sorted((names[u], names[v]))) for u, v in listed}
    assert pairs == awkward | {("007", "nobody")}
    assert Graph.open("store").class_names == ("a", "b")
    assert run(["train", "store", *QUICK]) == 0
    assert run(["embed", "runs/friends", "store", "--out", "z.parquet"]) == 0
    assert pyarrow.parquet.read_table("z.parquet")["id"].to_pylist() == [*PEOPLE, "nobody"]


@pytest.mark.parametrize("trained_on", ["tables", "store"])
def test_unseen_tables_get_the_features_of_training(awkward, capsys, trained_on):
    graph = TABLES
    if trained_on == "store":
        assert run(["build", "--edges", *TABLES, *SETTLED, "--out", "store"]) == 0
        graph = ["store"]
    settled = SETTLED if trained_on == "tables" else ["--out", "runs/friends"]
    assert run(["train", *graph, *settled, *QUICK]) == 0
    Path("new_edges.csv").write_text("source,target\nx,y\ny,z\n")
    Path("new.csv").write_text(
        "name,shoe,height,town,age\nx,1,1.5,Köln,30\ny,2,1.6,Rome,\nz,3,1.7,Łódź,40\n"
    )
    arguments = ["embed", "runs/friends", "new_edges.csv", "--nodes", "new.csv", "--out", "new.csv"]
    assert run([*arguments[:-1], "z.csv"]) == 0
    assert "1 category is new to the model and encoded as zeros" in capsys.readouterr().err
    known = [20 + place for place in range(len(PEOPLE)) if place != 3]  # the training's ages
    x = [[30, 1, 0, 1.5], [np.mean(known), 0, 0, 1.6], [40, 0, 1, 1.7]]
    graph = Graph.from_edge_index([[0, 1], [1, 2]], x)
    expected = GraphCL.load("runs/friends").transform(graph)
    table = pandas.read_csv("z.csv")
    np.testing.assert_array_equal(table.iloc[:, 1:].to_numpy(np.float32), expected)
    Path("bad.csv").write_text("name,height,town\nx,1.5,Köln\ny,1.6,Köln\nz,1,Köln\n")
    assert run([*arguments[:4], "bad.csv", "--out", "b.csv"]) == 2
    assert "has no column 'age', which the model was trained on" in capsys.readouterr().err
    assert run(["embed", "runs/friends", "--nodes", "new.csv", "--out", "b.csv"]) == 2
    assert not Path("b.csv").exists()


def test_weights_and_structural_features_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("calls.tsv").write_text("caller\tcallee\tminutes\n5\t7\t2\n7\t9\t3\n9\t5\t1\n")
    assert (
        run(["train", "calls.tsv", "--weight", "minutes", "--features", "structural", *QUICK, "-v"])
        == 0
    )
    assert "features from the edges alone: log degree" in capsys.readouterr().err
    assert run(["embed", "runs/calls", "--out", "z.parquet"]) == 0
    assert pyarrow.parquet.read_table("z.parquet")["id"].to_pylist() == [5, 7, 9]


def test_a_query_trains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text("a,b,kind\n1,2,x\n2,3,y\n3,4,x\n")
    query = "SELECT a, b FROM 'log.csv' WHERE kind = 'x'"
    assert run(["train", query, "--features", "structural", *QUICK]) == 0
    assert run(["embed", "runs/query", "--out", "z.csv"]) == 0
    assert [line.split(",")[0] for line in Path("z.csv").read_text().splitlines()] == [
        "id",
        "1",
        "2",
        "3",
        "4",
    ]


def test_a_matrix_with_several_labels_goes_through_every_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    y = (random.random((90, 3)) < 0.4).astype(np.int64)
    x = np.concatenate([y + random.normal(size=(90, 3)) / 3, random.normal(size=(90, 3))], axis=1)
    part = random.permutation(90) % 3
    masks = {f"{name}_mask": part == n for n, name in enumerate(("train", "val", "test"))}
    np.savez("nodes.npz", x=x, y=y, node_ids=[f"n{n}" for n in range(90)], **masks)
    pairs = "".join(f"n{a},n{b}\n" for a, b in random.integers(0, 90, (200, 2)))
    Path("edges.csv").write_text("source,target\n" + pairs)
    tables = ["edges.csv", "--nodes", "nodes.npz"]
    assert run(["check", *tables]) == 0
    assert run(["build", "--edges", *tables, "--out", "store"]) == 0
    assert np.array_equal(Graph.open("store").y, y)
    assert run(["train", *tables, *QUICK[:2], "--set", "dim=8", "--out", "run"]) == 0
    for command in (
        ["evaluate", "run", "--runs", "1", "--probe-steps", "20"],
        ["predict", "run", "--all", "--out", "labels.csv"],
        ["cluster", "run", "--count", "3"],
        ["links", "run", "-k", "3"],
        ["neighbors", "run", "n5", "-k", "2"],
        ["report", "run", "--out", "r.html", "--map", "pca"],
        ["embed", "run", "--id", "n7", "--out", "z.csv"],
        ["tune", *tables, "--trials", "2", "--set", "epochs=1", "--set", "dim=8"],
    ):
        capsys.readouterr()
        assert run(command) == 0, capsys.readouterr().err
    table = pandas.read_csv("labels.csv")
    assert table["id"].tolist() == [f"n{n}" for n in range(90)]
    assert {"p:0", "p:1", "p:2"} <= set(table.columns)
