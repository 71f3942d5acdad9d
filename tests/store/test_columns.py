import numpy as np
import pytest
import scipy.sparse

from graphcl import Graph
from graphcl.errors import GraphError
from graphcl.store.columns import Names, ScaledFeatures


@pytest.mark.parametrize(("features", "error"), [("float16", 1e-3), ("int8", 1 / 250)])
def test_narrow_features_are_close_to_the_originals(graph, tmp_path, features, error):
    graph.save(tmp_path / "g", features=features)
    again = Graph.open(tmp_path / "g")
    largest = np.abs(graph.x).max(axis=0)
    assert (np.abs(np.asarray(again.x, dtype=np.float32) - graph.x) <= error * largest).all()
    again.save(tmp_path / "h", features="float32")  # a graph from a store can be saved again
    np.testing.assert_array_equal(
        Graph.open(tmp_path / "h").x, np.asarray(again.x, dtype=np.float32)
    )


def test_scaled_features_index_like_an_array(graph, tmp_path):
    graph.save(tmp_path / "g", features="int8")
    x = Graph.open(tmp_path / "g").x
    assert isinstance(x, ScaledFeatures)
    whole = np.asarray(x)
    assert (x.shape, x.ndim, len(x), x.size) == (whole.shape, 2, len(whole), whole.size)
    for rows in (3, slice(2, 9), np.array([5, 1]), whole[:, 0] > 0):
        np.testing.assert_array_equal(x[rows], whole[rows])


def test_sparse_features_and_names_survive(tmp_path):
    x = scipy.sparse.random_array((30, 9), density=0.2, rng=0, dtype=np.float32).tocsr()
    names = [f"näme {number}" for number in range(30)]
    graph = Graph.from_edge_index([[0, 1], [2, 3]], x, node_ids=names)
    graph.save(tmp_path / "g")
    again = Graph.open(tmp_path / "g", verify=True)
    assert (again.x != graph.x).nnz == 0
    assert isinstance(again.node_ids, Names)
    assert again.node_ids.tolist() == list(again.node_ids) == names
    assert (again.node_ids[3], again.node_ids[-1]) == (names[3], names[-1])
    assert again.node_ids[np.array([4, 0])].tolist() == [names[4], names[0]]
    assert np.asarray(again.node_ids).tolist() == names
    again.save(tmp_path / "h")
    assert Graph.open(tmp_path / "h").node_ids.tolist() == names


def test_whole_numbers_are_names_too(tmp_path):
    graph = Graph.from_edge_index([[0], [1]], np.eye(3), node_ids=[10, 2**40, 7])
    graph.save(tmp_path / "g")
    assert Graph.open(tmp_path / "g").node_ids.tolist() == [10, 2**40, 7]


def test_names_of_other_kinds_are_refused(tmp_path):
    graph = Graph.from_edge_index([[0], [1]], np.eye(2), node_ids=[(0, 1), (1, 1)])
    with pytest.raises(GraphError, match=r"strings; got \(0, 1\)"):
        graph.save(tmp_path / "g")
    assert list(tmp_path.iterdir()) == []
