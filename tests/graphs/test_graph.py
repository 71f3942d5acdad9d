import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from graphcl.errors import GraphError
from graphcl.graphs.graph import Graph
from tests.conftest import dense_adjacency

X = np.eye(3)


@st.composite
def edge_lists(draw):
    num_nodes = draw(st.integers(1, 12))
    node = st.integers(0, num_nodes - 1)
    return num_nodes, draw(st.lists(st.tuples(node, node), max_size=40))


@given(edge_lists())
def test_structure_is_the_set_of_pairs_given(case):
    num_nodes, edges = case
    graph = Graph.from_edge_index(
        np.array(edges, dtype=int).reshape(-1, 2).T, np.ones((num_nodes, 1))
    )
    pairs = {frozenset(edge) for edge in edges if edge[0] != edge[1]}
    found = graph.edge_index()
    assert {frozenset(edge) for edge in found.T.tolist()} == pairs
    assert graph.num_edges == len(pairs)
    assert found.shape[1] == 2 * len(pairs)
    assert graph.self_loops_removed == sum(u == v for u, v in edges)
    for node in range(num_nodes):
        row = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
        assert (np.diff(row) > 0).all()
    assert np.array_equal(dense_adjacency(graph), dense_adjacency(graph).T)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": [[1, 2], [3, np.nan], [5, 6]]}, "x: nan at node 1, feature 1"),
        ({"x": [[1, 2], [3, 4], [-np.inf, 6]]}, "x: -inf at node 2, feature 0"),
        ({"x": np.array([[0.0], [1e39], [0.0]])}, "x: 1e+39 at node 1, feature 0"),
        ({"x": scipy.sparse.csr_array([[0, 0], [0, np.inf], [1, 0]])}, "inf at node 1, feature 1"),
        ({"x": np.ones(3)}, "a single feature is a column: x.reshape(-1, 1)"),
        ({"x": np.ones((0, 4)), "edge_index": np.zeros((2, 0))}, "zero nodes"),
        ({"x": np.ones((3, 0))}, "zero features"),
        ({"x": [["a"], ["b"], ["c"]]}, "features must be numbers"),
        ({"x": [[1], [1, 2], [3]]}, "not a rectangular array"),
        ({"edge_index": [[0, 1], [1, 3]]}, "edge 1 names node 3, but the nodes are 0 to 2"),
        ({"edge_index": [[0, -1], [1, 2]]}, "edge 1 names node -1"),
        ({"edge_index": [[0, 1], [1, 2], [2, 0]]}, "got (3, 2); pass its transpose"),
        ({"edge_index": [[0.0, 1.0], [1.0, 2.0]]}, "node numbers must be integers"),
        ({"y": [0, 1]}, "y: 2 labels for 3 nodes"),
        ({"y": [0, 1, -2]}, "y: -2 at node 2"),
        ({"y": [0, 0.5, 1]}, "y: 0.5 at node 1 is not a class number"),
        ({"y": [[0, 1], [1, 2], [0, 0]]}, "y: 2 at node 1; labels are 0 or 1"),
        ({"y": ["a", "b", "c"]}, "labels must be class numbers"),
        ({"train_mask": [True, False]}, "train_mask: 2 entries for 3 nodes"),
        ({"val_mask": [7]}, "val_mask: node 7 is not among 0 to 2"),
        ({"train_mask": [0, 1], "test_mask": [1, 2]}, "train_mask and test_mask share node 1"),
        ({"node_ids": ["a"]}, "node_ids: 1 names for 3 nodes"),
        ({"node_ids": ["b", "a", "b"]}, "node_ids: nodes 0 and 2 have the same id 'b'"),
        ({"node_ids": np.array([7, 5, 5])}, "node_ids: nodes 1 and 2 have the same id 5"),
        ({"node_ids": [("a", 1), 2, ("a", 1)]}, "nodes 0 and 2 have the same id ('a', 1)"),
    ],
)
def test_bad_input_is_refused_with_its_place(changes, message):
    with pytest.raises(GraphError) as caught:
        Graph.from_edge_index(**({"edge_index": [[0, 1], [1, 2]], "x": X} | changes))
    assert message in str(caught.value)


def test_it_is_immutable_and_leaves_its_input_alone():
    edges, x = np.array([[0, 1], [1, 2]]), X.astype(np.float32)
    graph = Graph.from_edge_index(edges, x, [0, 1, 2], train_mask=[True, False, False])
    for array in (graph.indptr, graph.indices, graph.x, graph.y, graph.train_mask):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError):
        graph.y = None
    x[0] = 9
    assert graph.x[0, 0] == 1
    assert x.flags.writeable


def test_sparse_features_stay_sparse_and_read_only():
    for sparse in (scipy.sparse.csr_array(X), scipy.sparse.coo_matrix(X), torch.eye(3).to_sparse()):
        graph = Graph.from_edge_index([[0], [1]], sparse)
        assert scipy.sparse.issparse(graph.x)
        assert np.array_equal(graph.x.toarray(), X)
        with pytest.raises(ValueError, match="read-only"):
            graph.x.data[0] = 2


@pytest.mark.parametrize(
    "x",
    [
        [[1], [2], [3]],
        np.array([[1], [2], [3]], dtype=np.uint8),
        torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64),
        torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.bfloat16, requires_grad=True),
    ],
)
def test_any_number_type_becomes_float32(x):
    graph = Graph.from_edge_index([[0], [1]], x)
    assert graph.x.dtype == np.float32
    assert graph.x[:, 0].tolist() == [1, 2, 3]


def test_masks_may_be_booleans_flags_or_node_numbers():
    for mask in ([False, True, True], [0, 1, 1], np.array([1, 2]), torch.tensor([2, 1])):
        graph = Graph.from_edge_index([[0], [1]], X, train_mask=mask)
        assert graph.train_mask.tolist() == [False, True, True]


def test_a_single_node_and_no_edges_make_a_graph():
    graph = Graph.from_edge_index([], [[1.0]])
    assert (graph.num_nodes, graph.num_edges) == (1, 0)


def test_pyg_there_and_back(graph):
    data = graph.to_pyg()
    assert isinstance(data, Data)
    assert data.is_undirected()
    again = Graph.from_pyg(data)
    for field in ("indptr", "indices", "x", "y", "train_mask", "val_mask", "test_mask"):
        assert np.array_equal(getattr(graph, field), getattr(again, field)), field


def test_pyg_with_sparse_features():
    graph = Graph.from_edge_index([[0], [1]], scipy.sparse.csr_array(X))
    assert torch.equal(graph.to_pyg().x, torch.eye(3))
    kept = graph.to_pyg(sparse=True)
    assert kept.x.layout == torch.sparse_csr
    assert scipy.sparse.issparse(Graph.from_pyg(kept).x)


def test_pyg_with_several_splits_is_refused():
    data = Data(
        x=torch.ones(3, 1),
        edge_index=torch.tensor([[0], [1]]),
        train_mask=torch.ones(3, 10, dtype=torch.bool),
    )
    with pytest.raises(GraphError, match="holds 10 splits"):
        Graph.from_pyg(data)


def test_networkx_names_features_and_labels():
    source = networkx.MultiDiGraph()
    source.add_node("ä b", x=[1.0, 0.0], y=1)
    source.add_node(7, x=[0.0, 1.0], y=0)
    source.add_node(("t", 1), x=[1.0, 1.0], y=1)
    source.add_edges_from([("ä b", 7), (7, "ä b"), ("ä b", 7), (7, 7)])
    graph = Graph.from_networkx(source)
    assert graph.node_ids.tolist() == ["ä b", 7, ("t", 1)]
    assert (graph.num_edges, graph.self_loops_removed) == (1, 1)
    assert graph.y.tolist() == [1, 0, 1]
    assert graph.x.tolist() == [[1, 0], [0, 1], [1, 1]]


def test_networkx_scalar_features_given_features_and_errors():
    path = networkx.path_graph(3)
    with pytest.raises(GraphError, match="no features"):
        Graph.from_networkx(path)
    assert Graph.from_networkx(path, X).num_features == 3
    with pytest.raises(GraphError, match="x: 2 rows for 3 nodes"):
        Graph.from_networkx(path, X[:2])
    networkx.set_node_attributes(path, {0: 1.0, 1: 2.0, 2: 3.0}, "x")
    assert Graph.from_networkx(path).x.tolist() == [[1], [2], [3]]
    del path.nodes[1]["x"]
    with pytest.raises(GraphError, match="node 1 has no attribute 'x'"):
        Graph.from_networkx(path)


def test_scipy_adjacency():
    adjacency = scipy.sparse.csr_matrix(np.array([[0, 2, 0], [0, 5, 0], [0, 0, 0]]))
    graph = Graph.from_scipy(adjacency, X, [0, 1, 2])
    assert graph.edge_index().tolist() == [[0, 1], [1, 0]]
    assert graph.self_loops_removed == 1
    with pytest.raises(GraphError, match="must be square"):
        Graph.from_scipy(scipy.sparse.csr_matrix((2, 3)), X)
    with pytest.raises(GraphError, match="x: 2 rows for 3 nodes"):
        Graph.from_scipy(adjacency, X[:2])
