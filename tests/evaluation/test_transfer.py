import numpy as np
import pytest

from graphcl.errors import GraphError
from graphcl.evaluation import linear_probe
from graphcl.evaluation.probe import transfer_probe


def test_the_same_rows_score_as_the_probe_does(graph):
    test = np.flatnonzero(graph.test_mask)
    noise = np.random.default_rng(0).normal(size=graph.x.shape)
    own, same, noisy = transfer_probe(graph.x, graph, [graph.x[test], noise[test]])
    assert own == same == linear_probe(graph.x, graph).accuracy
    assert noisy < own


def test_arrays_must_fit(graph):
    with pytest.raises(GraphError, match="do not fit"):
        transfer_probe(graph.x, graph, [graph.x])
