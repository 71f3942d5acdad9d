"""The commands on typed graphs: from tables to answers."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from graphcl import GraphCL, open_graph
from graphcl.cli.main import run
from tests.cli.conftest import QUICK, fails

TABLES = ["--nodes", "author=authors.csv", "--nodes", "paper=papers.csv"]
TABLES += ["--edges", "writes=writes.csv", "--edges", "cites=cites.csv"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Thirty authors, sixty papers of three topics, of which forty have a label; and a run."""
    folder = tmp_path_factory.mktemp("typed")
    rng = np.random.default_rng(1)
    topics = ["cooking", "sailing", "stars"]
    lines = {"authors.csv": ["name,born"], "papers.csv": ["id,pages,topic"]}
    lines |= {"writes.csv": ["author,paper"], "cites.csv": ["from,to"]}
    lines["authors.csv"] += [f"a{n},{1900 + n}" for n in range(30)]
    for n in range(60):
        topic = topics[n % 3] if n < 40 else ""
        lines["papers.csv"].append(f"{n},{10 * (n % 3) + rng.integers(8)},{topic}")
        lines["writes.csv"].append(f"a{3 * rng.integers(10) + n % 3},{n}")
        lines["cites.csv"].append(f"{n},{(n + 3 * (1 + rng.integers(9))) % 60}")
    for name, some in lines.items():
        (folder / name).write_text("\n".join(some) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(["train", *TABLES, "--label", "topic", *QUICK, "--out", "run"]) == 0
    return folder


@pytest.fixture
def tables(made, tmp_path, monkeypatch):
    """The tables alone, to change and to train on."""
    monkeypatch.chdir(tmp_path)
    for path in made.glob("*.csv"):
        shutil.copy(path, tmp_path)
    return tmp_path


@pytest.fixture
def trained(made, tables, capsys):
    """The run beside them, to use or to break."""
    shutil.copytree(made / "run", tables / "run")
    capsys.readouterr()
    return tables / "run"


def rows_of(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_check_says_all_that_train_would_make_of_the_tables(tables, capsys):
    assert run(["check", *TABLES, "--label", "topic"]) == 0
    said = capsys.readouterr()
    assert said.out == (
        "writes.csv: author: 30 nodes, 1 feature; paper: 60 nodes, 1 feature, 3 classes; "
        "author writes paper: 60 edges; paper cites paper: 60 edges\n"
    )
    assert "nodes author: authors.csv: ids in 'name' (guessed by name)" in said.err
    assert "columns of the table of paper:\n  id     the ids\n  pages  a number" in said.err
    assert "edges writes: 60 edges author → paper (guessed: 'author': all" in said.err
    assert run(["check", *TABLES, "--label", "topic", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["types"]["paper"] == {"nodes": 60, "features": 1, "classes": 3}
    assert about["relations"]["paper:cites:paper"] == {"edges": 60, "undirected": False}
    assert about["found"]["types"]["author"]["fates"][0]["became"] == "the ids"
    Path("authors.csv").write_text("name\n" + "".join(f"a{n}\n" for n in range(30)))
    assert run(["check", *TABLES, "--label", "topic"]) == 0
    assert "nodes of type 'author' have no features: they get the means" in capsys.readouterr().err
    assert sorted(path.name for path in tables.iterdir()) == [
        "authors.csv",
        "cites.csv",
        "papers.csv",
        "writes.csv",
    ]


def test_a_run_of_tables_embeds_a_store_of_them(trained, capsys):
    assert run(["build", *TABLES, "--label", "topic", "--out", "store"]) == 0
    assert run(["embed", "run", "store", "--type", "paper", "--out", "paper.npy"]) == 0
    kept = np.load(trained / "types/1-paper/embeddings.npy")
    np.testing.assert_allclose(np.load("paper.npy"), kept, atol=1e-6)


def test_a_run_keeps_types_and_the_estimator_reads_it(trained):
    result = json.loads((trained / "result.json").read_text())
    assert result["graph"]["types"] == {"author": 30, "paper": 60}
    assert result["graph"]["relations"] == {"author:writes:paper": 60, "paper:cites:paper": 60}
    assert result["probe"]["type"] == "paper"
    z = np.load(trained / "types/0-author/embeddings.npy")
    assert len(z) == 30
    assert np.isfinite(z).all()
    assert not (trained / "embeddings.npy").exists()
    assert GraphCL.load(trained).encoder_ is not None


def test_embeddings_of_all_types_or_of_one(trained, capsys):
    assert run(["embed", "run", "--out", "all.csv"]) == 0
    assert "all.csv: 90 embeddings of 8 numbers (30 author, 60 paper)" in capsys.readouterr().out
    rows = rows_of("all.csv")
    assert [row["type"] for row in rows] == ["author"] * 30 + ["paper"] * 60
    assert rows[31]["id"] == "1"
    assert run(["embed", "run", "--type", "paper", "--out", "paper.npy"]) == 0
    z = np.load("paper.npy")
    np.testing.assert_array_equal(z, np.load("run/types/1-paper/embeddings.npy"))
    np.testing.assert_allclose([float(row["dim_0"]) for row in rows[30:]], z[:, 0], rtol=1e-6)
    assert run(["embed", "run", "--type", "author", "--id", "a7", "--out", "one.csv"]) == 0
    assert rows_of("one.csv")[0]["id"] == "a7"
    assert run(["embed", "run", "--type", "author", "--rows", "7:9", "--out", "two.csv"]) == 0
    assert [row["id"] for row in rows_of("two.csv")] == ["a7", "a8"]
    np.testing.assert_allclose(float(rows_of("two.csv")[0]["dim_1"]), float(rows[7]["dim_1"]), 1e-4)
    pyarrow = pytest.importorskip("pyarrow.parquet")
    assert run(["embed", "run", "--out", "all.parquet"]) == 0
    assert pyarrow.read_table("all.parquet")["type"].to_pylist()[29:31] == ["author", "paper"]
    capsys.readouterr()
    assert "name one of author, paper" in fails(capsys, "embed", "run", "--out", "x.npy")
    line = fails(capsys, "embed", "run", "--rows", "0:3", "--out", "x.csv")
    assert "of which type?" in line
    line = fails(capsys, "embed", "run", "--type", "autor", "--out", "x.csv")
    assert "did you mean 'author'?" in line
    assert not Path("x.csv").exists()


def test_columns_of_edges_are_features_and_new_tables_are_prepared_alike(tables, capsys):
    lines = Path("writes.csv").read_text().split()
    texts = [f"{line},{n},{'pen' if n % 2 else 'ink'}" for n, line in enumerate(lines[1:])]
    Path("writes.csv").write_text("\n".join([f"{lines[0]},hours,with", *texts]) + "\n")
    assert run(["check", *TABLES, "--label", "topic"]) == 0
    said = capsys.readouterr().err
    assert "edges writes: 3 features of each edge: hours, with=ink, with=pen" in said
    assert "columns of the list of writes:\n  hours  a number\n  with   a category: 2 " in said
    assert run(["train", *TABLES, "--label", "topic", *QUICK, "--out", "run"]) == 0
    schema = json.loads(Path("run/schema.json").read_text())
    assert [one["num_edge_features"] for one in schema["relations"]] == [3, 0]
    prepared = json.loads(Path("run/relations/0-writes/preparation.json").read_text())
    assert prepared["columns"][1]["categories"] == ["ink", "pen"]
    assert run(["embed", "run", "--type", "paper", "--out", "same.npy"]) == 0
    np.testing.assert_array_equal(np.load("same.npy"), np.load("run/types/1-paper/embeddings.npy"))
    # Other numbers on the edges, and a word that the model has not seen, are other embeddings.
    changed = [f"{line},{-n},{'chalk' if n % 2 else 'ink'}" for n, line in enumerate(lines[1:])]
    Path("new.csv").write_text("\n".join([f"{lines[0]},hours,with", *changed]) + "\n")
    new = [*TABLES[:4], "--edges", "writes=new.csv", *TABLES[6:]]
    capsys.readouterr()
    assert run(["embed", "run", *new, "--type", "paper", "--out", "new.npy"]) == 0
    assert "1 category is new to the model and encoded as zeros: 'chalk'" in capsys.readouterr().err
    assert not np.allclose(np.load("new.npy"), np.load("same.npy"))
    # A run from before edges had features has none, whatever the columns are.
    assert (
        run(["train", *TABLES, "--ignore", "hours", "--ignore", "with", *QUICK, "--out", "old"])
        == 0
    )
    assert run(["embed", "old", *TABLES, "--type", "author", "--out", "old.npy"]) == 0
    np.testing.assert_allclose(np.load("old.npy"), np.load("old/types/0-author/embeddings.npy"))


def test_build_writes_a_store_that_is_trained_and_new_tables_follow_it(tables, capsys):
    lines = Path("writes.csv").read_text().split()
    texts = [f"{line},{n}" for n, line in enumerate(lines[1:])]
    Path("writes.csv").write_text("\n".join([f"{lines[0]},hours", *texts]) + "\n")
    assert run(["build", *TABLES, "--label", "topic", "--out", "store", "--json"]) == 0
    said = capsys.readouterr()
    about = json.loads(said.out)
    assert (about["nodes"], about["edges"]) == (90, 120)
    assert "edges writes: 1 feature of each edge: hours" in about["found"]["notes"]
    assert said.err.count("guessed: ids in") == said.err.count("guessed: writes joins") == 1
    for source, out in ((["store"], "one"), ([*TABLES, "--label", "topic"], "two")):
        assert run(["train", *source, *QUICK, "--out", out]) == 0
    z = [np.load(Path(out) / "types/1-paper/embeddings.npy") for out in ("one", "two")]
    np.testing.assert_array_equal(*z)
    assert run(["embed", "one", *TABLES, "--type", "paper", "--out", "again.npy"]) == 0
    np.testing.assert_array_equal(np.load("again.npy"), z[0])
    capsys.readouterr()
    assert "already holds a store" in fails(
        capsys, "build", *TABLES, "--label", "topic", "--out", "store"
    )


def test_new_tables_are_read_as_those_of_the_training(trained, capsys):
    Path("new_authors.csv").write_text("name,born\n1,1950\n2,1960\n")
    Path("new_papers.csv").write_text("id,pages\n1,5\n2,9\n")
    Path("new.csv").write_text("x,y\n1,2\n2,1\n")  # ids alone would not say which is which
    new = ["--nodes", "author=new_authors.csv", "--nodes", "paper=new_papers.csv"]
    assert run(["embed", "run", *new, "--edges", "writes=new.csv", "--out", "new_z.csv"]) == 0
    assert [row["type"] for row in rows_of("new_z.csv")] == ["author", "author", "paper", "paper"]
    capsys.readouterr()
    line = fails(capsys, "embed", "run", *new, "--edges", "a:reads:paper=new.csv", "--out", "x.csv")
    assert "no type 'a'" in line


def test_labels_are_predicted_for_the_labelled_type(trained, capsys):
    assert run(["predict", "run", "--out", "topics.csv"]) == 0
    rows = rows_of("topics.csv")
    assert [row["id"] for row in rows] == [str(n) for n in range(40, 60)]
    assert {row["label"] for row in rows} <= {"cooking", "sailing", "stars"}
    Path("labels.csv").write_text("id,label\na0,x\na1,y\na3,x\na4,y\n")
    capsys.readouterr()
    arguments = ["predict", "run", "--type", "author", "--labels", "labels.csv", "--json"]
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == 26
    assert "has no labels" in fails(capsys, "predict", "run", "--type", "author")


def test_neighbours_groups_and_reports_are_of_one_type(trained, capsys):
    assert run(["neighbors", "run", "a7", "-k", "3", "--json"]) == 0  # only authors have that id
    near = json.loads(capsys.readouterr().out)["neighbors"]
    assert all(one["id"].startswith("a") for one in near)
    assert run(["neighbors", "run", "7", "--type", "paper", "-k", "2"]) == 0
    capsys.readouterr()
    assert "no node has the id 'a7'" in fails(capsys, "neighbors", "run", "a7", "--type", "paper")
    assert "name one: --type author" in fails(capsys, "neighbors", "run", "nobody")
    assert run(["cluster", "run", "--type", "author", "--count", "2"]) == 0
    capsys.readouterr()
    assert "name one: --type author" in fails(capsys, "cluster", "run")
    assert run(["report", "run", "--map", "pca"]) == 0
    page = (trained / "types/1-paper/report.html").read_text()
    assert "the nodes of type" in page
    assert run(["report", "run", "--type", "author", "--map", "pca", "--out", "a.html"]) == 0
    assert run(["evaluate", "run", "--json"]) == 0
    probe = json.loads((trained / "result.json").read_text())["probe"]
    assert f'"accuracy": {probe["accuracy"]}' in capsys.readouterr().out
    assert run(["evaluate", "run", "--runs", "2", "--set", "epochs=1", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["accuracy"]) == {"mean", "std"}


def test_links_are_of_one_relation(trained, capsys):
    assert run(["links", "run", "--relation", "writes", "-k", "30", "--out", "links.csv"]) == 0
    rows = rows_of("links.csv")
    written = {(row["author"], row["paper"]) for row in rows_of("writes.csv")}
    assert len(rows) == 30
    assert not {(row["source"], row["target"]) for row in rows} & written
    assert (
        run(["links", "run", "--relation", "author:writes:paper", "--node", "a7", "-k", "4"]) == 0
    )
    said = capsys.readouterr().out
    assert "the 4 most likely missing links of 1 author: author writes paper" in said
    Path("pairs.csv").write_text(f"source,target\na7,3\n{','.join(sorted(written)[0])}\n")
    assert run(["links", "run", "--relation", "writes", "--pairs", "pairs.csv", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["rows"]
    assert [one["linked"] for one in found] == [("a7", "3") in written, True]
    assert run(["links", "run", "--relation", "cites", "--evaluate", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["relation"], about["held_out"]) == ("paper:cites:paper", 6)
    assert "name one: --relation writes" in fails(capsys, "links", "run")
    assert "did you mean 'writes'?" in fails(capsys, "links", "run", "--relation", "write")
    line = fails(capsys, "links", "run", "--relation", "writes", "--node", "59")
    assert "author: no node has the id '59'" in line


def test_a_file_of_arrays_with_types_is_a_typed_graph(tables, capsys):
    rng = np.random.default_rng(0)
    edges = np.stack([rng.integers(0, 20, 60), 20 + rng.integers(0, 10, 60)])
    kinds = np.array(["user"] * 20 + ["item"] * 10)
    np.savez(
        "mine.npz",
        edge_index=edges,
        x=rng.normal(size=(30, 4)),
        node_type=kinds,
        edge_type=np.array(["buys"] * 60),
    )
    assert run(["check", "mine.npz"]) == 0
    said = capsys.readouterr().out
    assert "mine.npz: item: 10 nodes, 4 features; user: 20 nodes, 4 features; user buys " in said
    assert run(["train", "mine.npz", *QUICK, "--out", "npz"]) == 0
    assert run(["embed", "npz", "--type", "item", "--out", "items.npy"]) == 0
    assert len(np.load("items.npy")) == 10
    capsys.readouterr()
    open_graph("mine.npz").save("kept")  # and a store of it
    assert run(["check", "kept"]) == 0
    assert (
        "kept: Graph('mine': item: 10 nodes, 4 features; user: 20 nodes" in capsys.readouterr().out
    )
    assert run(["train", "kept", *QUICK, "--out", "of_store"]) == 0
    assert run(["embed", "of_store", "--type", "item", "--out", "same.npy"]) == 0
    np.testing.assert_allclose(np.load("same.npy"), np.load("items.npy"), rtol=1e-4, atol=1e-5)
    capsys.readouterr()
    assert run(["train", "mine.npz", "--method", "raw"]) == 0
    assert "raw: knows one relation: the graph is flattened" in capsys.readouterr().err
    assert run(["embed", "runs/mine-raw", "--out", "raw.csv"]) == 0
    assert [row["id"] for row in rows_of("raw.csv")][9:11] == ["item/9", "user/0"]


def test_a_directed_list_and_a_column_of_relations(tables, capsys):
    assert run(["train", "cites.csv", "--nodes", "papers.csv", "--label", "topic", "--directed",
                *QUICK, "--out", "directed"]) == 0  # fmt: skip
    schema = json.loads(Path("directed/schema.json").read_text())
    assert (schema["relations"][0]["name"], schema["relations"][0]["undirected"]) == ("to", False)
    assert run(["neighbors", "directed", "3", "-k", "1"]) == 0
    assert run(["links", "directed", "-k", "2"]) == 0  # the only relation
    Path("both.csv").write_text("a,b,what\na1,2,writes\n3,4,cites\na2,4,writes\n")
    nodes = TABLES[:4]
    assert run(["check", "both.csv", *nodes, "--relation", "what", "--label", "topic"]) == 0
    assert "author writes paper: 2 edges" in capsys.readouterr().out
    assert "'cora' is not one" in fails(capsys, "train", "cora", "--directed")
    assert run(["build", "--edges", "cites.csv", "--directed", "--out", "store"]) == 0
    assert "node to node" in capsys.readouterr().out


def test_a_run_that_was_moved_finds_its_tables(trained, tables, monkeypatch, capsys):
    (tables / "elsewhere").mkdir()
    monkeypatch.chdir(tables / "elsewhere")
    assert run(["embed", "../run", "--out", "all.csv"]) == 0
    (tables / "papers.csv").write_text("id,pages\n1,2\n")
    capsys.readouterr()
    assert "(the graph that ../run was trained on)" in fails(
        capsys, "embed", "../run", "--out", "b.csv"
    )


def test_an_unsealed_run_reads_no_tables(trained, capsys):
    config = trained / "config.toml"
    config.write_text(config.read_text().replace('graph = "writes.csv"', 'graph = "cora"'))
    line = fails(capsys, "embed", "run", "--out", "all.csv")
    assert "is not read on the word of a run" in line
    assert "--nodes author=authors.csv" in line
    assert "--edges writes=writes.csv" in line


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        ({"authors.csv": "name,born\n"}, (), "authors.csv: has no rows"),
        ({"authors.csv": "name,born\na1,1\na1,2\n"}, (), "have the same id 'a1'"),
        ({"writes.csv": "author,paper\n"}, (), "has no rows, so nothing says which types"),
        ({"writes.csv": "author,paper\na1,77\na2,3\n"}, (), "first '77' in row 1"),
        ({"writes.csv": "author,paper\nx,1\ny,2\n"}, (), "of which type are its ids?"),
        ({}, ("--label", "papr=topic"), "no type 'papr'"),
        ({}, ("--edges", "b:writes:paper=writes.csv"), "no type 'b'"),
        ({}, ("--nodes", "more.csv"), "give a name with it: --nodes TYPE=more.csv"),
        ({}, ("--nodes", "author=more.csv"), "--nodes: 'author' is given twice"),
        ({}, ("--features", "structural"), "leave it out"),
    ],
)
def test_odd_tables_end_with_one_message(tables, capsys, change, words, message):
    for name, text in change.items():
        Path(name).write_text(text)
    for command in ("check", "train"):
        assert run([command, *TABLES, "--ignore", "topic", *words]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert message in said.err
        assert "Traceback" not in said.err
        lines = said.err.splitlines()
        assert len(lines) == 1 or " problems:" in lines[0]
    assert not Path("runs").exists()


def test_the_command_that_a_message_offers_settles_it(tables, capsys):
    ids = "".join(f"{n}\n" for n in range(5))
    for name in ("users.csv", "items.csv"):
        Path(name).write_text("id\n" + ids)
    Path("likes.csv").write_text("x,y\n1,2\n3,4\n")
    arguments = ["check", "--nodes", "user=users.csv", "--nodes", "item=items.csv"]
    line = fails(capsys, *arguments, "--edges", "likes=likes.csv")
    assert "They are all among those of user and of item" in line
    offered = line.partition("try: graphcl ")[2].split()
    assert run(offered) == 0
    assert "user likes user: 2 edges" in capsys.readouterr().out


def test_one_type_and_one_list_are_called_what_they_are_called(tables, capsys):
    """Edges in both directions make it a plain graph; its nodes are authors all the same."""
    rng = np.random.default_rng(0)
    ids = [next(iter(row.values())) for row in rows_of("authors.csv")]
    pairs = [(ids[a], ids[b]) for a, b in rng.integers(0, len(ids), (60, 2)) if a != b]
    lines = [f"{a},{b}\n{b},{a}\n" for a, b in pairs]
    Path("knows.csv").write_text("a,b\n" + "".join(lines))
    lists = ["--nodes", "author=authors.csv", "--edges", "knows=knows.csv"]
    assert run(["train", *lists, *QUICK, "--out", "one"]) == 0
    assert not Path("one/schema.json").exists()
    assert run(["neighbors", "one", ids[3], "--type", "author"]) == 0
    assert run(["embed", "one", "--type", "author", "--out", "z.npy"]) == 0
    Path("more.csv").write_text(f"a,b\n{ids[0]},{ids[5]}\n")
    assert run(["update", "one", "--edges", "knows=more.csv"]) == 0
    assert run(["neighbors", "one", ids[3], "--type", "author"]) == 0
    capsys.readouterr()
    assert "has no types; got 'paper'" in fails(
        capsys, "embed", "one", "--type", "paper", "--out", "x.npy"
    )
