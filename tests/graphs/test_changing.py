"""A graph and what changes in it, against the same change made to a plain list of edges."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.errors import GraphError
from graphcl.graphs.changing import Delta, affected_rows, change_graph, check_pairs
from graphcl.graphs.graph import Graph
from graphcl.store.columns import ScaledFeatures


def pairs_of(edges):
    return np.array(sorted(edges), dtype=np.int64).reshape(-1, 2)


@st.composite
def cases(draw):
    """An old graph, a change, and the graph that plain lists make of both."""
    size, new = draw(st.integers(1, 14)), draw(st.integers(0, 3))
    node = st.integers(0, size - 1)
    pair = st.tuples(node, node).filter(lambda one: one[0] < one[1])
    old = draw(st.sets(pair, max_size=20)) if size > 1 else set()
    removed = draw(st.sets(node, max_size=size - 1))
    stays = [u for u in range(size + new) if u not in removed]
    dropped = draw(st.sets(st.sampled_from(sorted(old)), max_size=4)) if old else set()
    end = st.sampled_from(stays)
    added = draw(st.sets(st.tuples(end, end).filter(lambda one: one[0] < one[1]), max_size=8))
    changed = sorted(draw(st.sets(st.sampled_from(stays), max_size=3)))
    changed = [u for u in changed if u < size]
    x = np.arange(2 * (size + new), dtype=np.float32).reshape(-1, 2)
    weighted = draw(st.booleans())
    weights = {one: 1.0 + (3 * one[0] + one[1]) % 5 for one in old}
    given_weights = {one: 2.0 + (one[0] + 5 * one[1]) % 3 for one in added}
    graph = Graph.from_edge_index(
        pairs_of(old).T,
        x[:size],
        edge_weight=[weights[one] for one in sorted(old)] if weighted else None,
    )
    delta = Delta(
        x=x[size:] if new else None,
        changed=np.array(changed, np.int64),
        changed_x=-x[changed] if changed else None,
        removed=np.array(sorted(removed), np.int64),
        added=pairs_of(added),
        weight=np.array([given_weights[one] for one in sorted(added)], np.float32)
        if weighted
        else None,
        dropped=pairs_of(dropped),
    )
    left = {one: w for one, w in weights.items() if one not in dropped}
    left = {one: w for one, w in left.items() if not removed & set(one)} | given_weights
    number = {u: row for row, u in enumerate(stays)}
    wide = x.copy()
    wide[changed] = -x[changed]
    listed = [(number[a], number[b]) for a, b in left]
    expected = Graph.from_edge_index(
        np.array(listed, dtype=np.int64).reshape(-1, 2).T,
        wide[stays],
        edge_weight=list(left.values()) if weighted else None,
    )
    return graph, delta, expected


@settings(max_examples=200, deadline=None)
@given(case=cases())
def test_it_is_the_graph_that_plain_lists_make(case):
    graph, delta, expected = case
    changed = change_graph(graph, delta)
    found = changed.graph
    assert np.array_equal(found.indptr, expected.indptr)
    assert np.array_equal(found.indices, expected.indices)
    assert np.array_equal(found.x, expected.x)
    if expected.edge_weight is None:
        assert found.edge_weight is None
    else:
        assert np.array_equal(found.edge_weight, expected.edge_weight)
    stays = [u for u in range(graph.num_nodes) if u not in set(delta.removed.tolist())]
    assert changed.kept.tolist() == stays


def trees(graph, hops):
    """All that the embedding of each node depends on, as nested tuples."""
    rows = [
        sorted(graph.indices[graph.indptr[u] : graph.indptr[u + 1]].tolist())
        for u in range(graph.num_nodes)
    ]
    weight = graph.edge_weight if graph.edge_weight is not None else np.ones(len(graph.indices))
    weights = [
        weight[graph.indptr[u] : graph.indptr[u + 1]].tolist() for u in range(graph.num_nodes)
    ]
    level = [tuple(row) for row in graph.x.tolist()]
    for _ in range(hops):
        level = [
            (level[u], tuple(zip((level[v] for v in rows[u]), weights[u], strict=True)))
            for u in range(graph.num_nodes)
        ]
    return level


@settings(max_examples=200, deadline=None)
@given(case=cases(), hops=st.integers(1, 3))
def test_affected_rows_hold_all_whose_surroundings_differ(case, hops):
    graph, delta, _ = case
    changed = change_graph(graph, delta)
    found = set(affected_rows(changed, hops)[-1].tolist())
    before, after = trees(graph, hops), trees(changed.graph, hops)
    for row in range(changed.graph.num_nodes):
        is_new = row >= len(changed.kept)
        if is_new or before[changed.kept[row]] != after[row]:
            assert row in found


def path(length):
    edges = np.stack([np.arange(length - 1), np.arange(1, length)])
    return Graph.from_edge_index(edges, np.arange(length, dtype=np.float32)[:, None])


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        (Delta(changed=np.array([5]), changed_x=np.array([[9.0]], np.float32)), [3, 4, 5, 6, 7]),
        (Delta(changed=np.array([5]), changed_x=np.array([[5.0]], np.float32)), []),
        (Delta(dropped=np.array([[5, 4]])), [3, 4, 5, 6]),
        (Delta(added=np.array([[4, 5]])), []),
        (Delta(added=np.array([[0, 9]])), [0, 1, 8, 9]),
        (Delta(removed=np.array([5])), [3, 4, 5, 6]),
        (Delta(x=np.ones((1, 1), np.float32)), [10]),
        (Delta(x=np.ones((1, 1), np.float32), added=np.array([[10, 9]])), [8, 9, 10]),
    ],
)
def test_nothing_else_is_affected(delta, expected):
    assert affected_rows(change_graph(path(10), delta), 2)[-1].tolist() == expected


def test_what_cannot_be():
    with pytest.raises(GraphError, match="every node would be removed"):
        change_graph(path(3), Delta(removed=np.arange(3)))
    with pytest.raises(GraphError, match="no edge joins 0 and 2"):
        change_graph(path(3), Delta(dropped=np.array([[0, 2]])))
    with pytest.raises(GraphError, match="added to a node that is removed"):
        change_graph(path(3), Delta(removed=np.array([1]), added=np.array([[1, 2]])))
    with pytest.raises(GraphError, match="2 edges are not in the graph, first 'n0' – 'n2'"):
        check_pairs(path(4), np.array([[0, 2], [1, 2], [1, 3]]), lambda row: f"n{row}", "old.csv")


@pytest.mark.parametrize("features", ["float32", "float16", "int8", "sparse"])
def test_features_keep_their_form(features, tmp_path):
    random = np.random.default_rng(0)
    x = random.integers(-100, 100, (8, 3)).astype(np.float32)
    table = scipy.sparse.csr_array(x) if features == "sparse" else x
    Graph.from_edge_index([[0, 1], [1, 2]], table).save(
        tmp_path / "store", features="float32" if features == "sparse" else features
    )
    graph = Graph.open(tmp_path / "store")
    changed = change_graph(
        graph,
        Delta(
            x=np.array([[1, 2, 3], [400, -3, 0]], np.float32),
            changed=np.array([1, 4]),
            changed_x=np.stack([x[1], [7, 8, 9]]),
            removed=np.array([0]),
        ),
    )
    found = changed.graph.x
    assert type(found) is type(graph.x) or isinstance(found, np.ndarray)
    wide = np.asarray(found.toarray() if features == "sparse" else found, dtype=np.float32)
    expected = np.concatenate([x[1:], [[1, 2, 3], [400, -3, 0]]])
    expected[3] = [7, 8, 9]
    room = np.abs(x).max() / 127 if features == "int8" else 0
    assert np.abs(wide[:8] - expected[:8]).max() <= room
    assert np.abs(wide[8] - expected[8]).max() <= 8 * room
    moved = changed.moved.tolist()
    assert moved == [3, 7, 8]
    if isinstance(found, ScaledFeatures):
        assert found.row_scale is not None
        assert found.row_scale[8] > 1


def test_a_number_that_float16_cannot_hold_is_refused(tmp_path):
    path(4).save(tmp_path / "store", features="float16")
    delta = Delta(x=np.full((1, 1), 1e6, np.float32))
    with pytest.raises(GraphError, match="does not fit in float16"):
        change_graph(Graph.open(tmp_path / "store"), delta)
