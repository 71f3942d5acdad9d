import shutil
from pathlib import Path

import numpy as np
import pytest

import graphcl
from graphcl.cli.main import run
from graphcl.errors import ParameterError
from graphcl.estimator.model import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.partitioned.nodes import read_parts_nodes
from graphcl.reporting import contents as module
from graphcl.reporting.contents import Sharded, gather
from graphcl.reporting.page import render
from graphcl.runs.files import weights_digest
from graphcl.store.header import read_store
from graphcl.tabular.build import build_store
from tests.cli.conftest import fails
from tests.conftest import random_graph
from tests.partitioned.test_embeddings import make_shards


def test_several_graphs_have_a_report(collection, tmp_path, recipe):
    GraphCL(recipe, device="cpu").fit(collection).save(tmp_path / "run", graph=collection)
    contents = gather(tmp_path / "run", collection, method="pca")
    assert len(contents.nodes) == collection.num_nodes
    assert np.bincount(contents.nodes.split_codes, minlength=4).tolist() == [
        0,
        *collection.split_nodes,
    ]
    assert '"title":"split"' in render(contents)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    graph = random_graph(num_nodes=90)
    graph.save(folder / "store")
    GraphCL("default", epochs=2, dim=8, device="cpu").fit(graph).save(folder / "run", graph=graph)
    build_store(folder / "store", out=folder / "parts", parts=3, order="hash")
    parts, ids = read_store(folder / "parts"), read_parts_nodes(folder / "parts").node_ids
    about = {"build": parts.build, "model": weights_digest(folder / "run")}
    z = np.load(folder / "run/embeddings.npy")[ids]
    make_shards(folder / "z.npy", z, parts.types["node"].starts, ".npy", ids, **about)
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "made")
    monkeypatch.chdir(tmp_path / "made")


def test_scores_are_those_of_the_whole_graph_and_edges_are_left_out(here):
    sharded = Sharded(Path("run"), Path("z.npy"), "parts", seed=0)
    whole = Graph.open(Path("parts"), restored=False)
    found = gather(Path("run"), None, method="pca", sharded=sharded)
    result = {"graph": {"name": "g"}, "probe": None}
    np.save("run/embeddings.npy", sharded.z[:])  # in the order of the parts: the same folds
    Path("run/nodes.npz").unlink()
    plain = gather(Path("run"), whole, method="pca", result=result)
    assert (found.confusion.counts == plain.confusion.counts).all()
    assert (found.assigned == plain.assigned).all()
    assert found.result["probe"]["accuracy"] == found.confusion.accuracy
    assert found.result["graph"]["edges"] == whole.num_edges
    source = np.repeat(np.arange(90), np.diff(whole.indptr))
    assert plain.homophily == pytest.approx(np.mean(whole.y[source] == whole.y[whole.indices]))
    of_edges = ("components", "homophily")
    assert [getattr(found, name) for name in of_edges] == [None] * 2
    assert None not in [getattr(plain, name) for name in of_edges]
    assert "left out" in found.notes[0]


def test_few_labelled_nodes_are_scored_of_many(here, monkeypatch):
    monkeypatch.setattr(module, "SCORED_NODES", 60)
    sharded = Sharded(Path("run"), Path("z.npy"), "parts", seed=0)
    assert len(sharded.scored) == 60
    found = gather(Path("run"), None, method="pca", sharded=sharded)
    assert sum(found.result["probe"]["nodes"]) == 60
    assert found.notes[1] == "The probe sees 60 of the labelled nodes."


def test_the_command_and_python_write_a_page(here, capsys):
    shards = ["--embeddings", "z.npy", "--graph", "parts"]
    assert run(["report", "run", "--map", "pca", "--out", "a.html", *shards]) == 0
    graphcl.Run("run", graph="parts", embeddings="z.npy").report("b.html", layout="pca")
    page = Path("a.html").read_text()
    assert page == Path("b.html").read_text()
    for text in ("Confusion matrix", "is left out"):
        assert text in page
    capsys.readouterr()
    alone = ["report", "run", "--map", "pca", "--embeddings", "z.npy"]
    assert "--graph must be the store in parts" in fails(capsys, *alone)
    with pytest.raises(ParameterError, match="the store in parts"):
        graphcl.Run("run", embeddings="z.npy").report("c.html", layout="pca")
