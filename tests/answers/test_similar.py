import json

import numpy as np
import pytest

from graphcl.answers.similar import ABOUT, INDEX, find_neighbours, neighbors, stored_index
from graphcl.errors import GraphError, ParameterError
from graphcl.evaluation.unsupervised import build_index, unit_rows
from graphcl.files.user import KEY
from graphcl.graphs.graph import Graph


@pytest.fixture
def z():
    return np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)


def brute(z, u, k):
    def cosine(v):
        return float(z[u] @ z[v] / np.linalg.norm(z[u]) / np.linalg.norm(z[v]))

    best = sorted((v for v in range(len(z)) if v != u), key=lambda v: -cosine(v))[:k]
    return best, [cosine(v) for v in best]


def test_they_are_those_of_brute_force(z, monkeypatch):
    monkeypatch.setattr("graphcl.answers.similar._BLOCK", 7)
    found = neighbors(z, [3, 41, 3], 6)
    for place, node in enumerate((3, 41, 3)):
        best, cosines = brute(z, node, 6)
        assert found.nearest[place].tolist() == best
        np.testing.assert_allclose(found.cosines[place], cosines, rtol=1e-4)
    assert neighbors(z, 3).nearest.shape == (1, 10)
    assert neighbors(z, [3], 1000).nearest.shape == (1, 59)


def test_an_index_finds_nearly_the_same(z):
    index = build_index(unit_rows(z), threads=1)
    found = find_neighbours(z, np.arange(60), np.array([3, 41]), 6, index)
    for place, node in enumerate((3, 41)):
        assert len(set(found.nearest[place].tolist()) & set(brute(z, node, 6)[0])) >= 5


def test_an_index_that_finds_too_few_is_not_the_last_word(z):
    class Poor:
        def search(self, row, k):
            class Found:
                keys, distances = np.array([5], np.uint64), np.array([0.5])

            return Found

    found = find_neighbours(z, np.arange(60), np.array([3]), 4, Poor())
    assert found.nearest[0].tolist() == brute(z, 3, 4)[0]


def test_ids_and_the_table(z):
    ids = [f"n{n}" for n in range(60)]
    graph = Graph.from_edge_index(np.zeros((2, 0), int), np.ones((60, 1)), node_ids=ids)
    found = neighbors(z, "n7", 2, graph=graph)
    table = found.columns()
    assert table["id"].tolist() == ["n7", "n7"]
    assert table["neighbor"].tolist() == [ids[v] for v in brute(z, 7, 2)[0]]
    assert neighbors(z, rows=7, k=2, graph=graph).columns()["id"].tolist() == ["n7", "n7"]
    numbered = graph.replace(node_ids=np.arange(60)[::-1])  # row 7 has the id 52
    for same in ({"nodes": 52}, {"rows": np.arange(60) == 7}, {"rows": slice(7, 8)}):
        assert neighbors(z, k=2, graph=numbered, **same).rows.tolist() == [7]
    assert len(neighbors(z, k=2)) == 60
    with pytest.raises(GraphError, match="neighbors: nodes are ids; give a mask"):
        neighbors(z, np.arange(60) == 7)
    with pytest.raises(GraphError, match="no node has the id 'n60'; did you mean"):
        neighbors(z, ["n7", "n60"], graph=graph)
    with pytest.raises(ParameterError, match="k must be at least 1"):
        neighbors(z, 0, 0)


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache


def test_it_is_built_once_and_again_when_embeddings_change(tmp_path):
    z = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    index, why = stored_index(tmp_path, z)
    assert why == "none was stored"
    first = index.search(z[3], 5).keys.tolist()
    assert first[0] == 3
    before = (tmp_path / INDEX).stat().st_mtime_ns
    again, why = stored_index(tmp_path, z)
    assert why == ""
    assert again.search(z[3], 5).keys.tolist() == first
    assert (tmp_path / INDEX).stat().st_mtime_ns == before
    z[3] = -z[3]
    changed, why = stored_index(tmp_path, z)
    assert why == "the embeddings have changed"
    assert changed.search(z[3], 5).keys.tolist() != first
    assert {path.name for path in tmp_path.iterdir()} == {INDEX, ABOUT}


def test_a_damaged_index_is_built_anew(tmp_path):
    z = np.eye(20, dtype=np.float32)
    stored_index(tmp_path, z)
    whole = (tmp_path / INDEX).read_bytes()
    for damage in (b"", whole[: len(whole) // 2], b"x" * 100):
        (tmp_path / INDEX).write_bytes(damage)
        index, why = stored_index(tmp_path, z)
        assert why.startswith("the stored one is damaged")
        assert len(index) == 20
    (tmp_path / ABOUT).write_text("{")
    assert stored_index(tmp_path, z)[1] == "none was stored"
    assert json.loads((tmp_path / ABOUT).read_text())["rows"] == 20


def test_a_run_that_cannot_be_written_is_served_from_memory(tmp_path):
    z = np.eye(5, dtype=np.float32)
    index, why = stored_index(tmp_path / "absent", z)
    assert "could not be stored" in why
    assert len(index) == 5


def test_an_index_that_another_user_sealed_is_not_read(tmp_path, home, monkeypatch):
    z = np.eye(20, dtype=np.float32)
    stored_index(tmp_path, z)
    assert (home / "graphcl" / KEY).stat().st_mode & 0o777 == 0o600
    assert stored_index(tmp_path, z)[1] == ""
    (home / "graphcl" / KEY).unlink()  # now somebody else's, as far as we can tell
    monkeypatch.setattr("graphcl.answers.similar.empty_index", lambda dim: _Untouchable())
    assert "another user built it" in stored_index(tmp_path, z)[1]


class _Untouchable:
    def load(self, path):
        raise AssertionError(f"{path} was read")


def test_without_a_place_for_the_key_every_index_is_built(tmp_path, monkeypatch):
    z = np.eye(20, dtype=np.float32)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    stored_index(tmp_path, z)
    assert stored_index(tmp_path, z)[1] != ""
