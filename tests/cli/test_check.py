"""`graphcl check`, and the other commands on a store."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from graphcl import Graph
from graphcl.cli.main import run
from tests.conftest import random_graph


def test_the_commands_take_a_store(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("graphcl.estimator.inference.LAYERWISE_NODES", 10)
    graph = random_graph()
    names = [f"n{number}" for number in range(60)]
    Graph.from_edge_index(graph.edge_index(), graph.x, graph.y, node_ids=names).save(
        "store", features="float16"
    )
    settings = ["--set", "epochs=1", "--set", "dim=8", "--set", "mode=sampled"]
    assert run(["train", "store", "--out", "run", "--json", *settings]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["mode"]["name"], result["graph"]["nodes"]) == ("sampled", 60)
    assert result["probe"] is not None
    assert run(["embed", "run", "--out", "all.npy"]) == 0
    z = np.load("all.npy")
    np.testing.assert_array_equal(z, np.load("run/embeddings.npy"))
    assert run(["embed", "run", "store", "--rows", "20:30", "--out", "some.npy", "--json"]) == 0
    np.testing.assert_allclose(np.load("some.npy"), z[20:30], rtol=1e-5, atol=1e-6)
    assert run(["embed", "run", "store", "--rows", "58:", "--out", "some.parquet"]) == 0
    pyarrow = pytest.importorskip("pyarrow.parquet")
    assert pyarrow.read_table("some.parquet")["id"].to_pylist() == ["n58", "n59"]
    assert run(["evaluate", "run", "--json"]) == 0
    assert run(["check", "store", "--json"]) == 0
    capsys.readouterr()
    for wrong in ("5", "9:5", "0:61", "-1:5", "a:b"):
        assert run(["embed", "run", "store", "--rows", wrong, "--out", "x.npy"]) == 2
    changed = np.load("store/part-00000/nodes-0/x.npy", mmap_mode="r+")
    changed[3, 3] += 1
    changed.flush()
    assert run(["check", "store"]) == 2
    assert "x.npy: altered or damaged" in capsys.readouterr().err


def test_tables_are_read_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("e.csv").write_text("source,target\n1,2\n2,1\n")
    Path("n.csv").write_text("id,age,town,land,topic\n1,3,a,b,x\n2,4,,b,y\n")
    arguments = ["check", "e.csv", "--nodes", "n.csv", "--label", "topic"]
    assert run(arguments) == 0
    answer = capsys.readouterr()
    assert answer.out == "e.csv: 2 nodes, 1 edge, 2 features, 2 classes\n"
    for line in (
        "  age    a number",
        "  town   a category: 1 value, one feature each",
        "  land   the same in every row: left out",
        "  topic  a label",
    ):
        assert line in answer.err
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["found"]
    assert [fate["column"] for fate in found["fates"]] == ["id", "age", "town", "land", "topic"]
    assert run(["check", "e.csv", "--nodes", "n.csv", "--strict"]) == 2
    problems = capsys.readouterr().err
    assert "graphcl: 3 problems:" in problems
    assert problems.splitlines()[-1].startswith("try: graphcl check e.csv --nodes n.csv --strict ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.csv", "n.csv"]


def test_an_npz_and_a_dataset_are_described_and_an_unknown_name_lists_datasets(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", edge_index=[[0, 1], [1, 2]], x=np.eye(3))
    assert run(["check", "mine.npz"]) == 0
    assert "3 nodes, 2 edges" in capsys.readouterr().out
    assert run(["check", "cora", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == 2708
    assert run(["check", "coar"]) == 2
    assert "known: cora, citeseer" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a b.npz", "a b.npz.gz"])
def test_a_gzipped_npz_is_told_how_to_unpack(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", edge_index=[[0, 1], [1, 2]], x=np.eye(3))
    Path(name).write_bytes(gzip.compress(Path("mine.npz").read_bytes()))
    assert run(["check", name]) == 2
    assert f"is gzipped; unpack it: gunzip < '{name}' > NEW.npz\n" in capsys.readouterr().err
