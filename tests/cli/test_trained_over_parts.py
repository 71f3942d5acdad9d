"""A run over parts, of every order, with the store that was divided, or with the parts."""

import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from graphcl import training_run
from graphcl.cli import serve as serve_command
from graphcl.cli.main import run
from graphcl.errors import RunError
from graphcl.graphs.graph import Graph
from graphcl.runs.files import has_embeddings, read_embeddings
from graphcl.runs.nodes import read_nodes
from graphcl.runs.versions import rollback
from graphcl.store.header import ORDERS
from graphcl.tabular import build
from graphcl.training_run import keep_embeddings
from tests.cli.conftest import fails
from tests.groups import command
from tests.serving.conftest import Client

NODES = 40
CHANGES = ("epochs=1", "dim=8", "layers=2", "steps=0", "batch_nodes=16", "fan_out=3")
SETTINGS = [word for one in CHANGES for word in ("--set", one)]


def write_tables(folder):
    lines = (f"n{i},{20 + i},{'ab'[i % 2]},{'left' if i < 20 else 'right'}" for i in range(NODES))
    (folder / "nodes.csv").write_text("\n".join(["id,age,city,topic", *lines]) + "\n")
    ends = (f"n{i},n{(i + step) % NODES}" for i in range(NODES) for step in (1, 3))
    (folder / "edges.csv").write_text("\n".join(["source,target", *ends]) + "\n")
    (folder / "new.csv").write_text("id,age,city,topic\nnew,30,a,left\nn5,77,b,left\n")
    (folder / "joined.csv").write_text("source,target\nnew,n1\n")
    people = (f"p{i},{i % 7},{'xy'[i % 2]}" for i in range(NODES))
    (folder / "people.csv").write_text("\n".join(["id,age,kind", *people]) + "\n")
    shops = (f"s{i},{i}" for i in range(12))
    (folder / "shops.csv").write_text("\n".join(["id,size", *shops]) + "\n")
    buys = (f"p{i},s{(i * step) % 12}" for i in range(NODES) for step in (1, 5))
    (folder / "buys.csv").write_text("\n".join(["source,target", *buys]) + "\n")


def train(parts, out):
    code, _, err = command("train", parts, "--processes", "2", "--out", out, *SETTINGS)
    assert code == 0, err


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Stores from tables, plain and typed, divided in each order, and a run over each plain one."""
    folder = tmp_path_factory.mktemp("kept")
    write_tables(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tables = ["--edges", "edges.csv", "--nodes", "nodes.csv", "--label", "topic"]
        assert run(["build", *tables, "--out", "store"]) == 0
        typed = ["--nodes", "person=people.csv", "--nodes", "shop=shops.csv"]
        typed += ["--edges", "buys=buys.csv", "--label", "person=kind"]
        assert run(["build", *typed, "--out", "shop"]) == 0
        for order in ORDERS:
            divided = ["--parts", "2", "--order", order, "--out"]
            assert run(["build", "store", *divided, f"parts-{order}"]) == 0
            train(f"parts-{order}", f"run-{order}")
        assert run(["build", "shop", "--parts", "2", "--order", "hash", "--out", "shops"]) == 0
        train("shops", "run-shop")
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "made")
    monkeypatch.chdir(tmp_path / "made")


def told(capsys, *arguments):
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def expected(name, graph="store"):
    """The store's embeddings by the run's model, in the store's order."""
    assert run(["embed", name, graph, "--out", "expected.npy", "--overwrite"]) == 0
    return np.load("expected.npy")


class Uvicorn:
    """Runs an application as long as some questions take."""

    def __init__(self, ask):
        self.ask = ask

    def Config(self, _, **options):  # noqa: N802 (uvicorn's name)
        return SimpleNamespace(**options)

    def Server(self, config):  # noqa: N802
        self.app = config.app
        return self

    def handle_exit(self, *_):
        """Is not called: no signal comes."""

    def run(self, **_):
        self.ask(Client(self.app))


def served(monkeypatch, *arguments):
    answers = {}

    def ask(client):
        answers["one"] = client.post("/v1/embed", {"ids": ["n7"]}).json()["nodes"][0]
        new = {"columns": {"age": 30, "city": "a"}, "neighbors": ["n1"]}
        answers["new"] = client.post("/v1/embed", {"new": [new]}).json()["nodes"][0]

    monkeypatch.setattr(serve_command, "import_extra", lambda *_, **__: Uvicorn(ask))
    assert run(["serve", *arguments, "--port", "0", "--map", "none"]) == 0
    return answers


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("graph", ["store", "parts"])
def test_it_is_served_updated_and_reported(here, capsys, monkeypatch, order, graph):
    name = f"run-{order}"
    given = ["--graph", "store" if graph == "store" else f"parts-{order}"]
    z = expected(name)
    answers = served(monkeypatch, name, *given)
    np.testing.assert_allclose(answers["one"]["embedding"], z[7], atol=1e-5)
    assert len(answers["new"]["embedding"]) == z.shape[1]
    assert read_nodes(Path(name)).ids.tolist() == [f"n{row}" for row in range(NODES)]
    np.testing.assert_allclose(read_embeddings(Path(name)), z, atol=1e-5)
    assert told(capsys, "report", name, *given, "--map", "pca")["nodes_on_map"] == NODES
    assert told(capsys, "evaluate", name, *given)["runs"] == 1
    assert len(told(capsys, "links", name, *given, "-k", "3")["rows"]) == 3
    delta = ["--nodes", "new.csv", "--edges", "joined.csv"]
    found = told(capsys, "update", name, *given, *delta)
    assert found["changes"]["new_nodes"] == found["changes"]["changed_nodes"] == 1
    grown = Graph.open(Path(name) / "versions/1/graph")
    assert list(grown.node_ids) == [*(f"n{row}" for row in range(NODES)), "new"]
    after = read_embeddings(Path(name) / "versions/1")
    np.testing.assert_allclose(after, expected(name, f"{name}/versions/1/graph"), atol=1e-5)
    assert served(monkeypatch, name)["one"]["id"] == "n7"


@pytest.mark.parametrize("name", ["neighbors", "predict", "cluster", "links", "update"])
def test_each_command_comes_first(here, capsys, name):
    """None of them needs another one before it; the run names its parts."""
    more = {
        "neighbors": ["n3"],
        "predict": ["--all"],
        "update": ["--edges", "joined.csv", "--nodes", "new.csv"],
    }
    z = expected("run-hash")
    found = told(capsys, name, "run-hash", *more.get(name, []))
    if name == "neighbors":
        unit = z / np.linalg.norm(z, axis=1, keepdims=True)
        assert found["neighbors"][0]["cosine"] == pytest.approx(
            np.sort(unit @ unit[3])[-2], abs=1e-4
        )
    elif name == "update":
        assert found["nodes"] == NODES + 1
    else:
        assert {row.get("id", "n0") for row in found["rows"]} <= {f"n{row}" for row in range(NODES)}


def test_another_graph_is_refused(here, capsys):
    Path("edges.csv").write_text("source,target\nn0,n1\n")
    tables = ["--edges", "edges.csv", "--nodes", "nodes.csv", "--label", "topic"]
    assert run(["build", *tables, "--out", "other"]) == 0
    assert run(["build", "other", "--parts", "2", "--out", "others"]) == 0
    capsys.readouterr()
    for other in ("other", "others"):
        said = fails(capsys, "report", "run-hash", "--graph", other)
        assert f"run-hash: {other} is not the graph that the run was trained on" in said


def test_parts_that_do_not_fit_name_the_store(here, capsys, monkeypatch):
    monkeypatch.setattr(build, "JOINING", 1 << 60)
    said = fails(capsys, "serve", "run-hash")
    assert "parts-hash: a store in parts of " in said
    assert "give the store that was divided, store" in said
    typed = fails(capsys, "neighbors", "run-shop", "p3", "--type", "person")
    assert "give the store that was divided, shop" in typed


@pytest.mark.parametrize("given", [[], ["--graph", "shop"], ["--graph", "shops"]])
def test_a_typed_run(here, capsys, given):
    assert run(["embed", "run-shop", "shop", "--type", "person", "--out", "z.npy"]) == 0
    z = np.load("z.npy")
    near = told(capsys, "neighbors", "run-shop", "p3", "--type", "person", *given)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    best = np.sort(unit @ unit[3])[-2]
    assert near["neighbors"][0]["cosine"] == pytest.approx(best, abs=1e-4)
    folder = Path("run-shop/types/0-person")
    assert read_nodes(folder).ids.tolist() == [f"p{row}" for row in range(NODES)]
    np.testing.assert_allclose(read_embeddings(folder), z, atol=1e-5)
    assert len(told(capsys, "links", "run-shop", "-k", "3", *given)["rows"]) == 3
    assert told(capsys, "report", "run-shop", "--map", "pca")["nodes_on_map"] == NODES
    assert told(capsys, "evaluate", "run-shop", *given)["runs"] == 1
    assert len(told(capsys, "predict", "run-shop", "--all")["rows"]) == NODES


@pytest.mark.parametrize("name", ["report", "evaluate", "links", "cluster", "predict"])
def test_each_command_comes_first_of_a_typed_run(here, capsys, name):
    more = {"report": ["--map", "pca"], "predict": ["--all"], "links": []}.get(name, [])
    kind = [] if name == "links" else ["--type", "person"]
    told(capsys, name, "run-shop", *kind, *more)
    assert Path("run-shop/types/1-shop/embeddings.npy").exists()


def test_a_service_goes_back_to_a_training_that_nobody_has_asked(here, monkeypatch, capsys):
    """Version 0 has no embeddings yet: they are made then, as where a service begins with it."""
    told(capsys, "update", "run-hash", "--edges", "joined.csv", "--nodes", "new.csv")
    assert not has_embeddings(Path("run-hash"))
    monkeypatch.setattr("graphcl.serving.run.LOOK", 0.02)
    answers = []

    def ask(client):
        answers.append(client.post("/v1/embed", {"ids": ["new"]}).status_code)
        rollback("run-hash")
        ends = time.monotonic() + 60
        while client.get("/ready").json()["version"] and time.monotonic() < ends:
            time.sleep(0.02)
        answers.append(client.post("/v1/embed", {"ids": ["new"]}).status_code)
        answers.append(client.post("/v1/embed", {"ids": ["n7"]}).json()["nodes"][0]["embedding"])

    monkeypatch.setattr(serve_command, "import_extra", lambda *_, **__: Uvicorn(ask))
    assert run(["serve", "run-hash", "--port", "0", "--map", "none"]) == 0
    assert "stays at version" not in capsys.readouterr().err
    assert answers[:2] == [200, 404]
    np.testing.assert_allclose(answers[2], expected("run-hash")[7], atol=1e-5)


def test_embeddings_of_a_training_are_not_kept_in_the_next(here, monkeypatch):
    def replaced(*arguments, **options):
        found = embed_rows(*arguments, **options)
        shutil.move("run-hash", "old")
        shutil.copytree("run-neighbours", "run-hash")
        return found

    embed_rows = training_run.embed_rows
    monkeypatch.setattr("graphcl.training_run.embed_rows", replaced)
    with pytest.raises(RunError, match="another training has taken its place meanwhile"):
        keep_embeddings(Path("run-hash"), Graph.open("store"), device="cpu")
    assert not has_embeddings(Path("run-hash"))
