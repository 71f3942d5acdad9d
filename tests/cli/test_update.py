"""`graphcl update`: tables in, a version out that every command uses; the way back; bad input."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import graphcl
from graphcl.cli import graphs
from graphcl.cli.main import run
from graphcl.errors import RunError
from graphcl.runs import versions
from tests.cli.conftest import fails

NEW_NODES = "id,{}\nnew one,{}\nnode 5,{}\n"


@pytest.fixture
def delta(trained):
    """Tables that change the run's graph."""
    width = 12
    names = ",".join(f"f{k}" for k in range(width))
    rows = (",".join(str(value) for value in one) for one in (range(width), [0.5] * width))
    Path("nodes.csv").write_text(NEW_NODES.format(names, *rows))
    Path("edges.csv").write_text("source,target\nnew one,node 1\nnode 0,node 59\n")
    Path("gone.csv").write_text("id\nnode 30\n")
    return Path("runs/mine")


def call(capsys, *arguments):
    assert run(list(arguments)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.fixture
def updated(delta, capsys):
    words = ["--nodes", "nodes.csv", "--edges", "edges.csv", "--remove-nodes", "gone.csv"]
    found = json.loads(call(capsys, "update", str(delta), *words, "--json"))
    return delta, found


def test_a_version_is_made_and_said(updated, capsys):
    path, found = updated
    assert (found["version"], found["from"], found["nodes"]) == (1, 0, 60)
    assert found["changes"]["new_nodes"] == found["changes"]["removed_nodes"] == 1
    assert found["changes"]["changed_nodes"] == 1
    assert 0 < found["embedded"] <= 60
    folder = path / "versions/1"
    assert json.loads((folder / "drift.json").read_text()) == found["drift"]
    assert "<!DOCTYPE html>" in (folder / "drift.html").read_text()


def test_lines_on_a_terminal(delta, capsys):
    text = call(capsys, "update", str(delta), "--edges", "edges.csv", "--nodes", "nodes.csv")
    lines = text.splitlines()
    assert lines[0].startswith("runs/mine: version 1: 61 nodes (1 new, 0 removed, 1 changed), ")
    assert lines[1].startswith("embedded again: ")
    assert any(line.startswith("neighbours kept: ") for line in lines)
    assert lines[-1] == "drift page: runs/mine/versions/1/drift.html"


def test_every_command_uses_the_version(updated, capsys):
    path, _ = updated
    z = np.load(path / "versions/1/embeddings.npy")
    call(capsys, "embed", str(path), "--out", "z.npy")
    assert np.array_equal(np.load("z.npy"), z)
    call(capsys, "embed", str(path), "--id", "new one", "--out", "one.npy")
    assert np.array_equal(np.load("one.npy")[0], z[59])
    near = json.loads(call(capsys, "neighbors", str(path), "new one", "-k", "3", "--json"))
    assert len(near["neighbors"]) == 3
    fails(capsys, "neighbors", str(path), "node 30")
    rows = json.loads(call(capsys, "predict", str(path), "--all", "--json"))["rows"]
    assert len(rows) == 60
    assert "new one" in {row["id"] for row in rows}
    groups = json.loads(call(capsys, "cluster", str(path), "--json"))["rows"]
    assert len(groups) == 60
    pairs = json.loads(call(capsys, "links", str(path), "--json"))["rows"]
    assert "node 30" not in {one["source"] for one in pairs} | {one["target"] for one in pairs}
    call(capsys, "report", str(path), "--map", "pca")
    assert (path / "versions/1/report.html").exists()
    assert not (path / "report.html").exists()
    call(capsys, "evaluate", str(path))
    call(capsys, "export", str(path), "--to", "card", "--out", "card")
    both = json.loads(call(capsys, "compare", str(path), str(path), "--json"))
    assert both["runs"][0]["settings"] == {}
    # And the training again, after the way back.
    call(capsys, "update", str(path), "--rollback")
    call(capsys, "neighbors", str(path), "node 30", "-k", "2")
    fails(capsys, "neighbors", str(path), "new one")


def test_a_version_can_be_named_itself(updated, capsys):
    path, _ = updated
    call(capsys, "update", str(path), "--rollback")
    call(capsys, "neighbors", str(path / "versions/1"), "new one", "-k", "2")


def test_versions_and_the_way_back(updated, capsys):
    path, _ = updated
    call(capsys, "update", str(path), "--retrain", "--epochs", "1")
    listed = json.loads(call(capsys, "update", str(path), "--versions", "--json"))["versions"]
    assert [one["version"] for one in listed] == [0, 1, 2]
    assert [one["current"] for one in listed] == [False, False, True]
    assert listed[2]["retrained"]["aligned"]
    assert "trained on" in call(capsys, "update", str(path), "--versions")
    assert call(capsys, "update", str(path), "--rollback") == "runs/mine: version 1 is in use\n"
    assert json.loads(call(capsys, "update", str(path), "--rollback", "0", "--json")) == {
        "run": "runs/mine",
        "version": 0,
    }
    assert "no earlier one" in fails(capsys, "update", str(path), "--rollback")
    assert "has no version 9" in fails(capsys, "update", str(path), "--rollback", "9")
    call(capsys, "update", str(path), "--rollback", "2")
    assert versions.current_number(path) == 2
    call(capsys, "update", str(path), "--edges", "edges.csv", "--keep", "1")
    assert versions.numbers(path) == [0, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "tables must be given"),
        (["--epochs", "3", "--edges", "edges.csv"], "--epochs must be given with --retrain"),
        (["--rollback", "--edges", "edges.csv"], "must be given alone"),
        (["7"], "VERSION must be given with --rollback"),
        (["--keep", "0", "--edges", "edges.csv"], "--keep must be at least 1"),
        (["--edges", "absent.csv"], "absent.csv: no such file"),
        (["--remove-nodes", "all.csv"], "every node would be removed"),
        (["--remove-nodes", "wrong.csv"], "not in the graph, first 'nobody'"),
        (["--remove-edges", "cut.csv"], "1 edge is not in the graph"),
        (["--nodes", "narrow.csv"], "1 column of features; the graph has 12"),
        (["--nodes", "twice.csv"], "rows 1 and 2 have the same id"),
        (["--nodes", "nodes.csv", "--remove-nodes", "five.csv"], "is to be removed, and is named"),
        (["--graph", "other.npz", "--edges", "edges.csv"], "is not the graph that the run"),
        (["--remove-nodes", "empty.csv"], "empty.csv: is empty"),
        (["--nodes", "leak.csv"], "'label' would become a feature, but is named like a label"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(delta, arrays, capsys, arguments, message):
    ids = "\n".join(arrays["node_ids"].tolist())
    Path("all.csv").write_text(f"id\n{ids}\n")
    Path("wrong.csv").write_text("id\nnobody\n")
    Path("five.csv").write_text("id\nnode 5\n")
    Path("empty.csv").write_text("")
    edges = {frozenset(pair) for pair in arrays["edge_index"].T.tolist()}
    absent = next(v for v in range(2, 60) if frozenset((1, v)) not in edges)
    Path("cut.csv").write_text(f"source,target\nnode 1,node {absent}\n")
    Path("narrow.csv").write_text("id,a\nnode 1,3\n")
    numbers = ",".join(map(str, range(12)))
    Path("twice.csv").write_text(f"id,{numbers}\nnode 1,{numbers}\nnode 1,{numbers}\n")
    leak = ",".join([*map(str, range(11)), "label"])
    Path("leak.csv").write_text(f"id,{leak}\nnode 1,{numbers}\n")
    np.savez("other.npz", **arrays | {"x": np.asarray(arrays["x"]) + 1})
    assert message in fails(capsys, "update", str(delta), *arguments)
    assert versions.numbers(delta) == [0]
    call(capsys, "neighbors", str(delta), "node 5", "-k", "1")


def test_runs_that_cannot_be_updated(delta, capsys):
    assert "no such run" in fails(capsys, "update", "nothing", "--edges", "edges.csv")
    words = ["train", "mine.npz", "--method", "raw", "--out", "raw"]
    call(capsys, *words)
    assert "run of the baseline 'raw'" in fails(capsys, "update", "raw", "--edges", "edges.csv")
    shutil.copytree(delta, "typed")
    Path("typed/schema.json").write_text('{"types": [{"name": "a"}], "relations": []}')
    assert "no type 'node'" in fails(capsys, "update", "typed", "--edges", "edges.csv")


def test_a_damaged_pointer_is_said_by_every_command(updated, capsys):
    path, _ = updated
    (path / "versions/current").write_text("one")
    for words in (["neighbors", str(path), "node 5"], ["update", str(path), "--versions"]):
        assert "versions/current: damaged" in fails(capsys, *words)


@pytest.mark.parametrize("more", [[], ["--retrain", "--epochs", "1"]])
def test_the_graph_is_opened_while_the_run_is_held(updated, capsys, monkeypatch, more):
    """Another update that ended between the two was undone."""
    path, _ = updated
    Path("more.csv").write_text("source,target\nnode 2,node 40\n")
    load, inner = graphs.load_run_graph, []

    def meanwhile(*given, **how):
        graph = load(*given, **how)
        if not inner:
            inner.append(None)
            inner[0] = run(["update", str(path), "--edges", "more.csv"])
            inner.append(run(["update", str(path), "--rollback"]))
        return graph

    monkeypatch.setattr(graphs, "load_run_graph", meanwhile)
    call(capsys, "update", str(path), "--remove-edges", "edges.csv", *more)
    assert inner == [2, 2]
    assert versions.numbers(path) == [0, 1, 2]
    call(capsys, "update", str(path), "--edges", "more.csv")
    assert json.loads((path / "versions/3/version.json").read_text())["from"] == 2


def cut(path):
    path.write_bytes(path.read_bytes()[:-8])


def beyond(path):
    np.save(path, np.full_like(np.load(path), 1000))


INDICES = "part-00000/relation-0/indices.npy"


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        (cut, INDICES),
        (cut, "part-00000/nodes-0/x.npy"),
        (Path.unlink, INDICES),
        (Path.unlink, "store.json"),
        (shutil.rmtree, ""),
        (beyond, INDICES),
    ],
)
def test_a_damaged_graph_of_a_version_is_refused_with_the_way_back(updated, capsys, damage, file):
    path, _ = updated
    graph = path / "versions/1/graph"
    damage(graph / file)
    commands = [["predict"], ["cluster"], ["report", "--map", "pca"], ["links"]]
    commands += [] if damage is beyond else [["neighbors", "node 5"]]
    for name, *more in commands:
        said = fails(capsys, name, str(path), *more)
        where = graph / file if damage is not beyond else graph
        assert said.startswith(f"graphcl: {where.parent if file == 'store.json' else where}")
        assert said.endswith("; use an earlier version: graphcl update runs/mine --rollback")
    with pytest.raises(RunError, match=r"Run\('runs/mine'\)\.rollback\(\)"):
        graphcl.Run(path).predict()
    call(capsys, "update", str(path), "--rollback")
    call(capsys, "predict", str(path), "--all")
