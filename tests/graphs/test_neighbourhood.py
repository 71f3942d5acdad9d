"""The nodes within some hops, found by a plain search, and what is kept of them."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.errors import ParameterError
from graphcl.graphs.graph import Graph
from graphcl.graphs.neighbourhood import neighbourhood
from graphcl.store.columns import ScaledFeatures


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
    part, rows = neighbourhood(graph, nodes, hops)
    reached = within(graph, nodes.tolist(), hops)
    if len(reached) > number // 2:
        assert part is graph
        assert rows is nodes
        return
    assert part.x[:, 0].tolist() == reached
    assert part.x[rows, 0].tolist() == nodes.tolist()
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


def test_ranges_and_other_features():
    ring = np.stack([np.arange(50), (np.arange(50) + 1) % 50])
    graph = Graph.from_edge_index(ring, scipy.sparse.eye_array(50, format="csr"))
    part, rows = neighbourhood(graph, slice(10, 12), 2)
    assert part.x.toarray().argmax(1).tolist() == [8, 9, 10, 11, 12, 13]
    assert rows.tolist() == [2, 3]
    values = np.arange(50, dtype=np.int8)[:, None]
    scaled = ScaledFeatures(values, np.ones(1, np.float32), np.ones(50, np.float32))
    stored = Graph.from_csr(indptr=graph.indptr, indices=graph.indices, x=scaled)
    part, rows = neighbourhood(stored, np.array([3]), 1)
    assert part.x.values[:, 0].tolist() == [2, 3, 4]
    assert len(part.x.row_scale) == 3
    for wrong in (slice(5, 5), slice(0, 10, 2)):
        with pytest.raises(ParameterError, match="a range of nodes"):
            neighbourhood(graph, wrong, 1)
