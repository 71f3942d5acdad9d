"""`graphcl embed` of typed stores in parts, and what its shards answer; plain ones: test_embed."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from graphcl.cli.main import run
from graphcl.partitioned.embeddings import open_shards, type_shards
from tests.conftest import random_graph
from tests.store.test_partition import typed_graph


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
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


@pytest.fixture(autouse=True)
def there(folder, monkeypatch):
    monkeypatch.chdir(folder)


def test_shards_of_each_type_are_the_embeddings_of_the_store(capsys):
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


def test_answers_from_shards_are_those_of_the_run():
    shards = ["--embeddings", "shards.parquet"]
    near = ["neighbors", "run", "paper 3 é", "-k", "4", "--type", "paper", "--out"]
    assert run([*near, "a.csv"]) == 0
    assert run([*near, "b.csv", *shards]) == 0
    assert run([*near, "c.csv", "--embeddings", "shards.parquet/type-1", "--graph", "parts"]) == 0
    columns = [[one["neighbor"] for one in lines(name)] for name in ("a.csv", "b.csv", "c.csv")]
    assert columns[0] == columns[1] == columns[2]
    assert "label" in lines("c.csv")[0]
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
def test_what_does_not_fit_is_one_line(capsys, arguments, message):
    capsys.readouterr()
    assert run(arguments) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("graphcl: ")
    assert message in said
    assert not Path("x").exists()
