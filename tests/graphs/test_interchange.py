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
    source = networkx.Graph()
    source.add_node("ä b", x=[1.0, 0.0], y=1)
    source.add_node("7", x=[0.0, 1.0], y=0)
    source.add_node("t", x=[1.0, 1.0], y=1)
    source.add_edges_from([("ä b", "7"), ("7", "7")])
    graph = Graph.from_networkx(source)
    assert graph.node_ids.tolist() == ["ä b", "7", "t"]
    assert (graph.num_edges, graph.self_loops_removed) == (1, 1)
    assert graph.y.tolist() == [1, 0, 1]
    assert graph.x.tolist() == [[1, 0], [0, 1], [1, 1]]


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([(1, "1"), ("1", 2)], "nodes 0 and 1 have the ids 1 and '1', which are the same id"),
        ([(1, "a")], "is an integer, and the id 'a' of node 1 is a text.*relabel_nodes"),
        ([((0, 0), (0, 1))], r"\(0, 0\) \(tuple\).*networkx.relabel_nodes\(graph, str\)"),
        ([(1.0, 2)], r"1.0 \(float\); ids are integers or texts"),
    ],
)
def test_networkx_nodes_are_integers_or_texts(edges, message):
    with pytest.raises(GraphError, match=f"from_networkx: .*{message}"):
        Graph.from_networkx(networkx.Graph(edges), features="structural")


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
    data = Data(x=torch.eye(3), edge_index=edges, time=torch.ones(2), pos=torch.ones(3, 2))
    told = "from_pyg: left out pos, time: .* nodes are kept in x, those of edges in edge_attr or"
    with pytest.warns(UserWarning, match=told):
        graph = Graph.from_pyg(data)
    assert graph.num_edges == 2
    plain = Data(x=torch.eye(3), edge_index=edges, edge_weight=torch.ones(2), num_nodes=3)
    Graph.from_pyg(plain)  # warnings are errors here


def one_way(num_nodes: int = 40, num_edges: int = 400) -> np.ndarray:
    """Different directed edges without loops, of which some have their reverse."""
    codes = np.random.default_rng(0).permutation(num_nodes**2)
    ends = np.stack([codes // num_nodes, codes % num_nodes])
    return ends[:, ends[0] != ends[1]][:, :num_edges]


def listed(edges: np.ndarray, *values: np.ndarray) -> list[tuple[float, ...]]:
    return sorted(zip(*edges.tolist(), *(value.tolist() for value in values), strict=True))


def test_pyg_edges_that_are_listed_one_way_keep_their_direction():
    edges, x = one_way(), np.random.default_rng(1).normal(size=(40, 3))
    data = Data(x=torch.tensor(x), edge_index=torch.tensor(edges), y=torch.arange(40) % 2)
    graph = Graph.from_pyg(data)
    assert (graph.num_edges, graph.only_relation.undirected) == (400, False)
    assert listed(graph.edge_index()) == listed(edges)
    back = graph.to_pyg()
    assert isinstance(back, Data)
    assert listed(back.edge_index.numpy()) == listed(edges)
    assert torch.equal(back.y, data.y)
    plain = Graph.from_pyg(data, directed=False)
    assert plain.is_plain
    assert plain.num_edges == Graph.from_edge_index(edges, x).num_edges < 400
    both = Data(x=torch.tensor(x), edge_index=torch.tensor(np.hstack([edges, edges[::-1]])))
    assert Graph.from_pyg(both).is_plain
    assert not Graph.from_pyg(both, directed=True).only_relation.undirected


@pytest.mark.parametrize("directed", [True, False])
def test_pyg_features_and_weights_of_edges_go_there_and_back(directed):
    edges, random = one_way(), np.random.default_rng(2)
    edges = edges if directed else edges[:, edges[0] < edges[1]]
    attributes = random.normal(size=(edges.shape[1], 2)).astype(np.float32)
    weights = random.uniform(1, 2, edges.shape[1]).astype(np.float32)
    if not directed:
        edges = np.hstack([edges, edges[::-1]])
        attributes, weights = np.tile(attributes, (2, 1)), np.tile(weights, 2)
    data = Data(
        x=torch.ones(40, 1),
        edge_index=torch.tensor(edges),
        edge_attr=torch.tensor(attributes),
        edge_weight=torch.tensor(weights),
        node_ids=[f"n{row}" for row in range(40)],
    )
    graph = Graph.from_pyg(data)
    assert graph.only_relation.undirected != directed
    assert graph.num_edges == edges.shape[1] // (1 if directed else 2)
    back = graph.to_pyg()
    expected = listed(edges, *attributes.T, weights)
    found = listed(back.edge_index.numpy(), *back.edge_attr.numpy().T, back.edge_weight.numpy())
    assert found == expected
    assert back.node_ids == data.node_ids
    assert Graph.from_pyg(back).num_edges == graph.num_edges
    if not directed:  # one direction has another value: directions differ
        data.edge_attr[-1] += 1
        assert not Graph.from_pyg(data).only_relation.undirected


@pytest.mark.parametrize("kind", [networkx.DiGraph, networkx.MultiDiGraph])
def test_networkx_digraphs_keep_their_direction(kind):
    edges = one_way()
    source = kind(edges.T.tolist())
    source.add_nodes_from(range(40))
    graph = Graph.from_networkx(source, features="structural")
    assert (graph.num_edges, graph.only_relation.undirected) == (400, False)
    ids = graph.node_ids
    assert listed(ids[graph.edge_index()]) == listed(edges)
    assert Graph.from_networkx(source, features="structural", directed=False).is_plain
    assert Graph.from_networkx(source.to_undirected(), features="structural").is_plain
    assert Graph.from_networkx(networkx.Graph(source).to_directed(), features="structural").is_plain


def test_networkx_says_what_it_leaves_out_of_edges():
    source = networkx.MultiGraph()
    source.add_edge("a", "b", weight=2.0, kind="x")
    source.add_edge("b", "a", weight=3.0)
    told = r"left out 'weight' of edges and merged 1 parallel edges; weight= .* edge_features= one"
    with pytest.warns(UserWarning, match=told):
        plain = Graph.from_networkx(source, np.eye(2))
    assert (plain.num_edges, plain.edge_weight) == (1, None)
    assert Graph.from_networkx(source, np.eye(2), weight="weight").edge_weight.tolist() == [5, 5]
    kept = Graph.from_networkx(source, np.eye(2), edge_features="weight")
    assert sorted(kept.only_relation.edge_features[:, 0].tolist()) == [2, 2, 3, 3]
    assert kept.num_edges == 2
