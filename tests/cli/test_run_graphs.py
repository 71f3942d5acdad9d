"""Where the graph of a run comes from: the run keeps it, and names no table to read."""

import json
import os
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import graphcl
from graphcl.cli.main import run
from graphcl.runs import files as runs
from graphcl.runs import graph as graphs
from graphcl.serving.run import ServedRun
from tests.cli.conftest import QUICK, fails
from tests.conftest import random_graph

SECRET = "correct horse battery staple"
QUERY = "SELECT content AS source, content AS target FROM read_text('{}')"
TABLES = ["edges.csv", "--nodes", "people.csv", "--label", "kind", "--split", "part"]
COMMANDS = {
    "embed": ["embed", "RUN", "--out", "z.npy"],
    "evaluate": ["evaluate", "RUN"],
    "evaluate again": ["evaluate", "RUN", "--runs", "2"],
    "report": ["report", "RUN", "--map", "pca"],
    "neighbors": ["neighbors", "RUN", "n3"],
}
EVERY = pytest.mark.parametrize("command", COMMANDS)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Tables, runs that this user trained on them, and the user's key."""
    graph, folder = random_graph(), tmp_path_factory.mktemp("tables")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        lines = [f"n{u},n{v}" for u, v in graph.edge_index().T.tolist() if u < v]
        Path("edges.csv").write_text("\n".join(["source,target", *lines]))
        parts = [(graph.train_mask, "train"), (graph.val_mask, "val"), (graph.test_mask, "test")]
        rows = ["id,a,b,c,kind,part"]
        for u in range(graph.num_nodes):
            part = next(name for mask, name in parts if mask[u])
            numbers = ",".join(f"{value:.4f}" for value in graph.x[u, :3])
            rows.append(f"n{u},{numbers},{graph.y[u]},{part}")
        Path("people.csv").write_text("\n".join(rows))
        Path("secret.txt").write_text(SECRET)
        gcn = ["--method", "gcn", "--set", "epochs=2"]
        for name, method in (("run", QUICK), ("raw", ["--method", "raw"]), ("gcn", gcn)):
            assert run(["train", *TABLES, *method, "--out", name]) == 0
        shutil.copytree("run", "whole")
        for name in ("run", "raw", "gcn"):
            (Path(name) / "nodes.npz").unlink()  # so that every command needs the graph
    return folder


@pytest.fixture
def tables(made, here):
    """A copy of all that, to work in."""
    shutil.copytree(made, here, dirs_exist_ok=True)


def named(command, name="run"):
    return [name if word == "RUN" else word for word in COMMANDS[command]]


def rewrite(name="run", **changes):
    """Changes what the run says of its graph."""
    config = runs.read_config(Path(name), baselines=True)
    origin = runs.Origin(**vars(config.origin) | changes)
    text = runs.RunConfig(**vars(config) | {"origin": origin}).to_toml()
    (Path(name) / runs.CONFIG).write_text(text)


def leave_out(name="run"):
    """Makes the run one that was trained with ``--no-graph``."""
    shutil.rmtree(Path(name) / "graph")
    rewrite(name, kept=False)


@pytest.fixture
def closed(monkeypatch):
    """No table may be opened."""

    def opened(name, *_):
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(graphs, "load_tables", opened)


@EVERY
def test_tables_are_not_needed_any_more(tables, command, capsys, closed):
    Path("edges.csv").unlink()
    rows = Path("people.csv").read_text().splitlines()
    Path("people.csv").write_text("\n".join([rows[0], "n0,9,9,9,0,train", *rows[2:]]))
    assert run(named(command)) == 0
    shutil.move("run", "elsewhere")
    assert run([*named(command, "elsewhere"), *(["--overwrite"] * (command == "embed"))]) == 0


SOURCES = [
    {"graph": QUERY.format("secret.txt"), "tables": ""},
    {"graph": "secret.txt"},
    {"graph": "secret.csv"},
    {"graph": "people.csv"},
    {"graph": "data.duckdb:secrets"},
    {"graph": "graph.graphml"},
    {"tables": json.dumps({"nodes": QUERY.format("secret.txt")})},
    {"tables": json.dumps({"nodes": "secret.csv"})},
    {"graph": "secret.npz", "tables": json.dumps({"nodes": "secret.csv"})},
    {"graph": "secret.npz", "tables": "", "fingerprint": ""},
    {"graph": "s3://bucket/store", "tables": "", "build": "0" * 32},
]


@pytest.mark.parametrize("changes", SOURCES)
def test_nothing_is_read_on_the_word_of_a_run(tables, changes, capsys, closed):
    np.savez("secret.npz", edge_index=[[0], [1]], x=np.eye(2))
    leave_out()
    rewrite(**changes)
    for command in COMMANDS:
        capsys.readouterr()
        told = fails(capsys, *named(command))
        assert "does not keep the graph that it was trained on" in told
        assert SECRET not in told
    assert not Path("z.npy").exists()


def test_a_store_is_known_by_its_build(tables, capsys):
    assert run(["build", "--edges", *TABLES, "--out", "store"]) == 0
    assert run(["train", "store", *QUICK, "--out", "stored"]) == 0
    assert not Path("stored/graph").exists()
    capsys.readouterr()
    assert run(["check", "stored"]) == 0
    proposed = capsys.readouterr().out.partition("its graph is store: ")[2]
    assert run(shlex.split(proposed)[1:]) == 0
    Path("away").mkdir()
    os.chdir("away")
    assert run(["embed", "../stored", "--out", "z.npy"]) == 0
    os.chdir("..")
    lines = Path("edges.csv").read_text().splitlines()
    Path("edges.csv").write_text("\n".join(lines[:-1]))
    assert run(["build", "--edges", *TABLES, "--out", "store", "--overwrite"]) == 0
    capsys.readouterr()
    told = fails(capsys, "cluster", "stored")
    assert "store is not the graph that the run was trained on" in told
    assert "built again since; name it where it is now, or train again" in told
    shutil.rmtree("store")
    assert "'store', which is not there" in fails(capsys, "predict", "stored")


@EVERY
def test_a_run_without_its_graph_is_told_the_tables(tables, command, capsys):
    leave_out()
    capsys.readouterr()
    told = fails(capsys, *named(command))
    assert "does not keep the graph that it was trained on ('edges.csv')" in told
    pasted = told.partition("name them yourself: ")[2].partition("; or do without")[0]
    words = shlex.split(pasted)
    assert words[0] == "graphcl"
    assert run(words[1:]) == 0
    assert "edges.csv" in words


@pytest.mark.parametrize("name", ["raw", "gcn"])
def test_runs_of_baselines_too(tables, name, capsys):
    command = "embed" if name == "raw" else "evaluate"
    assert run(named(command, name)) == 0
    leave_out(name)
    capsys.readouterr()
    told = fails(capsys, *named("evaluate", name))
    words = shlex.split(told.partition("name them yourself: ")[2])
    assert run(words[1:]) == 0
    if name == "raw":
        capsys.readouterr()
        told = fails(capsys, "embed", "raw", "--out", "y.npy")
        assert run(shlex.split(told.partition("name them yourself: ")[2])[1:]) == 0
        np.testing.assert_array_equal(np.load("y.npy"), np.load("raw/embeddings.npy"))


@EVERY
def test_another_graph_than_the_runs_is_refused(tables, command, capsys):
    if command == "embed":
        return  # embeds any graph
    np.savez("other.npz", edge_index=[[0], [1]], x=np.eye(2), y=[0, 1])
    words = [*named(command), "--graph", "other.npz"]
    capsys.readouterr()
    told = fails(capsys, *words)
    assert told == "graphcl: run: other.npz is not the graph that the run was trained on"


@pytest.mark.parametrize("changed", ["edges.csv", "people.csv"])
def test_the_table_that_changed_is_named(tables, changed, capsys):
    rows = Path(changed).read_text().splitlines()
    cells = rows[1].split(",")
    rows[1] = ",".join([cells[0], *(["n9"] if changed == "edges.csv" else ["9", *cells[2:]])])
    Path(changed).write_text("\n".join(rows))
    told = fails(capsys, "cluster", "whole", "--graph", *TABLES)
    other = ({"edges.csv", "people.csv"} - {changed}).pop()
    assert f"whole: {changed} has changed since the training" in told
    assert other not in told
    assert "train again, or take the change over: update with --whole" in told
    assert run(["update", "whole", "--whole", "--edges", *TABLES[:3]]) == 0


def test_less_than_was_asked_for_is_an_error_unless_told_to(tables, capsys):
    leave_out("whole")
    for words in (
        ["predict", "whole", "--all"],
        ["cluster", "whole"],
        ["report", "whole", "--map", "pca"],
    ):
        assert fails(capsys, *words).endswith("or do without the graph: --without-graph")
        assert run([*words, "--without-graph"]) == 0
        capsys.readouterr()
    assert "Connected components" not in Path("whole/report.html").read_text()


def test_a_damaged_graph_is_named_and_not_passed_over(tables, capsys):
    (Path("whole") / "graph/part-00000/nodes-0/x.npy").write_bytes(b"")
    told = fails(capsys, "predict", "whole")
    assert "whole/graph/part-00000/nodes-0/x.npy: damaged" in told
    assert "copy the run from a backup, or train again" in told


def test_what_a_terminal_would_hide_is_shown_escaped(tables, capsys):
    leave_out()
    rewrite(graph="SELECT 1 AS source,\n2 AS target \x1b[2J FROM 'x'")
    capsys.readouterr()
    told = fails(capsys, "evaluate", "run")
    assert "\x1b" not in told
    assert r"\n2 AS target \x1b[2J" in told
    assert told.endswith("name the graph on the command line")


def test_table_options_need_a_graph_beside_them(tables, capsys):
    told = fails(capsys, "evaluate", "run", "--nodes", "people.csv")
    assert "--graph must be given with table options" in told


def test_a_run_may_name_a_dataset(tables):
    assert run(["train", "cora", "--method", "raw", "--out", "words"]) == 0
    assert not Path("words/graph").exists()
    assert run(["evaluate", "words"]) == 0


def test_a_training_on_tables_is_resumed(tables, capsys):
    command = ["train", *TABLES, *QUICK, "--out", "run", "--resume"]
    assert run(command) == 0
    assert "run: already complete" in capsys.readouterr().err


@pytest.fixture
def moved(tables, monkeypatch):
    """A copy of the run at another user's, where neither the tables nor the cache are."""
    home = Path("another").absolute()
    shutil.copytree("whole", home / "copy")
    for file in ("edges.csv", "people.csv", "whole"):
        (shutil.rmtree if Path(file).is_dir() else os.unlink)(file)
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    Path("new.csv").write_text("id,a,b,c,kind,part\nn3,1,2,3,0,\nnew,3,2,1,,\n")
    Path("met.csv").write_text("source,target\nnew,n3\n")
    Path("new.json").write_text(
        '{"new": [{"columns": {"a": 1, "b": 2, "c": 3}, "neighbors": ["n3"]}]}'
    )
    return home


def test_a_copied_run_is_whole(moved, capsys):
    """Every command of a run, before an update and after it."""
    tables = ["--nodes", "new.csv", "--edges", "met.csv"]
    for again in ([], ["--overwrite"]):
        for words in (
            ["predict", "copy", "--all", "--out", "p.csv", *again],
            ["cluster", "copy", "--count", "2", "--out", "c.csv", *again],
            ["links", "copy", "--out", "l.csv", *again],
            ["links", "copy", "--evaluate"],
            ["neighbors", "copy", "n3"],
            ["report", "copy", "--map", "pca"],
            ["embed", "copy", "--out", "z.npy", *again],
            ["embed", "copy", "--new", "new.json", "--out", "new.npy", *again],
            ["evaluate", "copy"],
            ["evaluate", "copy", "--runs", "2"],
            ["export", "copy", "--to", "card", "--out", "card", *again],
            ["check", "copy"],
            ["update", "copy", *tables],
        ):
            assert run(words) == 0, words
    capsys.readouterr()
    assert run(["cluster", "copy", "--count", "2", "--json"]) == 0
    profiles = str(json.loads(capsys.readouterr().out)["groups"])
    assert "feature " not in profiles  # columns have their own names, also after updates
    served = ServedRun(Path("copy/versions/2"), graphcl.Run("copy").graph, device="cpu")
    assert served.z.shape[0] == 61
