"""A service turns to another version of its run, and drops nothing meanwhile."""

import gc
import shutil
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import graphcl
from graphcl.evaluation.unsupervised import unit_rows
from graphcl.graphs.graph import Graph
from graphcl.runs.versions import current_run, own_graph
from graphcl.serving import run as served_run
from graphcl.serving.app import build_app
from graphcl.serving.current import Current, mark_of
from graphcl.serving.requests import Bounds
from graphcl.serving.run import ServedRun
from tests.serving.conftest import Client


@pytest.fixture
def place(a_run, tmp_path):
    """A copy of the run, what loads its version in use, and its graph."""
    path = Path(shutil.copytree(a_run[0], tmp_path / "run"))

    def load(before):
        folder = current_run(path)
        own = own_graph(folder)
        return ServedRun(folder, Graph.open(own) if own else a_run[1], before=before)

    return path, load, a_run[1]


def update(path, graph, **changes):
    return graphcl.Run(path, graph=graph, device="cpu").update(**changes)


def test_it_turns_to_an_update_and_back(place):
    path, load, graph = place
    current = Current(load, lambda: mark_of(path))
    client = Client(build_app(current, bounds=Bounds(per_second=0)))
    assert client.get("/ready").status_code == 503  # labels are not learned yet
    current.served.learn()
    client.post("/v1/predict", {"ids": ["node 1"]})
    assert client.get("/ready").json()["version"] == 0
    current.turn()
    assert client.get("/ready").json()["version"] == 0
    done = update(path, graph, remove_nodes=["node 7"])
    assert client.get("/ready").json()["version"] == 0  # it has not looked yet
    current.turn()
    about = client.get("/ready").json()
    assert (about["ready"], about["version"], about["nodes"]) == (True, 1, 59)
    assert client.post("/v1/embed", {"ids": ["node 7"]}).status_code == 404
    found = client.post("/v1/embed", {"ids": ["node 8"]}).json()["nodes"][0]["embedding"]
    expected = np.load(done.path / "embeddings.npy")[7]
    np.testing.assert_array_equal(np.array(found, np.float32), expected)
    graphcl.Run(path).rollback()
    current.turn()
    assert client.get("/ready").json()["version"] == 0
    assert client.post("/v1/embed", {"ids": ["node 7"]}).status_code == 200


def test_a_request_keeps_its_version_and_none_is_dropped(place, monkeypatch):
    path, load, graph = place
    current = Current(load, lambda: mark_of(path))
    client = Client(build_app(current, bounds=Bounds(per_second=0)))
    begun, go_on, statuses = threading.Event(), threading.Event(), []
    near = ServedRun.near

    def slow(self, *arguments):
        if self.version == 0:
            begun.set()
            go_on.wait(10)
        return near(self, *arguments)

    monkeypatch.setattr(ServedRun, "near", slow)

    def ask():
        statuses.append(client.post("/v1/neighbors", {"ids": ["node 7"]}).status_code)

    asker = threading.Thread(target=ask)
    asker.start()
    assert begun.wait(10)
    update(path, graph, remove_nodes=["node 7"])
    current.turn()
    assert client.post("/v1/embed", {"ids": ["node 7"]}).status_code == 404
    go_on.set()
    asker.join()
    assert statuses == [200]


def test_the_old_version_is_let_go(place):
    path, load, graph = place
    current = Current(load, lambda: mark_of(path))
    client = Client(build_app(current, bounds=Bounds(per_second=0)))
    assert client.post("/v1/links", {"ids": ["node 1"]}).status_code in (200, 503)
    old = weakref.ref(current.served)
    update(path, graph, remove_nodes=["node 7"])
    current.turn()
    assert current.served._links_learner.done.done()  # as the old one had learned it
    client.get("/ready")
    gc.collect()
    assert old() is None


def test_a_version_that_cannot_be_loaded_changes_nothing(place, capsys, monkeypatch):
    path, load, graph = place
    current = Current(load, lambda: mark_of(path))
    done = update(path, graph, remove_nodes=["node 7"])
    (done.path / "model.safetensors").rename(done.path / "gone")
    for _ in range(3):
        current.turn()
    assert current.served.version == 0
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("serve: stays at version 0: ")
    (done.path / "gone").rename(done.path / "model.safetensors")
    monkeypatch.setattr("graphcl.serving.current.AGAIN", 0.0)
    current._again = 0.0
    current.turn()
    assert current.served.version == 1


def test_versions_that_come_more_quickly_than_they_are_loaded(place):
    """Each one that was loaded answers, and is whole; the service does not wait for a pause."""
    path, load, graph = place
    made = [update(path, graph, remove_nodes=["node 7"]).version]

    def late(before):
        found = load(before)
        if before is not None and len(made) < 3:
            more = graphcl.Run(path, device="cpu").update(remove_nodes=[f"node {len(made) + 20}"])
            made.append(more.version)
        return found

    graphcl.Run(path).rollback(0)
    current = Current(late, lambda: mark_of(path))
    graphcl.Run(path).rollback(1)
    answered = []
    for _ in range(4):
        current.turn()
        answered.append((current.served.version, len(current.served.z)))
    assert answered == [(1, 59), (2, 58), (3, 57), (3, 57)]


def test_it_looks_by_itself(place, monkeypatch):
    path, load, graph = place
    monkeypatch.setattr("graphcl.serving.current.LOOK", 0.02)
    current, looks = Current(load, lambda: mark_of(path)), []
    current.watch(lambda: looks.append(current.served.version))
    update(path, graph, remove_nodes=["node 7"])
    ends = time.monotonic() + 60
    while (not looks or looks[-1] != 1) and time.monotonic() < ends:
        time.sleep(0.02)
    assert looks[0] == 0
    assert looks[-1] == 1
    current.close()
    time.sleep(0.1)
    seen = len(looks)
    time.sleep(0.2)
    assert len(looks) == seen  # it looks no more


def test_the_index_follows_an_update(place, monkeypatch):
    """Rows that differ are put in anew, and found; an index now and then misses a node."""
    path, load, graph = place
    monkeypatch.setattr(served_run, "EXACT_ROWS", 10)
    monkeypatch.setattr(served_run, "MOST_ANEW", 1)
    before = load(None)
    made = []
    monkeypatch.setattr(served_run, "stored_index", lambda *_: made.append(1))
    update(path, graph, edges={"source": ["node 3"], "target": ["node 40"]})
    after = load(before)
    assert not np.array_equal(before.z, after.z)
    assert_near(after)
    # Of rows that have hardly turned, none is put in anew; of others, no old place is left.
    turned = 1 - (unit_rows(before.z[:]) * unit_rows(after.z[:])).sum(axis=1)
    held = unit_rows(np.stack(after._index.get(np.arange(60))))
    stale = 1 - (held * unit_rows(after.z[:])).sum(axis=1)
    assert (turned > served_run.STAYS).any()
    assert stale.max() <= served_run.STAYS + 1e-6
    # More nodes, and the way back to fewer.
    update(path, None, nodes=new_node(graph), edges={"source": ["new"], "target": ["node 3"]})
    grown = load(after)
    assert len(grown._index) == 61
    assert_near(grown)
    graphcl.Run(path).rollback()
    back = load(grown)
    assert len(back._index) == 60
    assert_near(back)
    assert made == []


def new_node(graph):
    columns = {f"x{place}": [0.5] for place in range(graph.num_features)}
    return {"id": ["new"], **columns}


def assert_near(served):
    """Nodes find those that are most similar; an index now and then misses one."""
    unit, missed = unit_rows(np.asarray(served.z)), 0
    rows = np.arange(len(unit))
    for row, (near, cosines) in zip(
        rows, served.near(served.z[rows], 3, list(rows[:, None])), strict=True
    ):
        np.testing.assert_allclose(cosines, unit[near] @ unit[row], atol=1e-6)
        best = np.sort(np.delete(unit @ unit[row], row))[::-1][:3]
        missed += int((cosines < best - 2**-8).sum())
    assert missed <= 9  # of 180; with the old rows, most are wrong
