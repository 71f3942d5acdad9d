import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data

from graphcl.errors import GraphError
from graphcl.graphs.graph import Graph

X = np.eye(3)


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


def test_pyg_with_several_splits_keeps_them():
    masks = torch.rand(3, 10, generator=torch.Generator().manual_seed(0)) < 0.5
    data = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0], [1]]), train_mask=masks)
    graph = Graph.from_pyg(data)
    assert graph.splits.shape == (10, 3, 3)
    assert np.array_equal(graph.splits[:, 0], masks.T)
    assert not graph.splits[:, 1:].any()
    data.train_mask = masks[:2]
    with pytest.raises(GraphError, match=r"train_mask: expected one dimension; got shape \(2, 10"):
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
    with pytest.raises(GraphError, match="from_networkx: zero nodes"):
        Graph.from_networkx(networkx.Graph(), features="structural")
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


def people():
    source = networkx.path_graph(["ada", "bob", "eve"])
    about = {"age": [30, 40, 50], "job": ["cook", "clerk", "cook"], "at": [[0, 1], [1, 0], [1, 1]]}
    for name, values in about.items():
        networkx.set_node_attributes(source, dict(zip(source, values, strict=True)), name)
    return source


@pytest.mark.parametrize("kind", [{}, {"relation": "relation"}])
def test_networkx_attributes_can_be_named_as_features(kind):
    graph = Graph.from_networkx(people(), features=["age", "at"], labels="job", **kind)
    nodes = graph.nodes["node"]
    assert nodes.x.tolist() == [[30, 0, 1], [40, 1, 0], [50, 1, 1]]
    assert (nodes.y.tolist(), nodes.class_names) == ([1, 0, 1], ("clerk", "cook"))
    with pytest.raises(GraphError, match=r"no node has the attribute 'height'.*\['age', 'at'\]"):
        Graph.from_networkx(people(), features=["age", "height"], **kind)
    with pytest.raises(GraphError, match=r"node 'ada'.*: 'job' is 'cook', not a number"):
        Graph.from_networkx(people(), features=["age", "job"], **kind)


def test_networkx_without_features_says_what_there_is():
    with pytest.raises(GraphError) as error:
        Graph.from_networkx(people())
    told = str(error.value)
    assert "features=['age', 'at']" in told
    assert "features='structural'" in told
    graph = Graph.from_networkx(people(), features="structural")
    assert np.allclose(graph.x[:, 0], np.log([2, 3, 2]))


def test_scipy_adjacency():
    adjacency = scipy.sparse.csr_matrix(np.array([[0, 2, 0], [0, 5, 0], [0, 0, 0]]))
    graph = Graph.from_scipy(adjacency, X, [0, 1, 2])
    assert graph.edge_index().tolist() == [[0, 1], [1, 0]]
    assert graph.self_loops_removed == 1
    with pytest.raises(GraphError, match="must be square"):
        Graph.from_scipy(scipy.sparse.csr_matrix((2, 3)), X)
    with pytest.raises(GraphError, match="x: 2 rows for 3 nodes"):
        Graph.from_scipy(adjacency, X[:2])
    with pytest.raises(GraphError, match=r"the graph has no features: x is .* or 'structural'"):
        Graph.from_scipy(adjacency, None)
    assert np.allclose(Graph.from_scipy(adjacency, "structural").x[:, 0], np.log([2, 2, 1]))


def test_from_pyg_without_features_says_what_there_is():
    data = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), feat=torch.ones(3, 2), num_nodes=3)
    with pytest.raises(GraphError) as error:
        Graph.from_pyg(data)
    assert "data.x is None (it has data.feat); set data.x" in str(error.value)
    assert "Graph.from_pyg(data, 'structural')" in str(error.value)
    del data.feat
    graph = Graph.from_pyg(data, "structural")
    assert np.allclose(graph.x[:, 0], np.log([2, 3, 2]))
    assert Graph.from_pyg(data, np.eye(3)).num_features == 3


def test_from_pyg_says_what_it_leaves_out():
    edges = torch.tensor([[0, 1], [1, 2]])
    data = Data(x=torch.eye(3), edge_index=edges, edge_attr=torch.ones(2, 4), pos=torch.ones(3, 2))
    with pytest.warns(UserWarning, match="from_pyg: left out edge_attr, pos: a graph has no place"):
        graph = Graph.from_pyg(data)
    assert graph.num_edges == 2
    plain = Data(x=torch.eye(3), edge_index=edges, edge_weight=torch.ones(2), num_nodes=3)
    Graph.from_pyg(plain)  # warnings are errors here
