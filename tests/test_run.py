"""`graphcl.Run`: what a training left, and everything one asks of it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import graphcl
from graphcl.cli.answers import open_run
from graphcl.cli.main import run as command
from graphcl.errors import GraphError, ParameterError, RunError
from graphcl.estimator.model import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.reporting.contents import gather
from graphcl.run import Run
from graphcl.runs import files as runs
from graphcl.updating import run as updating

NODES, AUTHORS = 60, 20


def plain_graph():
    random = np.random.default_rng(0)
    y = np.arange(NODES) % 3
    x = np.eye(3)[y] + random.normal(size=(NODES, 3)) * 0.3
    ends = random.integers(0, NODES, (2, 400))
    ends = ends[:, (y[ends[0]] == y[ends[1]]) & (ends[0] != ends[1])]
    hidden = np.where(np.arange(NODES) < 45, y, -1)
    masks = {"train_mask": np.arange(20), "val_mask": np.arange(20, 30)}
    names = np.array([f"n{one}" for one in range(NODES)], dtype=object)
    return Graph.from_edge_index(
        ends, x, hidden, **masks, test_mask=np.arange(30, 45), node_ids=names
    )


def typed_graph():
    random = np.random.default_rng(1)
    papers = {"x": random.normal(size=(NODES, 4)), "y": np.where(np.arange(NODES) < 40, 0, -1)}
    papers["y"][::2] = np.where(papers["y"][::2] < 0, -1, 1)
    return Graph.from_edges(
        {"paper": papers, "author": random.normal(size=(AUTHORS, 3))},
        {
            ("author", "writes", "paper"): np.stack(
                [random.integers(0, AUTHORS, 150), random.integers(0, NODES, 150)]
            )
        },
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of each kind of graph, with the graph beside it."""
    made = tmp_path_factory.mktemp("runs")
    for name, graph in (("plain", plain_graph()), ("typed", typed_graph())):
        GraphCL(dim=8, epochs=2, device="cpu").fit(graph).save(made / name, graph=graph)
    return made


@pytest.fixture
def plain(folder):
    return Run(folder / "plain", graph=plain_graph(), device="cpu")


@pytest.fixture
def typed(folder):
    return Run(folder / "typed", graph=typed_graph(), device="cpu")


def test_what_a_run_is(plain, typed):
    assert (plain.types, plain.version, len(plain.versions)) == ([], 0, 1)
    assert plain.embeddings.shape == (NODES, 8)
    assert plain.nodes().ids[:2].tolist() == ["n0", "n1"]
    again = plain.model.transform(plain.graph)
    assert np.allclose(again, plain.embeddings, atol=1e-6)
    assert plain.graph is plain.graph  # read once
    assert "version 0" in repr(plain)
    assert typed.types == ["paper", "author"]
    assert {name: len(z) for name, z in typed.embeddings.items()} == {
        "paper": NODES,
        "author": AUTHORS,
    }


def test_answers_are_those_of_the_functions_on_arrays(plain):
    z, graph = np.array(plain.embeddings), plain.graph
    found, expected = plain.predict(), graphcl.predict(z, graph)
    assert found.ids.tolist() == [f"n{one}" for one in range(45, NODES)]
    assert np.array_equal(found.probabilities, expected.probabilities)
    assert np.array_equal(plain.cluster(3).assigned, graphcl.cluster(z, 3).assigned)
    near = plain.neighbors(["n7", "n3"], 4)
    exact = graphcl.neighbors(z, rows=[7, 3], k=4)
    assert np.array_equal(near.nearest, exact.nearest)
    assert plain.neighbors("n7", 4).columns()["id"].tolist() == ["n7"] * 4
    assert np.array_equal(plain.neighbors(rows=[7, 3], k=4).nearest, near.nearest)
    same = {"graph": graph, "model": plain.model}
    for how in ({"k": 5}, {"nodes": ["n4"], "k": 2}, {"by": "adamic_adar", "k": 3}):
        mine, others = plain.links(**how), graphcl.links(z, **same, **how)
        assert list(mine.source) == list(others.source)
        assert np.allclose(mine.scores, others.scores)
    mine = plain.links(pairs=[("n0", "n3")])
    assert np.allclose(mine.scores, graphcl.links(z, [("n0", "n3")], **same).scores)


def test_labels_of_ones_own_and_the_error_on_test_nodes(plain):
    labels = {f"n{one}": "abc"[one % 3] for one in range(12)}
    assert plain.predict(labels).classes == ("a", "b", "c")
    tested = plain.predict(learn="train")
    assert tested.test.nodes == 15
    assert len(tested) == NODES - 30  # those of test nodes are hidden
    assert plain.predict().test is None
    every = {f"n{one}": one % 2 for one in range(NODES)}
    with pytest.raises(RunError, match="nodes='all' predicts them too"):
        plain.predict(every)
    assert len(plain.predict(every, nodes="all")) == NODES
    with pytest.raises(ParameterError, match="learn must be all or train"):
        plain.predict(learn="some")
    with pytest.raises(GraphError, match="nobody"):
        plain.predict({"nobody": 1, "n1": 0})


def test_some_nodes_are_predicted_by_their_ids(plain):
    every = plain.predict(nodes="all")
    some = plain.predict(nodes=["n50", "n3"])
    assert some.ids.tolist() == ["n50", "n3"]
    assert np.allclose(some.probabilities, every.probabilities[[50, 3]], atol=1e-6)
    assert some.columns()["given"] == [None, 0]
    with pytest.raises(ParameterError, match="or a list of ids"):
        plain.predict(nodes="n3")
    with pytest.raises(GraphError, match="did you mean 'n3'"):
        plain.predict(nodes=["n03"])


def test_types_are_named_or_guessed_by_what_is_asked(typed):
    assert len(typed.predict()) == NODES - 40  # papers alone have labels
    with pytest.raises(RunError, match="name one: node_type='paper'"):
        typed.cluster(2)
    assert typed.cluster(2, node_type="author").assigned.shape == (AUTHORS,)
    assert typed.neighbors(NODES - 1, 3).rows.tolist() == [NODES - 1]  # no author has this id
    with pytest.raises(RunError, match="several of which have what is asked; name one"):
        typed.neighbors(3)
    with pytest.raises(RunError, match="none of which alone has what is asked"):
        typed.neighbors("nobody")
    z, graph = dict(typed.embeddings), typed.graph
    mine, others = typed.links(k=4), graphcl.links(z, graph=graph, model=typed.model, k=4)
    assert np.allclose(mine.scores, others.scores)
    assert typed.relation().name == "writes"
    with pytest.raises(RunError, match="no type 'venue'"):
        typed.nodes("venue")


def test_a_run_finds_its_graph_and_refuses_another(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = replace(plain_graph(), name="other")
    random = np.random.default_rng(5)
    changed = Graph.from_edge_index(random.integers(0, NODES, (2, 90)), np.asarray(other.x))
    with pytest.raises(RunError, match="is not the graph that the run was trained on"):
        _ = Run(folder / "plain", graph=changed).graph
    with pytest.raises(RunError, match="does not say which graph"):
        _ = Run(folder / "plain").graph
    plain_graph().save("graph.npz")
    arguments = ["train", "graph.npz", "--out", "named", "--set", "epochs=1"]
    assert command([*arguments, "--set", "dim=4", "--device", "cpu", "--probe-steps", "1"]) == 0
    assert Run("named").graph.num_nodes == NODES
    with pytest.raises(RunError, match="nothing"):
        Run("nothing")


def test_an_update_a_way_back_and_a_version_by_its_folder(folder, tmp_path):
    import shutil

    shutil.copytree(folder / "plain", tmp_path / "run")
    run = Run(tmp_path / "run", graph=plain_graph(), device="cpu")
    before = np.array(run.embeddings)
    done = run.update(edges=[("n0", "n40")])
    assert (done.version, run.version, len(run.versions)) == (1, 1, 2)
    assert run.graph.num_edges == plain_graph().num_edges + 1  # its own now, not that given
    after = np.array(run.embeddings)
    assert not np.array_equal(after[0], before[0])
    assert run.update(remove_nodes=["n3"]).version == 2
    assert len(run.embeddings) == NODES - 1
    first = Run(tmp_path / "run" / "versions" / "1")
    assert (first.version, first.path) == (1, tmp_path / "run")
    assert np.array_equal(first.embeddings, after)
    assert run.rollback() == 1
    assert np.array_equal(run.embeddings, after)
    assert run.rollback(0) == 0
    assert np.array_equal(run.embeddings, before)
    assert run.graph.num_edges == plain_graph().num_edges


def test_an_answer_is_of_one_version_whichever_comes_into_use_meanwhile(
    folder, tmp_path, monkeypatch
):
    import shutil

    shutil.copytree(folder / "plain", tmp_path / "run")
    run = Run(tmp_path / "run", graph=plain_graph(), device="cpu")
    new = {"id": ["m"], "a": [1.0], "b": [0.0], "c": [0.0]}
    run.update(nodes=new, edges=[("m", "n0")], remove_nodes=["n3"])  # as many as before
    whole = np.array(run.embeddings)

    def roll_back(folder):
        run.rollback(0)
        return lacks(folder)

    lacks = graphcl.run.lacks_embeddings
    monkeypatch.setattr("graphcl.run.lacks_embeddings", roll_back)
    z, nodes = run.rows()
    assert run.version == 0
    assert np.array_equal(z, whole)
    assert nodes.ids[-1] == "m"
    assert Run(tmp_path / "run").nodes().ids[3] == "n3"


def test_a_run_whose_pointer_is_damaged_can_still_be_rolled_back(folder, tmp_path):
    import shutil

    shutil.copytree(folder / "plain", tmp_path / "run")
    run = Run(tmp_path / "run", graph=plain_graph(), device="cpu")
    run.update(edges=[("n0", "n40")])
    (tmp_path / "run" / "versions" / "current").write_text("what?")
    with pytest.raises(RunError, match=r"\.rollback\(1\)"):
        _ = Run(tmp_path / "run").embeddings
    assert Run(tmp_path / "run").rollback(1) == 1


def test_export(plain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert plain.export("card", licence="mit") == Path("card")
    assert "mit" in Path("card/README.md").read_text()
    with pytest.raises(RunError, match="pass overwrite=True"):
        plain.export("card")
    assert plain.export("torch", "own.pt2") == Path("own.pt2")
    with pytest.raises(ParameterError, match="licence must be given with to='card'"):
        plain.export("torch", "other.pt2", licence="mit")
    with pytest.raises(ParameterError, match="to must be"):
        plain.export("tensorflow")


def test_similar_nodes_are_found_without_torch(folder):
    code = (
        "import sys; from graphcl.run import Run\n"
        f"found = Run({str(folder / 'plain')!r}).neighbors('n1', 3)\n"
        "assert found.nearest.shape == (1, 3) and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_version_keeps_its_model_while_another_is_trained_on(folder, tmp_path):
    """The training has no folder of its own: what is of it must not be of the version in use."""
    import shutil

    path = tmp_path / "run"
    shutil.copytree(folder / "plain", path)
    first = open_run(path, ("links",), device="cpu")  # as a command does
    page = open_run(path, ("report",), device="cpu")
    Run(path, graph=plain_graph(), device="cpu").update(retrain=True, epochs=1)
    z = first.embeddings
    assert np.allclose(first.model.transform(plain_graph()), z, atol=1e-6)
    assert not np.allclose(GraphCL.load(path).transform(plain_graph()), z, atol=1e-6)
    page.report(tmp_path / "page.html", layout="pca", without_graph=True)
    config = gather(page.folder, None, method="pca").config
    assert config == runs.read_config(path)


def replace_run(path, seed=1):
    """Trains a run anew in its place."""
    model = GraphCL(dim=8, epochs=2, seed=seed, device="cpu").fit(plain_graph())
    model.save(path, graph=plain_graph(), overwrite=True)


def test_a_run_that_is_trained_anew_in_its_place(folder, tmp_path, monkeypatch):
    import shutil

    path = tmp_path / "run"
    shutil.copytree(folder / "plain", path)
    run = Run(path, graph=plain_graph(), device="cpu")
    before = run.model
    assert run.model is before
    replace_run(path)
    assert np.allclose(run.model.transform(run.graph), run.embeddings, atol=1e-6)

    def replaced(folder):
        replace_run(path, seed=2)
        return lacks(folder)

    lacks = graphcl.run.lacks_embeddings
    monkeypatch.setattr("graphcl.run.lacks_embeddings", replaced)
    with pytest.raises(RunError, match="another training has taken its place meanwhile"):
        run.rows()
    monkeypatch.undo()
    metrics = runs.read_metrics
    monkeypatch.setattr(runs, "read_metrics", lambda one: replace_run(path) or metrics(one))
    with pytest.raises(RunError, match="another training has taken its place meanwhile"):
        GraphCL.load(path)
    monkeypatch.undo()
    old = GraphCL.load(path)

    def retrained(*arguments, **options):
        replace_run(path, seed=3)
        return grown(*arguments, **options)

    grown = updating.grow
    monkeypatch.setattr(updating, "grow", retrained)
    with pytest.raises(RunError, match="another training has taken its place meanwhile"):
        run.update(edges=[("n0", "n40")])
    assert run.version == 0  # no version of the old model is in the new run
    assert not np.allclose(run.embeddings, old.transform(plain_graph()), atol=1e-6)
