import numpy as np
import pytest

from graphcl.answers.similar import find_neighbours, neighbors
from graphcl.errors import GraphError, ParameterError
from graphcl.evaluation.nearest import build_index, unit_rows
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
    with pytest.raises(GraphError, match="no node has the id 'n60'; did you mean"):
        neighbors(z, ["n7", "n60"], graph=graph)
    with pytest.raises(ParameterError, match="k must be at least 1"):
        neighbors(z, 0, 0)
