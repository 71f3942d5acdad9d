"""The nodes within some hops, found by a plain search, and what is kept of them."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.errors import GraphError
from graphcl.graphs.graph import Graph
from graphcl.graphs.neighbourhood import Surroundings, grown_part, new_nodes


def within(graph, nodes, hops):
    reached = set(nodes)
    for _ in range(hops):
        reached |= {
            int(v) for u in reached for v in graph.indices[graph.indptr[u] : graph.indptr[u + 1]]
        }
    return sorted(reached)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_it_is_what_a_plain_search_reaches(data):
    number = data.draw(st.integers(1, 30))
    edges = data.draw(
        st.lists(st.tuples(st.integers(0, number - 1), st.integers(0, number - 1)), max_size=25)
    )
    nodes = np.array(data.draw(st.lists(st.integers(0, number - 1), min_size=1, max_size=3)))
    hops = data.draw(st.integers(1, 3))
    x = np.arange(number, dtype=np.float32)[:, None]
    index = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    weight = np.arange(1.0, len(edges) + 1) if data.draw(st.booleans()) else None
    graph = Graph.from_edge_index(index, x, edge_weight=weight)
    part, rows = Surroundings(graph).within({"node": np.unique(nodes)}, hops)
    reached = within(graph, nodes.tolist(), hops)
    if len(reached) > number // 2:
        assert part is graph
        assert rows["node"].tolist() == list(range(number))
        return
    assert part.x[:, 0].tolist() == reached == rows["node"].tolist()
    inner = within(graph, nodes.tolist(), hops - 1)
    for row, node in enumerate(reached):
        there = slice(*graph.indptr[node : node + 2])
        here = slice(*part.indptr[row : row + 2])
        if node not in inner:
            assert here.start == here.stop
            continue
        assert [reached[v] for v in part.indices[here]] == graph.indices[there].tolist()
        if graph.edge_weight is not None:
            assert np.array_equal(part.edge_weight[here], graph.edge_weight[there])


def test_features_keep_their_form():
    ring = np.stack([np.arange(50), (np.arange(50) + 1) % 50])
    graph = Graph.from_edge_index(ring, scipy.sparse.eye_array(50, format="csr"))
    part, rows = Surroundings(graph).within({"node": np.array([10, 11])}, 2)
    assert part.x.toarray().argmax(1).tolist() == [8, 9, 10, 11, 12, 13] == rows["node"].tolist()
    values = np.arange(50, dtype=np.float16)[:, None]
    stored = Graph.from_csr(indptr=graph.indptr, indices=graph.indices, x=values)
    part, _ = Surroundings(stored).within({"node": np.array([3])}, 1)
    assert part.x.dtype == np.float16
    assert part.x[:, 0].tolist() == [2, 3, 4]


@st.composite
def grown(draw):
    """A graph, some new nodes with edges, and the edges of the grown graph as a plain list."""
    number, more = draw(st.integers(1, 25)), draw(st.integers(1, 4))
    node = st.integers(0, number - 1)
    listed = draw(st.lists(st.tuples(node, node), max_size=25))
    neighbours = [draw(st.lists(node, max_size=4)) for _ in range(more)]
    place = st.integers(0, more - 1)
    among = draw(st.lists(st.tuples(place, place), max_size=4))
    x = np.arange(number + more, dtype=np.float32)[:, None]
    index = np.array(listed, dtype=np.int64).reshape(-1, 2).T
    whole = [
        *listed,
        *((number + i, v) for i, some in enumerate(neighbours) for v in some),
        *((number + a, number + b) for a, b in among),
    ]
    graph = Graph.from_edge_index(index, x[:number])
    lists = [np.array(some, dtype=np.int64) for some in neighbours]
    new = new_nodes(graph, x[number:], lists, edges=among)
    expected = Graph.from_edge_index(np.array(whole, dtype=np.int64).reshape(-1, 2).T, x)
    return graph, new, expected


def same_structure(one, other):
    assert np.array_equal(one.indptr, other.indptr)
    assert np.array_equal(one.indices, other.indices)
    assert np.array_equal(one.x, other.x)


@settings(max_examples=80, deadline=None)
@given(case=grown(), hops=st.integers(1, 3))
def test_the_part_is_what_a_plain_search_reaches(case, hops):
    graph, new, whole = case
    wanted = list(range(graph.num_nodes, whole.num_nodes))
    part, levels = grown_part(graph, new, hops)
    reached = part.x[:, 0].astype(int).tolist()
    # Old nodes that only another new node leads to are reached too, one hop later at most.
    assert reached == sorted({*within(whole, wanted, hops)})
    inner = within(whole, wanted, hops - 1)
    for row, node in enumerate(reached):
        here = part.indices[part.indptr[row] : part.indptr[row + 1]]
        there = whole.indices[whole.indptr[node] : whole.indptr[node + 1]].tolist()
        assert [reached[v] for v in here] == (there if node in inner else [])
    for layer, rows in enumerate(levels):
        assert [reached[row] for row in rows] == within(whole, wanted, hops - 1 - layer)


@settings(max_examples=30, deadline=None)
@given(case=grown())
def test_the_grown_graph_is_that_of_one_list_of_edges(case):
    graph, new, whole = case
    same_structure(grown_part(graph, new, None).graph, whole)


def test_weights_are_added_and_stay_with_their_edges():
    graph = Graph.from_edge_index([[0, 1], [1, 2]], np.eye(3), edge_weight=[2.0, 3.0])
    near = [np.array([1, 1]), np.array([2])]
    given_weights = [[0.5, 0.25], [4.0]]
    new = new_nodes(graph, np.eye(2, 3), near, edges=[(0, 1, 7.0)], weights=given_weights)
    whole = grown_part(graph, new, None).graph
    dense = np.zeros((5, 5))
    for a, b, weight in [(0, 1, 2), (1, 2, 3), (3, 1, 0.75), (4, 2, 4), (3, 4, 7)]:
        dense[a, b] = dense[b, a] = weight
    found = scipy.sparse.csr_array((whole.edge_weight, whole.indices, whole.indptr)).toarray()
    np.testing.assert_array_equal(found, dense)
    part, _ = grown_part(graph, new, 3)
    assert part.num_nodes == 5
    found = scipy.sparse.csr_array((part.edge_weight, part.indices, part.indptr)).toarray()
    np.testing.assert_array_equal(found[1:], dense[1:])


def test_sparse_features_stay_sparse_and_narrow_ones_become_float32(tmp_path):
    table = scipy.sparse.eye_array(6, format="csr")
    graph = Graph.from_edge_index([[0, 1], [1, 2]], table)
    part, _ = grown_part(graph, new_nodes(graph, np.eye(1, 6), [np.array([1])]), 1)
    assert scipy.sparse.issparse(part.x)
    assert part.x.toarray().tolist() == np.eye(6)[[1, 0]].tolist()
    dense = Graph.from_edge_index([[0, 1], [1, 2]], np.eye(6))
    dense.save(tmp_path / "store", features="float16")
    stored = Graph.open(tmp_path / "store")
    part, _ = grown_part(stored, new_nodes(stored, table[:1], [np.array([1])]), 1)
    assert part.x.dtype == np.float32
    np.testing.assert_array_equal(part.x, np.eye(6)[[1, 0]])


ROW = np.array([0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"features": [[1, 2]]}, "2 features; ring has 3"),
        ({"features": [[1, 2, np.nan]]}, "nan"),
        ({"features": [["a", "b", "c"]]}, "numbers"),
        ({"neighbours": []}, "0 lists of neighbours for 1 nodes"),
        ({"neighbours": [np.array([4])]}, "neighbour 4 of a graph of 4 nodes"),
        ({"neighbours": [np.array([-1])]}, "neighbour -1"),
        ({"edges": [[0, 1]]}, "0 to 0"),
        ({"edges": [[0, 0.5]]}, "places"),
        ({"edges": [0, 1]}, "pairs"),
        ({"edges": [["a", "b"]]}, "pairs"),
        ({"edges": [[0, 0, np.inf]]}, "pairs"),
        ({"weights": [[1.0, 2.0]]}, "as many as neighbours"),
        ({"weights": [["x"]]}, "numbers"),
        ({"weights": [[0.0]]}, "positive"),
        ({"weights": [[np.nan]]}, "positive"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, words):
    ring = Graph.from_edge_index([[0, 1, 2, 3], [1, 2, 3, 0]], np.ones((4, 3)), name="ring")
    whole = {"features": [[1, 2, 3]], "neighbours": [ROW], **arguments}
    with pytest.raises(GraphError, match=words):
        new_nodes(ring, whole.pop("features"), whole.pop("neighbours"), **whole)
