import numpy as np
import pytest

from graphcl.errors import GraphError
from graphcl.evaluation import linear_probe
from graphcl.evaluation.confusion import probe_confusion
from graphcl.graphs.graph import Graph
from tests.conftest import random_collection, random_graph


def test_the_matrix_is_that_of_the_probe_that_was_scored():
    graph = random_graph()
    z = graph.x + np.random.default_rng(0).normal(size=graph.x.shape)
    score = linear_probe(z, graph)
    found = probe_confusion(z, graph, strength=score.strength)
    assert found.accuracy == score.accuracy
    assert found.counts.sum() == graph.test_mask.sum()
    of_class = [(graph.y[graph.test_mask] == c).sum() for c in found.classes]
    assert found.counts.sum(axis=1).tolist() == of_class
    assert 0 < found.accuracy < 1  # some are wrong, so rows and columns cannot be mixed up
    assert not np.array_equal(found.counts, found.counts.T)


def test_a_drawn_split_and_gaps_in_the_classes():
    graph = random_graph()
    y = graph.y * 10
    y[:5] = -1
    free = Graph.from_edge_index(graph.edge_index(), graph.x, y)
    found = probe_confusion(free.x, free, strength=1.0)
    assert found.classes.tolist() == [0, 10, 20]
    assert found.counts.sum() == linear_probe(free.x, free).nodes[2]


def test_errors():
    graph = random_graph()
    bare = Graph.from_edge_index(graph.edge_index(), graph.x)
    with pytest.raises(GraphError, match="one class per node"):
        probe_confusion(graph.x, bare, strength=1.0)
    several = random_collection()
    with pytest.raises(GraphError, match="one class per node"):
        probe_confusion(np.ones((several.num_nodes, 2)), several, strength=1.0)
    with pytest.raises(GraphError, match="for a graph of 60 nodes"):
        probe_confusion(graph.x[:7], graph, strength=1.0)
