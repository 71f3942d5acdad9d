import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.errors import GraphError
from graphcl.graphs.graph import Graph
from graphcl.kernels.adjacency import Adjacency

AUTHORS = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
PAPERS = scipy.sparse.csr_array(np.eye(4, 5))
WRITES = ("author", "writes", "paper")
CITES = ("paper", "cites", "paper")


def small(nodes=None, relations=None):
    given = {"author": AUTHORS, "paper": {"x": PAPERS, "y": [0, 1, 0, -1]}, "topic": 2}
    edges = {
        WRITES: [[0, 0, 2], [1, 0, 3]],
        CITES: {"edge_index": [[0, 1, 2], [1, 2, 2]], "edge_weight": [1.0, 2.0, 3.0]},
        ("paper", "on", "topic"): [[0, 1, 1], [1, 0, 1]],
    }
    return Graph.from_edges(given | (nodes or {}), edges | (relations or {}))


def test_types_and_relations_keep_what_is_theirs():
    graph = small()
    assert list(graph.nodes) == ["author", "paper", "topic"]
    assert [one.num_features for one in graph.nodes.values()] == [2, 5, 0]
    assert scipy.sparse.issparse(graph.nodes["paper"].x)
    writes = graph.relation("writes")
    assert writes.indptr.tolist() == [0, 1, 2, 2, 3]  # by target: who wrote each paper
    assert writes.indices.tolist() == [0, 0, 2]
    cites = graph.relation("paper:cites:paper")
    assert (cites.num_edges, cites.self_loops_removed, cites.undirected) == (2, 1, False)
    assert cites.edge_weight.tolist() == [1, 2]
    assert (graph.num_nodes, graph.num_edges, graph.labelled_type) == (9, 8, "paper")
    assert "author: 3 nodes, 2 features" in repr(graph)


def test_it_is_read_only_and_leaves_its_arguments_alone():
    edges, x = np.array([[0, 1], [1, 2]]), np.ones((3, 1), np.float32)
    graph = Graph.from_edges({"node": x}, {("node", "to", "node"): edges})
    x[0], edges[0] = 7, 0
    assert graph.nodes["node"].x[0] == 1
    for array in (graph.nodes["node"].x, graph.relation("to").indices):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_directions_stay_apart_unless_every_edge_is_listed_in_both():
    one_way = Graph.from_directed([[0, 1], [1, 2]], np.eye(3))
    assert one_way.relation("to").edge_index().tolist() == [[0, 1], [1, 2]]
    key, both = ("node", "to", "node"), [[0, 1, 1, 2], [1, 0, 2, 1]]
    found = Graph.from_edges({"node": np.eye(3)}, {key: both}).relation("to")
    assert (found.undirected, found.num_edges) == (True, 2)
    assert found.edge_ids is None  # its entries tell it
    asked = {"edge_index": [[0, 2], [1, 1]], "undirected": True, "edge_features": [5.0, 6.0]}
    found = Graph.from_edges({"node": np.eye(3)}, {key: asked}).relation("to")
    assert found.edge_index().tolist() == [[1, 0, 2, 1], [0, 1, 1, 2]]
    assert found.edge_features[:, 0].tolist() == [5, 5, 6, 6]
    assert found.edge_ids.tolist() == [0, 0, 1, 1]
    apart = {"edge_index": both, "undirected": False}
    assert not Graph.from_edges({"node": np.eye(3)}, {key: apart}).relation("to").undirected


def test_equal_columns_are_one_edge_unless_edges_have_features():
    twice, key = [[0, 0, 1], [1, 1, 0]], ("author", "likes", "paper")
    nodes = {"author": AUTHORS, "paper": PAPERS}
    found = Graph.from_edges(nodes, {key: {"edge_index": twice, "edge_weight": [1, 2, 4]}})
    assert found.relation("likes").edge_weight.tolist() == [4, 3]
    kept = {"edge_index": twice, "edge_features": [[1.0], [2.0], [3.0]]}
    found = Graph.from_edges(nodes, {key: kept}).relation("likes")
    assert found.indices.tolist() == [1, 0, 0]
    assert found.edge_features[:, 0].tolist() == [3, 1, 2]


def test_a_relation_without_edges_and_ids_of_two_types_that_are_equal_are_fine():
    nodes = {"author": {"x": AUTHORS, "node_ids": [1, 2, 3]}}
    graph = small(nodes | {"topic": {"num_nodes": 2, "node_ids": [1, 2]}})
    assert graph.nodes["author"].node_ids[0] == graph.nodes["topic"].node_ids[0] == 1
    empty = Graph.from_edges({"a": 1, "b": 2}, {("a", "r", "b"): np.zeros((2, 0))})
    assert empty.relation("r").indptr.tolist() == [0, 0, 0]


def test_what_is_wrong_is_said_with_its_place():
    for nodes, relations, message in (
        ({}, {}, "no types of nodes"),
        ({"topic": 0}, {}, "type 'topic': zero nodes; leave the type"),
        ({"topic": np.zeros((0, 3))}, {}, "type 'topic': zero nodes"),
        ({"author": {}}, {}, "type 'author': neither x nor num_nodes"),
        ({"author": {"x": AUTHORS, "num_nodes": 2}}, {}, "type 'author': x: 3 rows for 2 nodes"),
        ({"author": {"x": AUTHORS, "Y": 1}}, {}, "type 'author': unknown key 'Y'"),
        ({"author": [[np.nan]]}, {}, "type 'author': x: nan at node 0"),
        ({"author": {"x": AUTHORS, "node_ids": "aba"}}, {}, "have the same id 'a'"),
        ({"author": AUTHORS}, {"writes": []}, "expected .source type, name, target type"),
        ({"author": AUTHORS}, {WRITES: []}, "no type 'paper'; the types: author"),
        (
            {"author": AUTHORS, "paper": PAPERS},
            {WRITES: [[0, 3], [0, 0]]},
            "relation author:writes:paper: edge_index: the source of edge 1 is author 3, but the "
            "nodes of type 'author' are 0 to 2",
        ),
        ({"author": 3, "paper": 2}, {WRITES: [[0], [2]]}, "the target of edge 0 is paper 2"),
        ({"author": 3, "paper": 2}, {WRITES: [[0.5], [1]]}, "must be integers"),
        ({"author": 3, "paper": 2}, {WRITES: [[0, 1], [0, 1], [0, 1]]}, r"\[2, num_edges\]"),
        ({"author": 3, "paper": 2}, {WRITES: {}}, "edge_index is not given"),
        (
            {"author": 3, "paper": 2},
            {WRITES: {"edge_index": [[0], [0]], "edge_weight": [0.0]}},
            "edge_weight: 0.0 at edge 0; weights are positive",
        ),
        (
            {"author": 3, "paper": 2},
            {WRITES: {"edge_index": [[0], [0]], "edge_features": [[np.inf]]}},
            "edge_features: inf at edge 0, feature 0",
        ),
        (
            {"author": 3, "paper": 2},
            {WRITES: {"edge_index": [[0], [0]], "edge_features": [[1], [2]]}},
            r"edge_features: expected \[1, features\]",
        ),
        (
            {"author": 3, "paper": 2},
            {WRITES: {"edge_index": [[0], [0]], "undirected": True}},
            "its ends are of two types, author and paper",
        ),
    ):
        with pytest.raises(GraphError, match=message):
            Graph.from_edges(nodes, relations)


def test_types_and_relations_are_found_by_name():
    graph = small(relations={("author", "cites", "paper"): [[0], [0]]})
    with pytest.raises(GraphError, match=r"no type 'autor'; its types: .*did you mean 'author'"):
        graph.type("autor")
    with pytest.raises(GraphError, match="several relations are named 'cites'"):
        graph.relation("cites")
    with pytest.raises(GraphError, match=r"no relation 'writs'.*did you mean 'writes'"):
        graph.relation("writs")


def test_the_nodes_of_a_type_go_where_plain_graphs_go():
    nodes = small().nodes["paper"]
    assert (nodes.num_nodes, nodes.num_classes, nodes.has_split) == (4, 2, False)
    assert small().nodes["topic"].num_features == 0
    with pytest.raises(GraphError, match="has several types of nodes: name one"):
        _ = small().x


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=25),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, False, True]),
)
def test_edges_are_those_that_were_listed(listed, within, weighted, undirected):
    """Against sets and dictionaries of pairs, whatever is listed twice, reversed or a loop."""
    undirected = undirected if within else None
    weights = [1.0 + place for place in range(len(listed))]
    expected: dict[tuple[int, int], float] = {}
    for (source, target), weight in zip(listed, weights, strict=True):
        if not (within and source == target):
            expected[source, target] = expected.get((source, target), 0) + weight
    mirrored = {(v, u): weight for (u, v), weight in expected.items()}
    symmetric = expected.keys() == mirrored.keys() and bool(expected)
    symmetric = symmetric and (not weighted or expected == mirrored)
    is_undirected = within and (undirected is True or (undirected is None and symmetric))
    if is_undirected and not symmetric:
        pairs = expected.keys() | mirrored.keys()
        expected = {pair: expected.get(pair, 0) + mirrored.get(pair, 0) for pair in pairs}
    nodes = {"a": 5} if within else {"a": 5, "b": 5}
    key = ("a", "r", "a" if within else "b")
    edges = {"edge_index": np.array(listed, dtype=np.int64).reshape(-1, 2).T}
    edges |= {"edge_weight": weights} if weighted else {}
    edges |= {} if undirected is None else {"undirected": undirected}
    found = Graph.from_edges(nodes, {key: edges}).relation("r")
    pairs = [tuple(pair) for pair in found.edge_index().T.tolist()]
    assert pairs == sorted(expected, key=lambda pair: pair[::-1])
    assert found.undirected == is_undirected or not pairs
    if weighted and pairs:
        assert found.edge_weight.tolist() == [expected[pair] for pair in pairs]
    if found.undirected:
        cpu = torch.device("cpu")
        numbers = Adjacency.from_csr(found.indptr, found.indices, device=cpu).edge_ids.tolist()
        ids = dict(zip(pairs, numbers, strict=True))
        assert all(ids[u, v] == ids[v, u] for u, v in pairs)
        assert sorted(set(ids.values())) == list(range(found.num_edges))
    assert found.self_loops_removed == (sum(u == v for u, v in listed) if within else 0)
