import json

import numpy as np
import pytest

import graphcl
from graphcl.cli.main import run
from tests.cli.conftest import QUICK, call, fails


def test_neighbors_are_those_of_brute_force_under_the_ids_that_came_in(trained, capsys):
    z = np.load(trained / "embeddings.npy")
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    cosines = unit @ unit[17]
    cosines[17] = -2
    assert run(["neighbors", "runs/mine", "node 17", "-k", "5", "--json"]) == 0
    captured = capsys.readouterr()
    assert "built an index of 60 nodes (none was stored)" in captured.err
    told = json.loads(captured.out)
    assert told["id"] == "node 17"
    best = np.sort(cosines)[::-1][:5]
    np.testing.assert_allclose([n["cosine"] for n in told["neighbors"]], best, atol=2e-3)
    for entry in told["neighbors"]:
        row = int(entry["id"].removeprefix("node "))
        assert cosines[row] == pytest.approx(entry["cosine"], abs=2e-3)
        assert row != 17
    assert run(["neighbors", "runs/mine", "node 17", "-k", "100"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""  # the index was there
    assert len(captured.out.splitlines()) == 60  # a header, and all others


def test_labels_and_ids_are_of_the_version_that_was_asked(trained, capsys, monkeypatch):
    features = graphcl.open_graph("mine.npz").num_features
    head = ",".join(["id", *(f"x{place}" for place in range(features))])
    (trained.parents[1] / "new.csv").write_text(f"{head}\nnew{',1' * features}\n")
    (trained.parents[1] / "gone.csv").write_text("id\nnode 0\n")
    assert run(["update", "runs/mine", "--nodes", "new.csv", "--remove-nodes", "gone.csv"]) == 0
    capsys.readouterr()
    question = ["neighbors", "runs/mine", "node 17", "--json"]
    assert run(question) == 0
    told = json.loads(capsys.readouterr().out)
    found = graphcl.run.stored_index

    def roll_back(*asked):
        graphcl.Run("runs/mine").rollback(0)
        return found(*asked)

    monkeypatch.setattr("graphcl.run.stored_index", roll_back)
    assert run(question) == 0
    assert json.loads(capsys.readouterr().out) == told


def test_awkward_ids(folder, capsys, arrays):
    ids = np.array(["-k", "a b", "Zoë", "", "</script>", "0", *(f"n{i}" for i in range(54))])
    np.savez("odd.npz", **arrays | {"node_ids": ids})
    assert run(["train", "odd.npz", *QUICK]) == 0
    for name in ("a b", "Zoë", "", "</script>", "0"):
        capsys.readouterr()
        assert run(["neighbors", "runs/odd", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["id"] == name
    assert run(["neighbors", "runs/odd", "--", "-k"]) == 0


def test_several_nodes_at_once_as_text_json_and_a_table(trained, capsys):
    assert run(["neighbors", "runs/mine", "node 3", "node 9", "-k", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["id"] for one in told["nodes"]] == ["node 3", "node 9"]
    for one in told["nodes"]:
        assert run(["neighbors", "runs/mine", one["id"], "-k", "2", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["neighbors"] == one["neighbors"]
    assert run(["neighbors", "runs/mine", "node 3", "node 9", "-k", "2"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines.pop(0) == ["id", "cosine", "neighbor", "label"]
    assert [line[0] for line in lines] == ["node 3"] * 2 + ["node 9"] * 2
    assert [line[2] for line in lines[:2]] == [n["id"] for n in told["nodes"][0]["neighbors"]]
    assert run(["neighbors", "runs/mine", "node 3", "node 9", "-k", "2", "--out", "near.csv"]) == 0
    rows = (trained.parents[1] / "near.csv").read_text().splitlines()
    assert rows[0] == "id,neighbor,cosine,label"
    assert len(rows) == 5
    capsys.readouterr()
    assert "no node has the id 'node 99'" in fails(
        capsys, "neighbors", "runs/mine", "node 3", "node 99"
    )


def test_with_an_index_it_needs_no_torch_and_no_graph(trained, capsys):
    assert run(["neighbors", "runs/mine", "node 3"]) == 0
    code = (
        "import sys\nfrom graphcl.cli.main import run\n"
        "assert run(['neighbors', 'runs/mine', 'node 3']) == 0\n"
        "heavy = {'torch', 'numba', 'scipy', 'sklearn', 'pandas', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = call("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout == capsys.readouterr().out
