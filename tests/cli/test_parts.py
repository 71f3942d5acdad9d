"""`graphcl build --parts`, and `graphcl check` of parts."""

import json
from pathlib import Path

import numpy as np
import pytest

from graphcl import Graph
from graphcl.cli.main import run
from graphcl.graphs.collection import fingerprint
from graphcl.opening import open_graph
from graphcl.store.header import read_store
from graphcl.tabular.preparation import read_preparation
from tests.conftest import random_graph


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random_graph().save("store")


def test_a_store_is_divided_and_checked(capsys):
    assert run(["build", "store", "--parts", "3", "--out", "parts", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    parts = read_store(Path("parts"))
    assert (about["nodes"], about["order"], about["types"]["node"]["starts"][-1]) == (
        60,
        "neighbours",
        60,
    )
    assert about["cut_share"] == parts.cut_edges / parts.num_edges < 0.6
    assert run(["check", "parts"]) == 0
    shown = capsys.readouterr()
    assert f"{100 * parts.cut_share:.1f} % of the edges are cut; unchanged," in shown.out
    assert "part-00002/nodes-0/x: " in shown.err
    assert run(["check", "parts", "--json"]) == 0
    sizes = json.loads(capsys.readouterr().out)["bytes"]
    assert {name.split("/")[0] for name in sizes} == {f"part-0000{part}" for part in range(3)}
    one, other = (Path(f"parts/part-0000{part}/nodes-0/y.npy") for part in (0, 1))
    other.write_bytes(one.read_bytes())
    assert run(["check", "parts"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"graphcl: {other.parent}: y has shape")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "store", "--parts", "61"], "store: has 60 nodes, too few for 61 parts"),
        (["build", "store"], "--parts must be given to divide the store store; got None"),
        (["build", "file.csv", "--edges", "file.csv"], "GRAPH must be left out if --edges gives"),
        (["build", "none", "--parts", "2"], "unknown dataset 'none'"),
        (["build", "--parts", "2"], "Missing argument 'GRAPH'"),
        (["build", "store", "--parts", "2", "--label", "y"], "--label applies only to tables"),
        (["build", "store", "--parts", "2", "--order", "x"], "--order must be one of"),
        (["build", "parts", "--parts", "2"], "parts: is in parts already"),
        (["train", "parts"], "parts: has 2 parts, one for each process; got 1 process"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_left(capsys, arguments, message):
    assert run(["build", "store", "--parts", "2", "--out", "parts"]) == 0
    Path("file.csv").write_text("a,b\n")
    capsys.readouterr()
    assert run([*arguments, "--out", "new"]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("graphcl: ")
    assert message in said
    assert {path.name for path in Path().iterdir()} == {"store", "parts", "file.csv"}


def test_tables_become_parts_and_ids_stay_text(capsys):
    Path("edges.csv").write_text("a,b\n" + "".join(f"n{i},n{i * 7 % 40}\n" for i in range(1, 40)))
    lines = "".join(f"n{i},{i / 3},{'xyz'[i % 3]}\n" for i in range(40))
    Path("nodes.csv").write_text("id,size,kind\n" + lines)
    tables = ["--edges", "edges.csv", "--nodes", "nodes.csv", "--label", "kind"]
    assert run(["build", *tables, "--out", "whole"]) == 0
    assert run(["build", *tables, "--parts", "3", "--order", "hash", "--out", "parts"]) == 0
    shown = capsys.readouterr().out
    assert "'edges': 40 nodes, " in shown
    assert " in 3 parts of " in shown
    graph, whole = Graph.open(Path("parts"), restored=False), Graph.open("whole")
    place = {name: number for number, name in enumerate(whole.node_ids)}
    at = [place[name] for name in graph.node_ids]
    assert sorted(at) == list(range(40))
    np.testing.assert_array_equal(graph.x, whole.x[at])
    np.testing.assert_array_equal(graph.y, whole.y[at])
    assert graph.class_names == whole.class_names == ("x", "y", "z")
    prepared = [read_preparation(Path(one) / "nodes-0").to_json() for one in ("parts", "whole")]
    assert prepared[0] == prepared[1]
    assert sorted(path.name for path in Path("parts").iterdir() if path.is_dir()) == [
        "nodes-0",
        *(f"part-0000{number}" for number in range(3)),
    ]
    assert run(["build", *tables, "--parts", "3", "--out", "parts"]) == 2
    assert run(["build", *tables, "--parts", "99", "--out", "many"]) == 2
    assert run(["build", *tables, "--order", "hash", "--out", "many"]) == 2
    assert "--order must be given with --parts; got 'hash'" in capsys.readouterr().err
    assert not Path("many").exists()


def test_typed_tables_become_parts(capsys):
    Path("authors.csv").write_text("id,age\n" + "".join(f"a{i},{20 + i}\n" for i in range(12)))
    Path("papers.csv").write_text("id,size\n" + "".join(f"p{i},{i / 3}\n" for i in range(20)))
    Path("writes.csv").write_text("a,b\n" + "".join(f"a{i % 12},p{i}\n" for i in range(20)))
    tables = ["--nodes", "author=authors.csv", "--nodes", "paper=papers.csv"]
    tables += ["--edges", "writes=writes.csv"]
    assert run(["build", *tables, "--out", "whole"]) == 0
    assert run(["build", *tables, "--parts", "3", "--order", "hash", "--out", "parts"]) == 0
    assert " 2 types and 1 relation in 3 parts of " in capsys.readouterr().out
    divide = ["build", "whole", "--parts", "3", "--order", "hash", "--out", "again"]
    assert run([*divide, "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["types"]["author"]["starts"][-1] == 12
    assert about["relations"]["author:writes:paper"]["edges"] == about["edges"] == 20
    graph = Graph.open(Path("parts"), restored=False)
    assert (
        repr(graph) == repr(Graph.open(Path("again"), restored=False)) == repr(Graph.open("whole"))
    )
    for place in ("nodes-0", "nodes-1"):
        prepared = [read_preparation(Path(one) / place).to_json() for one in ("parts", "whole")]
        assert prepared[0] == prepared[1]
    assert run(["check", "parts"]) == 0
    assert "of the edges are cut; unchanged," in capsys.readouterr().out
    assert run(["build", *tables, "--parts", "99", "--out", "many"]) == 2
    assert "32 nodes are too few for 99 parts" in capsys.readouterr().err
    assert run(["check", "parts"]) == 0
    Path("parts/part-00001/relation-0/indptr.npy").unlink()
    capsys.readouterr()
    assert run(["check", "parts"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("graphcl: parts/part-00001/relation-0/indptr.npy: cannot be read")
    assert run(["train", "again", "--out", "run"]) == 2
    assert "again: has 3 parts, one for each process; got 1 process" in capsys.readouterr().err


TYPED = (
    *("--nodes", "author=authors.csv", "--nodes", "paper=papers.csv"),
    *("--edges", "writes=writes.csv", "--edges", "knows=knows.csv"),
)


PLAIN = ("--edges", "edges.csv", "--nodes", "nodes.csv", "--text", "about")


@pytest.mark.parametrize("tables", [PLAIN, TYPED])
def test_every_missing_file_is_named(capsys, tables):
    Path("edges.csv").write_text("a,b\n" + "".join(f"n{i},n{i * 7 % 40}\n" for i in range(1, 40)))
    words = [f"word{i} word{i % 5} of many{i % 7}" for i in range(40)]
    lines = "".join(f"n{i},{i / 3},{words[i]}\n" for i in range(40))
    Path("nodes.csv").write_text("id,size,about\n" + lines)
    Path("authors.csv").write_text("id,age\n" + "".join(f"a{i},{20 + i}\n" for i in range(12)))
    Path("papers.csv").write_text("id,size\n" + "".join(f"p{i},{i / 3}\n" for i in range(20)))
    Path("writes.csv").write_text(
        "a,b,hours\n" + "".join(f"a{i % 12},p{i},{i}\n" for i in range(20))
    )
    Path("knows.csv").write_text("a,b\n" + "".join(f"a{i % 12},a{i % 5}\n" for i in range(20)))
    assert run(["build", *tables, "--parts", "2", "--order", "hash", "--out", "parts"]) == 0
    assert run(["check", "parts"]) == 0
    files = sorted(file for file in Path("parts").rglob("*") if file.is_file())
    assert len([file for file in files if file.name == "preparation.json"]) >= 1
    for file in files:
        file.rename("kept")
        capsys.readouterr()
        assert run(["check", "parts"]) == 2, file
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith("graphcl: parts"), said
        assert str(file.parent) in said, said
        assert file.name in said, said
        Path("kept").rename(file)
    prepared = next(file for file in files if file.name == "preparation.json")
    prepared.write_bytes(prepared.read_bytes() + b" ")
    assert run(["check", "parts"]) == 2
    assert f"{prepared}: altered or damaged" in capsys.readouterr().err


def test_any_graph_becomes_a_store_whole_or_in_parts(capsys):
    graph = random_graph()
    np.savez("mine.npz", edge_index=graph.edge_index(), x=graph.x)
    typed = {"node_type": np.arange(60) % 2, "edge_type": np.zeros(len(graph.indices), int)}
    np.savez("typed.npz", edge_index=graph.edge_index(), x=graph.x, **typed)
    for name in ("mine.npz", "typed.npz"):
        assert run(["build", name, "--out", f"whole-{name}"]) == 0
        assert run(["build", name, "--parts", "2", "--out", f"parts-{name}"]) == 0
        assert " in 2 parts of " in capsys.readouterr().out
        found = [fingerprint((open_graph(f"{how}-{name}"),)) for how in ("whole", "parts")]
        assert found[0] == found[1]
        assert read_store(Path(f"parts-{name}")).source == (found[0], "", {})
    assert run(["build", "ppi", "--out", "new"]) == 2
    assert "ppi: has several graphs; a store holds one" in capsys.readouterr().err
