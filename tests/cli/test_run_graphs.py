"""Whose word is taken for a run's graph: tables are read if this user trained the run."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from graphcl.cli.main import run
from graphcl.runs import files as runs
from graphcl.runs import graph as graphs
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
            (Path(name) / "nodes.npz").unlink()  # as in runs of long ago, which need the graph
    return folder


@pytest.fixture
def tables(made, here):
    """A copy of all that, to work in."""
    shutil.copytree(made, here, dirs_exist_ok=True)


def named(command, name="run"):
    return [name if word == "RUN" else word for word in COMMANDS[command]]


def rewrite(**changes):
    """Changes the origin of the run and keeps its seal."""
    config = runs.read_config(Path("run"))
    origin = runs.Origin(**vars(config.origin) | changes)
    text = runs.RunConfig(**vars(config) | {"origin": origin}).to_toml()
    (Path("run") / runs.CONFIG).write_text(text)


def unseal(name="run"):
    """Makes the run one that an earlier version wrote, or another user."""
    config = runs.read_config(Path(name), baselines=True)
    (Path(name) / runs.CONFIG).write_text(runs.RunConfig(**vars(config) | {"seal": ""}).to_toml())


@pytest.fixture
def closed(monkeypatch):
    """No table may be opened."""

    def opened(name, *_):
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(graphs, "load_tables", opened)


@EVERY
def test_the_honest_user_is_asked_nothing(tables, command, capsys):
    assert run(named(command)) == 0
    shutil.move("run", "elsewhere")
    assert run([*named(command, "elsewhere"), *(["--overwrite"] * (command == "embed"))]) == 0


@EVERY
@pytest.mark.parametrize("seal", ["none", "the user's own"])
def test_a_strangers_query_is_not_executed(tables, command, seal, capsys, closed):
    rewrite(graph=QUERY.format(Path("secret.txt").absolute()), tables="", fingerprint="")
    if seal == "none":
        unseal()
    capsys.readouterr()
    assert run(named(command)) == 2
    captured = capsys.readouterr()
    assert SECRET not in captured.out + captured.err
    last = captured.err.splitlines()[-1]
    assert "names the graph" in last
    assert "read_text" in last  # what would have been executed
    assert "if you trust it, give it yourself: graphcl " in last
    assert not Path("z.npy").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"graph": "secret.txt"},
        {"graph": "secret.csv"},
        {"graph": "people.csv"},
        {"graph": "data.duckdb:secrets"},
        {"graph": "graph.graphml"},
        {"tables": json.dumps({"nodes": QUERY.format("secret.txt")})},
        {"tables": json.dumps({"nodes": "secret.csv"})},
        {"fingerprint": ""},
        {"graph": "secret.npz", "tables": json.dumps({"nodes": "secret.csv"})},
        {"graph": "secret.npz", "tables": "", "fingerprint": ""},
        {"graph": "some/store", "tables": "", "fingerprint": ""},
    ],
)
def test_whoever_edits_the_run_voids_the_seal(tables, changes, capsys, closed):
    np.savez("secret.npz", edge_index=[[0], [1]], x=np.eye(2))
    rewrite(**changes)
    capsys.readouterr()
    for command in COMMANDS:
        assert "is not read on the word of a run" in fails(capsys, *named(command))


@EVERY
def test_an_old_run_is_trusted_by_naming_its_graph(tables, command, capsys):
    unseal()
    capsys.readouterr()
    told = fails(capsys, *named(command))
    assert "names the graph 'edges.csv' with nodes 'people.csv'" in told
    pasted = told.partition("give it yourself: ")[2].partition(", or do without")[0]
    words = shlex.split(pasted)
    assert words[0] == "graphcl"
    assert run(words[1:]) == 0
    assert "edges.csv" in words


@pytest.mark.parametrize("name", ["raw", "gcn"])
def test_runs_of_baselines_too(tables, name, capsys):
    command = "embed" if name == "raw" else "evaluate"
    assert run(named(command, name)) == 0
    unseal(name)
    capsys.readouterr()
    told = fails(capsys, *named("evaluate", name))
    words = shlex.split(told.partition("give it yourself: ")[2])
    assert run(words[1:]) == 0
    if name == "raw":
        capsys.readouterr()
        told = fails(capsys, "embed", "raw", "--out", "y.npy")
        assert run(shlex.split(told.partition("give it yourself: ")[2])[1:]) == 0
        np.testing.assert_array_equal(np.load("y.npy"), np.load("raw/embeddings.npy"))


@EVERY
def test_another_graph_than_the_runs_is_refused(tables, command, capsys):
    if command == "embed":
        return  # embeds any graph
    unseal()
    np.savez("other.npz", edge_index=[[0], [1]], x=np.eye(2), y=[0, 1])
    words = [*named(command), "--graph", "other.npz"]
    capsys.readouterr()
    told = fails(capsys, *words)
    assert told == "graphcl: run: other.npz is not the graph that the run was trained on"


def test_the_report_can_do_without_the_graph(tables, capsys):
    unseal("whole")
    capsys.readouterr()
    assert fails(capsys, "report", "whole").endswith("or do without: --without-graph")
    assert run(["report", "whole", "--map", "pca", "--without-graph"]) == 0
    assert "Connected components" not in Path("whole/report.html").read_text()


def test_what_a_terminal_would_hide_is_shown_escaped(tables, capsys):
    rewrite(graph="SELECT 1 AS source,\n2 AS target \x1b[2J FROM 'x'")
    capsys.readouterr()
    told = fails(capsys, "evaluate", "run")
    assert "\x1b" not in told
    assert r"\n2 AS target \x1b[2J" in told
    assert told.endswith("if you trust it, name the graph on the command line")


def test_table_options_need_a_graph_beside_them(tables, capsys):
    told = fails(capsys, "evaluate", "run", "--nodes", "people.csv")
    assert "--graph must be given with table options" in told


def test_an_unsealed_run_may_name_a_dataset_or_a_graph_that_it_knows(trained, capsys):
    unseal("runs/mine")
    for command in COMMANDS:
        node = ["node 3" if word == "n3" else word for word in named(command, "runs/mine")]
        (trained / "nodes.npz").unlink(missing_ok=True)
        assert run(node) == 0
    assert run(["train", "cora", "--method", "raw", "--out", "words"]) == 0
    unseal("words")
    assert run(["evaluate", "words"]) == 0


def test_a_training_on_tables_is_resumed(tables, capsys):
    command = ["train", *TABLES, *QUICK, "--out", "run", "--resume"]
    assert run(command) == 0
    assert "run: already complete" in capsys.readouterr().err
    assert runs.read_config(Path("run")).is_sealed


def test_a_run_finds_its_graph_from_another_folder(tmp_path, monkeypatch, capsys):
    home = tmp_path / "home"
    (home / "data").mkdir(parents=True)
    monkeypatch.chdir(home)
    pairs = "".join(f"{n},{(n + 1) % 30}\n" for n in range(30))
    (home / "data/e.csv").write_text("source,target\n" + pairs)
    (home / "data/n.csv").write_text("id,x,y\n" + "".join(f"{n},{n},{n % 2}\n" for n in range(30)))
    (home / "data/t.csv").write_text("id,tag\n" + "".join(f"{n},t{n % 3}\n" for n in range(30)))
    tables = ["data/e.csv", "--nodes", "data/n.csv", "--tags", "data/t.csv", "--label", "y"]
    assert run(["train", *tables, *QUICK, "--out", "runs/e"]) == 0
    assert run(["build", "--edges", *tables, "--out", "data/store"]) == 0
    assert run(["train", "data/store", *QUICK, "--out", "runs/store"]) == 0
    assert run(["embed", "runs/e", "--out", "here.npy"]) == 0
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "away")
    for name in ("e", "store"):
        assert run(["embed", f"../home/runs/{name}", "--out", f"{name}.npy"]) == 0
    assert np.array_equal(np.load("e.npy"), np.load("../home/here.npy"))
    assert run(["evaluate", str(home / "runs/e"), "--runs", "1"]) == 0
    (home / "data/e.csv").write_text("source,target\n0,1\n")  # another graph now
    capsys.readouterr()
    assert run(["embed", "../home/runs/e", "--out", "e.npy", "--overwrite"]) == 2
    assert "is not the graph that the run was trained on" in capsys.readouterr().err
    (home / "data/e.csv").unlink()
    assert run(["embed", "../home/runs/e", "--out", "e.npy", "--overwrite"]) == 2
    assert "data/e.csv: no such file" in capsys.readouterr().err
