import csv
import json
import resource
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from graphcl.answers.evidence import EMBEDDING, Evidence
from graphcl.cli.main import run
from graphcl.estimator.model import GraphCL
from graphcl.evaluation.probe import standardiser
from graphcl.graphs.graph import Graph
from graphcl.partitioned.embeddings import open_shards, type_shards
from tests.cli.conftest import call, fails
from tests.conftest import random_graph
from tests.store.test_partition import typed_graph


def test_embed_formats_and_ids(trained, capsys):
    assert run(["embed", "runs/mine", "--out", "z.npy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "out": "z.npy",
        "graph": "mine.npz",
        "first": 0,
        "nodes": 60,
        "dim": 8,
    }
    assert np.array_equal(np.load("z.npy"), np.load("runs/mine/embeddings.npy"))
    assert run(["embed", "runs/mine", "mine.npz", "--out", "z.parquet"]) == 0
    table = pyarrow.parquet.read_table("z.parquet")
    assert table["id"].to_pylist() == [f"node {n}" for n in range(60)]
    np.testing.assert_array_equal(
        np.array(table["embedding"].to_pylist(), dtype=np.float32), np.load("z.npy")
    )


def test_existing_embeddings_are_kept_unless_told_otherwise(trained, capsys):
    assert run(["embed", "runs/mine", "--out", "z.npy"]) == 0
    assert "already exists" in fails_after(capsys, "embed", "runs/mine", "--out", "z.npy")
    assert run(["embed", "runs/mine", "--out", "z.npy", "--overwrite"]) == 0


def fails_after(capsys, *arguments):
    capsys.readouterr()
    return fails(capsys, *arguments)


def test_a_truncated_model_is_refused(trained, capsys):
    path = trained / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    message = fails(capsys, "embed", "runs/mine", "--out", "z.npy")
    assert "model.safetensors: damaged or truncated" in message
    assert not (trained.parents[1] / "z.npy").exists()


def test_feature_mismatch(trained, capsys):
    message = fails(capsys, "embed", "runs/mine", "cora", "--out", "z.npy")
    assert "cora: has 1433 features; the model was trained on 12" in message


def test_nodes_by_id(trained, capsys):
    whole = np.load(trained / "embeddings.npy")
    assert run(["embed", "runs/mine", "--id", "node 41", "--id", "node 7", "--out", "two.csv"]) == 0
    lines = (trained.parents[1] / "two.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["id", "node 41", "node 7"]
    found = np.array([[float(cell) for cell in line.split(",")[1:]] for line in lines[1:]])
    np.testing.assert_allclose(found, whole[[41, 7]], atol=1e-6)
    capsys.readouterr()
    command = ["embed", "runs/mine", "--out", "z.npy", "--id"]
    assert "no node has the id 'nobody'" in fails(capsys, *command, "nobody")
    assert "must be one of them" in fails(capsys, *command, "node 1", "--rows", "0:2")


def test_one_node_needs_no_compiler_and_no_estimator(trained):
    code = (
        "import sys\nfrom graphcl.cli.main import run\n"
        "assert run(['embed', 'runs/mine', '--id', 'node 3', '--out', 'one.npy']) == 0\n"
        "heavy = {'torch._dynamo', 'sklearn', 'pandas', 'lancedb'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = call("-c", code)
    assert done.returncode == 0, done.stderr


def test_new_nodes_from_a_file(trained, arrays, capsys):
    random = np.random.default_rng(3)
    features = random.normal(size=(2, 12)).astype(np.float32)
    asked = {
        "new": [
            {"features": features[0].tolist(), "neighbors": ["node 3", "node 8"]},
            {"features": features[1].tolist()},
        ],
        "edges": [[0, 1]],
    }
    Path("new.json").write_text(json.dumps(asked))
    assert run(["embed", str(trained), "--new", "new.json", "--out", "new.npy"]) == 0
    assert "2 embeddings of 8 numbers" in capsys.readouterr().out
    edges = np.concatenate([arrays["edge_index"], [[60, 60, 61], [3, 8, 60]]], axis=1)
    grown = Graph.from_edge_index(edges, np.concatenate([arrays["x"], features]))
    expected = GraphCL.load(trained, device="cpu").transform(grown)[60:]
    np.testing.assert_array_equal(np.load("new.npy"), expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "new.json: the body is not JSON"),
        (
            '{"new": [{"features": [1]}]}',
            "new.json: new.0.features: List should have at least 12 items, not 1",
        ),
        ('{"new": [{"features": {}, "neighbors": ["x"]}]}', "no node has the id 'x'"),
        ('{"ids": ["node 3"]}', "unknown key 'ids'"),
    ],
)
def test_new_nodes_that_are_not_understood(trained, capsys, text, words):
    Path("new.json").write_text(text)
    assert words in fails(capsys, "embed", str(trained), "--new", "new.json", "--out", "a.npy")
    assert not Path("a.npy").exists()
    both = ["embed", str(trained), "--new", "new.json", "--id", "node 3", "--out", "a.npy"]
    assert "one of them" in fails(capsys, *both)
    assert "no such file" in fails(capsys, "embed", str(trained), "--new", "b", "--out", "a.npy")


@pytest.fixture(scope="module")
def divided(tmp_path_factory):
    """A run of a typed store, and embeddings of its only part."""
    folder = tmp_path_factory.mktemp("typed")
    typed_graph(2, authors=30, papers=40, topics=3, edges=120).save(folder / "store")
    random_graph().save(folder / "plain")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        settings = ["--set", "epochs=2", "--set", "dim=12", "--set", "steps=0"]
        assert run(["train", "store", *settings, "--out", "run"]) == 0
        assert run(["train", "plain", *settings, "--out", "plainrun"]) == 0
        divide = ["--parts", "1", "--order", "as-is", "--out"]
        assert run(["build", "store", *divide, "parts"]) == 0
        assert run(["build", "plain", *divide, "plainparts"]) == 0
        assert run(["embed", "run", "parts", "--out", "shards.parquet"]) == 0
        assert run(["embed", "run", "--type", "paper", "--out", "whole.npy"]) == 0
    return folder


@pytest.fixture
def there(divided, monkeypatch):
    monkeypatch.chdir(divided)


def test_shards_of_each_type_are_the_embeddings_of_the_store(there, capsys):
    for name in ("author", "paper", "topic"):
        out = f"{name}.npy"
        assert run(["embed", "run", "--type", name, "--out", out, "--overwrite"]) == 0
        found = open_shards(type_shards(Path("shards.parquet"), name))
        np.testing.assert_allclose(found[:], np.load(out), rtol=1e-4, atol=1e-5)
    capsys.readouterr()
    assert run(["embed", "run", "parts", "--type", "paper", "--out", "papers", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["type"], about["nodes"], about["shards"]) == ("paper", 40, 1)
    assert np.array_equal(
        open_shards(Path("papers"))[:], open_shards(type_shards(Path("shards.parquet"), "paper"))[:]
    )
    assert run(["embed", "run", "parts", "--out", "again", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["types"] == {"author": 30, "paper": 40, "topic": 3}


def lines(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_answers_from_shards_are_those_of_the_run(there, monkeypatch):
    shards = ["--embeddings", "shards.parquet"]
    near = ["neighbors", "run", "paper 3 é", "-k", "4", "--type", "paper", "--out"]
    assert run([*near, "a.csv"]) == 0
    assert run([*near, "b.csv", *shards]) == 0
    assert run([*near, "c.csv", "--embeddings", "shards.parquet/type-1", "--graph", "parts"]) == 0
    columns = [[one["neighbor"] for one in lines(name)] for name in ("a.csv", "b.csv", "c.csv")]
    assert columns[0] == columns[1] == columns[2]
    assert "label" in lines("c.csv")[0]
    # Of shards, embeddings are all that is looked at.
    monkeypatch.setattr(
        "graphcl.answers.learning.gather_evidence",
        lambda z, *_, **__: Evidence({EMBEDDING: z}, {EMBEDDING: standardiser(z)}, {}),
    )
    predict = ["predict", "run", "--type", "paper", "--all", "--out"]
    assert run([*predict, "d.csv"]) == 0
    assert run([*predict, "e.csv", *shards, "--graph", "parts"]) == 0
    same = [[one["label"] for one in lines(name)] for name in ("d.csv", "e.csv")]
    assert same[0] == same[1]
    assert run(["cluster", "run", "--type", "author", "--count", "2", *shards]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["embed", "plainrun", "parts", "--out", "x"], "parts: is a typed graph in parts; the"),
        (["embed", "run", "plainparts", "--out", "x"], "plainparts: is a plain graph in parts;"),
        (["embed", "run", "parts", "--type", "x", "--out", "x"], "no type 'x'"),
        (["embed", "run", "parts", "--rows", "0:2", "--out", "x.npy"], "of which type?"),
        (["neighbors", "run", "0", "--type", "author", "--embeddings", "shards.parquet/type-1"],
         "shards.parquet/type-1: has embeddings of 'paper', not of 'author'"),
        (["neighbors", "plainrun", "0", "--embeddings", "shards.parquet"],
         "shards.parquet: has embeddings of several types"),
        (["predict", "run", "--type", "paper", "--embeddings", "shards.parquet", "--graph",
          "plainparts"], "--graph must be the store in parts that was embedded"),
        (["report", "run", "--type", "paper", "--embeddings", "shards.parquet"],
         "--embeddings must be left out for a typed graph"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(there, capsys, arguments, message):
    capsys.readouterr()
    assert run(arguments) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("graphcl: ")
    assert message in said
    assert not Path("x").exists()


@pytest.mark.parametrize("name", ["z.npy", "z.csv", "z.parquet"])
def test_a_full_disk_is_said_with_the_file(trained, capsys, name):
    """The old file stays. It was written with all that is imported: no cache may be cut off."""
    words = ["embed", str(trained), "--overwrite", "--out", name]
    assert run(words) == 0
    before, size = Path(name).read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    capsys.readouterr()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, size[1]))
    try:
        said = fails(capsys, *words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, size)
    assert said.startswith(f"graphcl: {name}: ")
    assert Path(name).read_bytes() == before
