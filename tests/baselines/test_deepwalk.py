import sys

import numpy as np
import pytest
import torch

from graphcl.baselines.deepwalk import DeepWalk, DeepWalkFeatures
from graphcl.errors import MissingExtraError
from graphcl.graphs.graph import Graph

CPU = torch.device("cpu")
QUICK = {"dim": 8, "walks": 10, "length": 10, "window": 3}


def cliques():
    """Two of eight nodes, one edge between them, and a node alone."""
    pairs = [(a + s, b + s) for s in (0, 8) for a in range(8) for b in range(a)]
    return Graph.from_edge_index(np.array([*pairs, (0, 8)]).T, np.arange(34.0).reshape(17, 2))


def test_it_tells_two_cliques_apart():
    z = DeepWalk(**QUICK).embed(cliques(), seed=0, device=CPU)
    assert z.shape == (17, 8)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    alike = unit @ unit.T
    within = (alike[:8, :8].mean() + alike[8:16, 8:16].mean()) / 2
    assert within > alike[:8, 8:16].mean() + 0.2


def test_features_stand_beside_it():
    graph = cliques()
    z = DeepWalkFeatures(**QUICK).embed(graph, seed=0, device=CPU)
    assert np.array_equal(z[:, :8], DeepWalk(**QUICK).embed(graph, seed=0, device=CPU))
    assert np.array_equal(z[:, 8:], graph.x)


def test_without_gensim_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(MissingExtraError, match=r"graphcl\[baselines\]"):
        DeepWalk(**QUICK).embed(cliques(), seed=0, device=CPU)
