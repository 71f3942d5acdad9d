import numpy as np
import pytest

from graphcl.errors import GraphError
from graphcl.graphs.npz import read_graph

X = np.zeros((5, 4), np.float32)
X[:2, :2] = np.eye(2)
X[2:4, 2:] = np.eye(2)
EDGES = np.array([[0, 1, 2, 2, 0, 4], [2, 2, 0, 1, 4, 3]])


def save(path, **arrays):
    np.savez(path / "g.npz", **{"edge_index": EDGES, "x": X} | arrays)
    return path / "g.npz"


def test_types_columns_reverses_and_further_relations(tmp_path):
    types, kinds = np.array([0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 2, 3])
    y, split = np.array([0, 1, -1, -1, -1]), np.eye(5, 2, dtype=bool)
    more = np.array([[0], [1]])
    path = save(
        tmp_path, node_type=types, edge_type=kinds, y=y, train_mask=split, edge_index_near=more
    )
    graph = read_graph(path)
    assert graph.name == "g"
    assert [one.num_features for one in graph.nodes.values()] == [2, 2, 0]
    assert np.array_equal(graph.nodes["1"].x, np.eye(2))
    # Relation 1 is relation 0 read backwards.
    assert list(graph.relations) == [
        ("0", "0", "1"),
        ("0", "2", "2"),
        ("2", "3", "1"),
        ("0", "near", "0"),
    ]
    assert graph.relation("3").edge_index().tolist() == [[0], [1]]
    assert graph.nodes["0"].y.tolist() == [0, 1]
    assert graph.nodes["0"].splits.shape == (2, 3, 2)
    assert graph.nodes["1"].y is None


def test_names_as_texts_and_one_name_between_several_types(tmp_path):
    types = np.array(["author", "author", "paper", "paper", "topic"])
    path = save(tmp_path, node_type=types, edge_features=np.arange(6.0)[:, None])
    graph = read_graph(path)
    assert list(graph.nodes) == ["author", "paper", "topic"]
    assert graph.relation("author:edge:paper").edge_features[:, 0].tolist() == [0, 1]
    assert graph.relation("topic:edge:paper").edge_features[:, 0].tolist() == [5]


def test_shared_columns_stay_shared(tmp_path):
    x = X.copy()
    x[2, 0] = 1
    graph = read_graph(save(tmp_path, x=x, node_type=np.array([0, 0, 1, 1, 1])))
    assert [one.num_features for one in graph.nodes.values()] == [4, 4]


def test_what_is_wrong_is_said(tmp_path):
    assert read_graph(save(tmp_path)).is_plain
    with pytest.raises(GraphError, match="node_type: expected a number or a text for each of 5"):
        read_graph(save(tmp_path, node_type=np.zeros(4, int)))
    far = np.array([[0], [9]])
    with pytest.raises(
        GraphError, match="relation 'far': edge 0 names node 9, but the nodes are 0"
    ):
        read_graph(save(tmp_path, edge_index_far=far))
