import numpy as np
import pytest
import scipy.sparse

from graphcl.research.damage import missing_features, missing_links, spurious_links
from graphcl.store.columns import ScaledFeatures


def rng():
    return np.random.default_rng(0)


def pairs(graph):
    return set(map(tuple, graph.edge_index().T.tolist()))


def test_links_are_removed_and_added(graph):
    fewer, more = missing_links(graph, 0.5, rng()), spurious_links(graph, 0.5, rng())
    assert pairs(fewer) < pairs(graph) < pairs(more)
    assert abs(fewer.num_edges / graph.num_edges - 0.5) < 0.2
    assert graph.num_edges < more.num_edges <= 1.5 * graph.num_edges
    for one in (fewer, more):
        assert np.array_equal(one.x, graph.x)
        assert np.array_equal(one.test_mask, graph.test_mask)


def test_features_are_removed_and_the_graph_is_unchanged(graph):
    before = graph.x.copy()
    poorer = missing_features(graph, 0.5, rng())
    kept = poorer.x == graph.x
    assert 0.4 < kept.mean() < 0.6
    assert not poorer.x[~kept].any()
    assert pairs(poorer) == pairs(graph)
    assert np.array_equal(graph.x, before)


def test_damage_keeps_weights_and_the_kind_of_features(graph):
    random = np.random.default_rng(1)
    edges = graph.edge_index()
    once = edges[:, edges[0] < edges[1]]
    weights = random.uniform(1, 2, once.shape[1]).astype("float32")
    weighted = graph.from_edge_index(once, graph.x, edge_weight=weights)
    known = dict(zip(map(tuple, edges.T.tolist()), weighted.edge_weight, strict=True))
    for one in (missing_links(weighted, 0.5, rng()), spurious_links(weighted, 0.5, rng())):
        found = zip(map(tuple, one.edge_index().T.tolist()), one.edge_weight, strict=True)
        new = weights.mean()
        assert all(weight == pytest.approx(known.get(pair, new)) for pair, weight in found)
    scaled = ScaledFeatures(random.integers(1, 9, (4, 3)).astype("int8"), np.ones(3, "float32"))
    table = scipy.sparse.csr_array(np.ones((4, 3), "float32"))
    small = graph.from_edge_index([[0], [1]], np.eye(4, 3))
    for x in (scaled, table, np.ones((4, 3), "float16")):
        poorer = missing_features(small.replace(x=x), 0.5, rng())
        assert type(poorer.x) is type(x)
        damaged = poorer.x.toarray() if scipy.sparse.issparse(poorer.x) else np.asarray(poorer.x)
        whole = x.toarray() if scipy.sparse.issparse(x) else np.asarray(x)
        assert ((damaged == whole) | (damaged == 0)).all()
        assert (damaged != whole).any()
        assert not scipy.sparse.issparse(poorer.x) or poorer.x.data.all()
