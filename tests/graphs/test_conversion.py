import networkx
import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import HeteroData
from torch_geometric.transforms import ToUndirected

from graphcl.errors import GraphError
from graphcl.graphs.changing import Delta, NodeDelta, change_graph
from graphcl.graphs.graph import Graph

WRITES = ("author", "writes", "paper")


def hetero():
    data = HeteroData()
    data["author"].x = torch.rand(3, 2)
    data["paper"].x = torch.eye(4).to_sparse_csr()
    data["paper"].y = torch.tensor([0, 1, 1, 0])
    data["paper"].train_mask = torch.tensor([True, False, True, False])
    data["topic"].num_nodes = 2
    data[WRITES].edge_index = torch.tensor([[0, 0, 2], [1, 0, 3]])
    data[WRITES].edge_attr = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    data["paper", "cites", "paper"].edge_index = torch.tensor([[0, 1], [1, 2]])
    data["paper", "cites", "paper"].edge_weight = torch.tensor([0.5, 2.0])
    data["paper", "on", "topic"].edge_index = torch.tensor([[0, 1], [1, 0]])
    return data


def test_pyg_there_and_back():
    data = hetero()
    again = Graph.from_pyg(data).to_pyg()
    assert again.node_types == data.node_types
    assert again.edge_types == data.edge_types
    assert torch.equal(again["author"].x, data["author"].x)
    assert torch.equal(again["paper"].x, torch.eye(4))
    assert torch.equal(again["paper"].train_mask, data["paper"].train_mask)
    assert again["topic"].num_nodes == 2
    assert again[WRITES].edge_index.tolist() == [[0, 0, 2], [0, 1, 3]]  # sorted by target
    assert again[WRITES].edge_attr.tolist() == [[3, 4], [1, 2], [5, 6]]
    assert again["cites"].edge_weight.tolist() == [0.5, 2.0]
    kept = Graph.from_pyg(data).to_pyg(sparse=True)
    assert kept["paper"].x.layout == torch.sparse_csr


def test_pyg_reverses_are_not_kept_twice():
    graph = Graph.from_pyg(ToUndirected(merge=False)(hetero()))
    assert list(graph.relations) == list(Graph.from_pyg(hetero()).relations)
    other = hetero()
    other["paper", "read_by", "author"].edge_index = torch.tensor([[1, 0, 2], [0, 0, 2]])
    assert len(Graph.from_pyg(other).relations) == 4


def test_pyg_says_what_it_leaves_out_and_what_it_lacks():
    data = hetero()
    data["author"].name = ["a", "b", "c"]
    with pytest.warns(UserWarning, match=r"left out author.name"):
        Graph.from_pyg(data)
    with pytest.raises(GraphError, match=r"expected a torch_geometric Data or HeteroData"):
        Graph.from_pyg(3)


def test_networkx_multigraph_with_types_keys_and_attributes():
    source = networkx.MultiDiGraph()
    source.add_node("ann", type="author", x=[1.0, 2.0])
    source.add_node("bob", type="author", x=[3.0, 4.0])
    source.add_node(1, type="paper", y=1)
    source.add_node(2, type="paper", y=0)
    source.add_edge("ann", 1, "writes")
    source.add_edge("ann", 1, "reads", weight=2.0)
    source.add_edge("bob", 1, relation="reads", weight=3.0)
    source.add_edge(1, 2, features=[1.0, 0.5])
    kinds = {"node_type": "type", "relation": "relation", "edge_features": "features"}
    graph = Graph.from_networkx(source, weight="weight", **kinds)
    assert set(graph.relations) == {
        WRITES,
        ("author", "reads", "paper"),
        ("paper", "edge", "paper"),
    }
    assert graph.nodes["author"].node_ids.tolist() == ["ann", "bob"]
    assert graph.nodes["paper"].y.tolist() == [1, 0]
    assert graph.relation("reads").edge_weight.tolist() == [2, 3]
    assert graph.relation("edge").edge_features.tolist() == [[1, 0.5]]
    assert not graph.relation("edge").undirected
    source.nodes["bob"].pop("x")
    with pytest.raises(GraphError, match="of type 'author' has no attribute 'x'"):
        Graph.from_networkx(source, **kinds)


def test_networkx_undirected_edges_have_one_relation_whichever_end_comes_first():
    source = networkx.Graph()
    source.add_nodes_from([("a", {"type": "author"}), (1, {"type": "paper"})])
    source.add_nodes_from([("b", {"type": "author"}), (2, {"type": "paper"})])
    source.add_edges_from([("a", 1), (2, "b"), ("a", "b")])
    graph = Graph.from_networkx(source, node_type="type")
    assert graph.relation("author:edge:paper").edge_index().tolist() == [[0, 1], [0, 1]]
    assert graph.relation("author:edge:author").undirected


def test_a_plain_graph_is_one_type_and_one_relation(graph):
    """Whichever way it was built: by its edges, or as a graph with types that has one of each."""
    edges = graph.relation("edge")
    assert edges.undirected
    assert np.array_equal(edges.indices, graph.indices)
    there = graph.edge_index()
    masks = {name: getattr(graph, name) for name in ("train_mask", "val_mask", "test_mask")}
    nodes = {"person": {"x": graph.x, "y": graph.y, **masks}}
    named = Graph.from_edges(nodes, {("person", "knows", "person"): there})
    assert named.is_plain
    assert named.relation("knows").edge_ids is None
    for name in ("indptr", "indices", "x", "y", "test_mask"):
        assert np.array_equal(getattr(named, name), getattr(graph, name))
    assert named.flatten() is named


def test_flattened_types_have_columns_of_their_own():
    x = {"author": np.ones((2, 1)), "paper": {"x": scipy.sparse.eye_array(3), "y": [0, 1, -1]}}
    graph = Graph.from_edges(x | {"topic": 1}, {WRITES: [[0, 1], [2, 2]]}).flatten()
    expected = np.zeros((6, 4))
    expected[:2, 0] = 1
    expected[2:5, 1:] = np.eye(3)
    assert np.array_equal(graph.x.toarray(), expected)
    assert graph.edge_index().T.tolist() == [[0, 4], [1, 4], [4, 0], [4, 1]]
    assert graph.y.tolist() == [-1, -1, 0, 1, -1, -1]


def test_stores_of_few_bytes_are_flattened_and_grow(tmp_path):
    x = np.random.default_rng(0).normal(size=(6, 3))
    graph = Graph.from_edges({"author": x, "paper": x + 1}, {WRITES: [[0, 1, 5], [2, 2, 4]]})
    graph.save(tmp_path / "store", features="float16")
    small = Graph.open(tmp_path / "store", verify=True)
    flat, expected = small.flatten(), graph.flatten()
    np.testing.assert_allclose(flat.x, expected.x, atol=0.03)
    assert flat.node_ids[6] == "paper/0"
    new = NodeDelta(1, np.zeros((1, 3), np.float32))
    grown = change_graph(small, Delta({"author": new})).graph
    np.testing.assert_allclose(grown.nodes["author"].x[:6], x, atol=0.03)
