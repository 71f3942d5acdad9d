"""Updates of runs: exact, versioned, safe against every death, and aligned after more training."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import graphcl
from graphcl.errors import GraphError, ParameterError, RunError
from graphcl.estimator.model import GraphCL
from graphcl.graphs.collection import fingerprint
from graphcl.graphs.graph import Graph
from graphcl.runs import versions
from graphcl.runs.files import read_embeddings
from graphcl.runs.nodes import read_nodes
from tests.conftest import random_graph
from tests.updating.conftest import NODES, rows

CLOSE = 1e-6
ENCODERS = {
    "mean": {"recipe": "cora", "encoder": "mean", "layers": 2},
    "residual": {"recipe": "cora", "encoder": "residual", "layers": 3},
    "default": {"recipe": "default"},
    "gcn": {"recipe": "cora", "encoder": "gcn", "layers": 2},
}


def saved(path, graph, **recipe):
    model = GraphCL(**recipe, dim=12, epochs=1, device="cpu").fit(graph)
    model.save(path, graph=graph)
    return model


def whole_embedding(run):
    """The graph of a run's current version embedded whole, by its model."""
    folder = versions.current_run(Path(run))
    graph = Graph.open(folder / versions.GRAPH)
    return GraphCL.load(run, device="cpu").transform(graph)


def assert_exact(run):
    z = read_embeddings(versions.current_run(Path(run)))
    expected = whole_embedding(run)
    assert z.shape == expected.shape
    assert np.abs(z - expected).max() <= CLOSE * max(1, np.abs(expected).max())


def features(names, width=12, seed=0):
    random = np.random.default_rng(seed)
    columns = {f"f{k}": random.normal(size=len(names)) for k in range(width)}
    return pyarrow.table({"id": names, **columns})


def pairs(listed):
    return pyarrow.table({"source": [a for a, _ in listed], "target": [b for _, b in listed]})


@pytest.fixture(scope="module", params=ENCODERS)
def each_model(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "run"
    graph = random_graph()
    saved(place, graph, **ENCODERS[request.param])
    return place, graph


@pytest.fixture
def graph(place):
    """The graph of the tables in the working folder."""
    return graphcl.read_tables("edges.csv", "nodes.csv", label="topic")


@st.composite
def deltas(draw):
    old, new = st.integers(0, 59), st.integers(60, 63)
    known = sorted(draw(st.sets(old, max_size=3)))
    fresh = sorted(draw(st.sets(new, max_size=4)))
    gone = sorted(draw(st.sets(old.filter(lambda one: one not in known), max_size=4)))
    ends = st.sampled_from([one for one in [*range(60), *fresh] if one not in gone])
    added = draw(st.lists(st.tuples(ends, ends), max_size=6))
    return known, fresh, gone, added, draw(st.integers(0, 4))


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(delta=deltas())
def test_it_equals_the_grown_graph_embedded_whole(each_model, tmp_path_factory, delta):
    run, graph = each_model
    known, fresh, gone, added, cuts = delta
    copy = tmp_path_factory.mktemp("copy") / "run"
    shutil.copytree(run, copy)
    random = np.random.default_rng(cuts)
    listed = graph.edge_index().T
    cut = listed[random.choice(len(listed), cuts, replace=False)].tolist()
    done = graphcl.Run(copy, graph=graph, device="cpu").update(
        nodes=features([*known, *fresh]) if known or fresh else None,
        edges=pairs(added) if added else None,
        remove_nodes=gone if gone else None,
        remove_edges=pairs(cut) if cut else None,
        retrain=not (known or fresh or added or gone or cut),
    )
    assert done.about["nodes"] == 60 + len(fresh) - len(gone)
    assert_exact(copy)
    # What was not embedded again has the bits that it had.
    before, after = np.load(copy / "embeddings.npy"), np.load(done.path / "embeddings.npy")
    kept = np.setdiff1d(np.arange(60), gone)
    same = (before[kept] == after[: len(kept)]).all(axis=1)
    assert int((~same).sum()) + len(fresh) <= done.about["embedded"]
    shutil.rmtree(copy)


def test_only_what_changed_is_embedded(tmp_path):
    ring = np.stack([np.arange(100), (np.arange(100) + 1) % 100])
    x = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    graph = Graph.from_edge_index(ring, x)
    saved(tmp_path / "run", graph, recipe="cora", encoder="mean", layers=2)
    graph.save(tmp_path / "store")
    done = graphcl.Run(tmp_path / "run", graph=Graph.open(tmp_path / "store")).update(
        nodes=features([50], 4)
    )
    assert done.about["embedded"] == 5
    assert done.drift["embedded"] == 5
    assert_exact(tmp_path / "run")
    # The graph lies in the version now, and need not be passed again.
    done = graphcl.Run(tmp_path / "run").update(remove_edges=pairs([(10, 11)]))
    assert done.about["embedded"] == 4
    assert repr(done).splitlines()[1].startswith("embedded again: 4 of 100 nodes")
    assert done.to_pandas()[["nodes", "embedded", "edges_after"]].values.tolist() == [[100, 4, 99]]
    assert_exact(tmp_path / "run")


def test_files_that_did_not_change_are_shared(place, graph):
    first = graphcl.Run("run", graph=graph).update(edges=pairs([("n0", "n40")])).path
    second = graphcl.Run("run").update(edges=pairs([("n1", "n41")])).path
    third = graphcl.Run("run").update(nodes=pyarrow.table({"id": ["n3"], "age": [55]})).path
    model = [one / "model.safetensors" for one in (place / "run", first, second, third)]
    assert len({file.stat().st_ino for file in model}) == 1
    tables = [one / "graph/part-00000/nodes-0/x.npy" for one in (first, second, third)]
    assert tables[0].samefile(tables[1])
    assert not tables[1].samefile(tables[2])
    links = [one / "graph/part-00000/relation-0/indices.npy" for one in (first, second, third)]
    assert not links[0].samefile(links[1])
    assert links[1].samefile(links[2])
    for one in (first, second, third):
        Graph.open(one / "graph", verify=True)
    assert_exact("run")


def test_versions_are_kept_and_the_way_back(place, graph):
    z = {0: np.load("run/embeddings.npy")}
    graphcl.Run("run", graph=graph).update(edges=pairs([("n0", "n40")]))
    for end in range(1, 4):
        done = graphcl.Run("run").update(edges=pairs([("n0", f"n{40 + end}")]), keep=3)
        z[done.version] = np.load(done.path / "embeddings.npy")
    assert done.removed == (1,)
    assert versions.numbers(Path("run")) == [0, 2, 3, 4]
    assert graphcl.Run("run").rollback() == 3
    assert graphcl.Run("run").rollback(0) == 0
    model = GraphCL.load("run", device="cpu")
    np.testing.assert_allclose(model.transform(graph), z[0], atol=1e-6)
    with pytest.raises(RunError, match="no earlier one"):
        graphcl.Run("run").rollback()
    assert graphcl.Run("run").rollback(4) == 4
    assert np.array_equal(read_embeddings(versions.current_run(Path("run"))), z[4])
    with pytest.raises(RunError, match="has no version 1; its versions: 0, 2, 3, 4"):
        graphcl.Run("run").rollback(1)
    # An update begins with the version in use.
    graphcl.Run("run").rollback(0)
    done = graphcl.Run("run", graph=graph).update(edges=pairs([("n5", "n50")]))
    assert (done.version, done.about["from"], done.about["edges"]) == (5, 0, 161)
    assert graphcl.Run("run").rollback() == 0  # not 4, which was left
    (Path("run") / "versions/current").write_text("x")
    assert graphcl.Run("run").rollback(5) == 5


def test_embeddings_of_the_version_in_use(place, graph):
    before = graphcl.Run("run").embeddings
    assert np.array_equal(before, np.load("run/embeddings.npy"))
    done = graphcl.Run("run", graph=graph).update(remove_nodes=["n3"])
    assert graphcl.Run("run").embeddings.shape == (NODES - 1, 12)
    assert np.array_equal(graphcl.Run(done.path).embeddings, graphcl.Run("run").embeddings)
    graphcl.Run("run").rollback()
    assert np.array_equal(graphcl.Run("run").embeddings, before)
    with pytest.raises(RunError, match="no such run"):
        graphcl.Run("nothing")


def test_more_training_stays_in_the_old_space(place, graph):
    from sklearn.linear_model import LogisticRegression

    before = np.load("run/embeddings.npy")
    labels = np.array([row[3] for row in rows()])
    downstream = LogisticRegression(C=10).fit(before, labels)
    done = graphcl.Run("run", graph=graph, device="cpu").update(
        nodes=pyarrow.table({"id": ["z"], "age": [30], "city": ["a"]}),
        edges=pairs([("z", "n3")]),
        retrain=True,
        epochs=6,
    )
    assert done.about["retrained"]["epochs"] == 6
    assert done.about["retrained"]["aligned"]
    assert done.about["embedded"] == NODES + 1
    after = np.load(done.path / "embeddings.npy")
    assert_exact("run")
    model = GraphCL.load("run", device="cpu")
    raw = (
        after - model._fitted.alignment.shift.numpy()
    ) @ model._fitted.alignment.rotation.numpy().T
    away = [np.linalg.norm(one[:NODES] - before) for one in (after, raw)]
    assert away[0] < away[1]
    assert downstream.score(after[:NODES], labels) >= downstream.score(before, labels) - 0.05
    # New nodes are in the same space, by every way.
    grown = Graph.open(done.path / "graph")
    near = grown.indices[grown.indptr[NODES] : grown.indptr[NODES + 1]]
    left = graphcl.Run("run", device="cpu").update(remove_nodes=["z"])
    again = GraphCL.load("run", device="cpu").embed_new(
        grown.x[NODES], rows=near, graph=Graph.open(left.path / "graph")
    )
    np.testing.assert_allclose(again, after[NODES], atol=1e-5)
    # More history, in one line.
    lines = [json.loads(line) for line in (done.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 10))
    result = json.loads((done.path / "result.json").read_text())
    assert (result["epochs"], result["probe"]) == (9, None)


def test_labels_reach_no_training(place, tmp_path, graph):
    weights = []
    for kind in ("left", "right"):
        copy = tmp_path / kind
        shutil.copytree("run", copy)
        done = graphcl.Run(copy, graph=graph, device="cpu").update(
            nodes=pyarrow.table({"id": ["n1", "n2"], "topic": [kind, kind]}), retrain=True, epochs=2
        )
        weights.append((done.path / "model.safetensors").read_bytes())
        nodes = read_nodes(done.path)
        assert [nodes.class_name(nodes.y[row]) for row in (1, 2)] == [kind, kind]
    assert weights[0] == weights[1]


def test_a_run_without_embeddings_is_embedded_whole(tmp_path):
    graph = random_graph()
    model = GraphCL(dim=8, epochs=1, device="cpu").fit(graph)
    model.save(tmp_path / "run")
    done = graphcl.Run(tmp_path / "run", graph=graph, device="cpu").update(remove_nodes=[3])
    assert done.about["embedded"] == 59
    assert done.drift is None
    assert_exact(tmp_path / "run")


def test_a_store_of_half_precision_stays_one(tmp_path):
    graph = random_graph()
    graph.save(tmp_path / "store", features="float16")
    mapped = Graph.open(tmp_path / "store")
    saved(tmp_path / "run", mapped, recipe="cora", encoder="mean", layers=2)
    done = graphcl.Run(tmp_path / "run", graph=mapped).update(
        nodes=features([1, 60, 61]), edges=pairs([(60, 1)])
    )
    assert Graph.open(done.path / "graph").x.dtype == np.float16
    assert_exact(tmp_path / "run")


def test_what_is_refused_leaves_all_as_it_was(place, graph):
    before = sorted(path.as_posix() for path in Path("run").rglob("*"))
    with pytest.raises(GraphError, match="first 'nobody'"):
        graphcl.Run("run", graph=graph).update(edges=pairs([("nobody", "n1")]))
    with pytest.raises(ParameterError, match="nothing to do"):
        graphcl.Run("run", graph=graph).update()
    with pytest.raises(RunError, match="not the graph that the run was trained on"):
        graphcl.Run("run", graph=random_graph()).update(remove_nodes=[3])
    left = [path.as_posix() for path in Path("run").rglob("*")]
    assert sorted(one for one in left if "versions" not in one) == before
    assert versions.current_number(Path("run")) == 0
    with pytest.raises(RunError, match="has no versions but the training"):
        graphcl.Run("run").rollback(0)


KILLED = """
import os, sys, threading, time
import graphcl
from graphcl.runs import versions
where = sys.argv[1]
if where == "before the pointer":
    versions.use_version = lambda *_: os.kill(os.getpid(), 9)
elif where == "while writing":
    import graphcl.updating.run as module
    module.write_result = lambda *_, **__: os.kill(os.getpid(), 9)
else:
    threading.Timer(float(where), lambda: os.kill(os.getpid(), 9)).start()
graph = graphcl.read_tables("edges.csv", "nodes.csv", label="topic")
import pyarrow
edges = pyarrow.table({"source": ["n0"], "target": ["n40"]})
graphcl.Run("run", graph=graph, device="cpu").update(edges=edges)
"""


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("where", ["before the pointer", "while writing", "0.1"])
def test_killed_half_way_the_old_version_serves(place, where, graph):
    z = np.load("run/embeddings.npy")
    ended = subprocess.run([sys.executable, "-c", KILLED, where], check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert versions.current_number(Path("run")) == 0
    model = GraphCL.load("run", device="cpu")
    np.testing.assert_allclose(model.transform(graph), z, atol=1e-6)
    done = graphcl.Run("run", graph=graph, device="cpu").update(edges=pairs([("n0", "n40")]))
    assert versions.current_number(Path("run")) == done.version
    assert_exact("run")
    hidden = [path.name for path in Path("run/versions").iterdir() if "partial" in path.name]
    assert hidden == []


def test_one_process_at_a_time(place, graph):
    with (
        versions.changing(Path("run")),
        pytest.raises(RunError, match="another process is changing"),
    ):
        graphcl.Run("run", graph=graph).update(remove_nodes=["n0"])


def test_a_reader_keeps_its_version_while_another_is_made(place, graph):
    from graphcl.serving.run import ServedRun

    served = ServedRun(Path("run"), graph)
    before = np.array(served.z)
    done = graphcl.Run("run", graph=graph).update(remove_nodes=["n7"])
    assert np.array_equal(served.z, before)
    again = ServedRun(done.path, Graph.open(done.path / "graph"))
    assert len(again.z) == NODES - 1
    assert again.name == "run"


def test_the_graph_of_the_training_is_not_that_of_a_version(place, graph):
    graphcl.Run("run", graph=graph).update(edges=pairs([("n0", "n40")]))
    with pytest.raises(RunError) as caught:
        graphcl.Run("run", graph=graph).update(edges=pairs([("n0", "n41")]))
    said = "run: is at version 1; it keeps its graph: leave graph out"
    assert str(caught.value) == said


def test_the_graph_of_another_version_is_refused_by_number(tmp_path):
    """The two differ in one number that no fingerprint looks at; the update before was undone."""
    random = np.random.default_rng(0)
    edges = np.stack([np.arange(600), (np.arange(600) + 1) % 600])
    x = random.normal(size=(600, 12)).astype(np.float32)
    graph = Graph.from_edge_index(edges, x)
    run = tmp_path / "run"
    saved(run, graph, **ENCODERS["mean"])
    first = graphcl.Run(run, graph=graph).update(edges=pairs([(0, 300)]))
    stale = Graph.open(first.path / "graph")
    changed = features([2])
    second = graphcl.Run(run).update(nodes=changed)
    assert fingerprint((stale,)) == fingerprint((Graph.open(second.path / "graph"),))
    with pytest.raises(RunError) as caught:
        graphcl.Run(run, graph=stale).update(edges=pairs([(1, 301)]))
    said = f"{run}: is at version 2, and the graph is that of version 1; it keeps its graph"
    assert str(caught.value).startswith(said)
    current = graphcl.Run(run, graph=Graph.open(second.path / "graph")).update(remove_nodes=[500])
    expected = [changed[f"f{k}"][0].as_py() for k in range(12)]
    np.testing.assert_allclose(Graph.open(current.path / "graph").x[2], expected, rtol=1e-6)
    graphcl.Run(run).rollback(0)
    with pytest.raises(RunError, match="is at version 0, and the graph is that of version 1"):
        graphcl.Run(run, graph=stale).update(edges=pairs([(1, 301)]))


@pytest.mark.usefixtures("forked")
def test_two_processes_at_once_lose_nothing(place):
    """Each adds a node of its own, and tries again while the other is at it."""
    script = (
        "import sys, time, graphcl, pyarrow\n"
        "from graphcl.errors import RunError\n"
        "from graphcl.runs import versions\n"
        "name, last = sys.argv[1], time.monotonic() + 90\n"
        "def tables():\n"
        "    return graphcl.read_tables('edges.csv', 'nodes.csv', label='topic')\n"
        "node = pyarrow.table({'id': [name], 'age': [30.0], 'city': ['a'], 'topic': ['left']})\n"
        "edge = pyarrow.table({'source': [name], 'target': ['n1']})\n"
        "while time.monotonic() < last:\n"
        "    graph = None if versions.current_number(versions.Path('run')) else tables()\n"
        "    try:\n"
        "        run = graphcl.Run('run', graph=graph, device='cpu')\n"
        "        done = run.update(nodes=node, edges=edge)\n"
        "        sys.exit(0)\n"
        "    except RunError as error:\n"
        "        print(error)\n"
        "        time.sleep(0.05)\n"
        "sys.exit(3)\n"
    )
    words = [sys.executable, "-c", script]
    both = [
        subprocess.Popen([*words, name], stdout=subprocess.PIPE, text=True)
        for name in ("first", "second")
    ]
    said = [one.communicate(timeout=120)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    ids = set(Graph.open(versions.current_run(Path("run")) / "graph").node_ids)
    assert {"first", "second"} < ids
    assert len(ids) == NODES + 2
    assert versions.numbers(Path("run")) == [0, 1, 2]
    assert_exact("run")


def test_the_way_back_waits_for_no_other_process(place, graph):
    graphcl.Run("run", graph=graph).update(edges=pairs([("n0", "n40")]))
    with (
        versions.changing(Path("run")),
        pytest.raises(RunError, match="another process is changing"),
    ):
        graphcl.Run("run").rollback()
    assert graphcl.Run("run").rollback() == 0


def test_a_run_of_symbolic_links_is_updated(place, graph):
    """A hub's cache has each file as a relative link to another folder."""
    blobs, folder = Path("hub/blobs"), Path("hub/snapshots/1a2b")
    blobs.mkdir(parents=True)
    folder.mkdir(parents=True)
    for number, file in enumerate(sorted(Path("run").rglob("*"))):
        if file.is_file():
            shutil.copyfile(file, blobs / str(number))
            link = folder / file.relative_to("run")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path(*[".."] * (len(link.parts) - 2), "blobs", str(number)))
    graphcl.Run(folder, graph=graph).update(edges=pairs([("n0", "n40")]))
    done = graphcl.Run(folder).update(edges=pairs([("n0", "n41")]))
    assert not any(file.is_symlink() for file in done.path.rglob("*"))
    assert_exact(folder)
