import networkx
import numpy as np
import pytest

from graphcl.graphs.graph import Graph
from graphcl.graphs.structural import FEATURE_NAMES, structural_features
from graphcl.kernels.triangles import core_numbers, triangles
from tests.conftest import random_graph


@pytest.fixture
def both():
    graph = random_graph(num_nodes=80)
    bare = Graph.from_edge_index(graph.edge_index(), np.ones((83, 1)))  # three nodes stand alone
    there = networkx.Graph()
    there.add_nodes_from(range(83))
    there.add_edges_from(bare.edge_index().T.tolist())
    return bare, there


def test_triangles_and_cores_are_networkxs(both):
    ours, theirs = both
    counted = triangles(ours.indptr, ours.indices, np.ones(83))
    assert counted.tolist() == list(networkx.triangles(theirs).values())
    cores = core_numbers(ours.indptr, ours.indices)
    assert cores.tolist() == [networkx.core_number(theirs)[node] for node in range(83)]


def test_features_are_what_their_names_say(both):
    ours, theirs = both
    x = structural_features(ours.indptr, ours.indices)
    assert x.shape == (83, len(FEATURE_NAMES))
    degree = np.array([theirs.degree[node] for node in range(83)])
    adjacency = networkx.to_numpy_array(theirs)
    walk = np.divide(adjacency, degree[:, None], where=degree[:, None] > 0, out=0 * adjacency)
    expected = [
        np.log1p(degree),
        walk @ np.log1p(degree),
        list(networkx.clustering(theirs).values()),
        np.log1p(list(networkx.core_number(theirs).values())),
        np.diag(walk @ walk),
        np.diag(walk @ walk @ walk),
    ]
    np.testing.assert_allclose(x, np.stack(expected, axis=1), atol=1e-6)
    assert not x[80:].any()


def test_features_do_not_depend_on_the_type_of_the_indices(both):
    ours, _ = both
    narrow = structural_features(ours.indptr, ours.indices.astype(np.int32))
    assert np.array_equal(narrow, structural_features(ours.indptr, ours.indices))


def test_a_graph_without_edges():
    assert not structural_features(np.zeros(4, np.int64), np.zeros(0, np.int64)).any()
