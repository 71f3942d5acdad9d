import sys
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl.errors import MissingExtraError
from graphcl.evaluation.probe import linear_probe
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.research.systems.shallow import (
    EPB,
    DeepWalk,
    DeepWalkFeatures,
    _LabelType,
    random_walks,
)
from graphcl.seeding import generator

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


def test_every_step_is_an_edge_and_a_node_alone_stays(graph):
    edges = set(zip(*graph.edge_index().tolist(), strict=True))
    starts = np.repeat(np.arange(graph.num_nodes), 3)
    walks = random_walks(graph.indptr, graph.indices, starts, length=8, seed=1)
    assert np.array_equal(walks[:, 0], starts)
    degree = np.diff(graph.indptr)
    for walk in walks:
        for a, b in pairwise(walk):
            assert (a, b) in edges or (degree[a] == 0 and a == b)
    lonely = Graph.from_edge_index(np.array([[0], [1]]), np.ones((3, 1)))
    assert random_walks(
        lonely.indptr, lonely.indices, np.array([2]), length=4, seed=0
    ).tolist() == [[2, 2, 2, 2]]


def test_neighbours_are_equally_likely_and_a_seed_decides():
    star = Graph.from_edge_index(np.array([[0] * 5, [1, 2, 3, 4, 5]]), np.ones((6, 1)))
    starts = np.zeros(20_000, dtype=np.int64)
    walks = random_walks(star.indptr, star.indices, starts, length=4, seed=0)
    counts = np.bincount(walks[:, [1, 3]].ravel(), minlength=6)[1:]
    # Five standard deviations of a binomial count around its mean.
    assert np.abs(counts - 8000).max() < 5 * np.sqrt(40_000 * 0.2 * 0.8)
    # Step 3 does not repeat step 1.
    assert abs((walks[:, 1] == walks[:, 3]).mean() - 0.2) < 0.02
    again = random_walks(star.indptr, star.indices, starts, length=4, seed=0)
    assert np.array_equal(walks, again)
    other = random_walks(star.indptr, star.indices, starts, length=4, seed=1)
    assert not np.array_equal(walks, other)


@pytest.fixture
def bags():
    """A path 0-1-2-3 and node 4 alone; node 3 has no words; word 1 weighs double in node 0."""
    x = np.array([[1, 2, 0], [0, 1, 1], [1, 0, 0], [0, 0, 0], [0, 1, 0]], dtype=np.float32)
    return Graph.from_edge_index(np.array([[0, 1, 2], [1, 2, 3]]), scipy.sparse.csr_array(x))


def label_types(graph):
    x, adjacency = graph_tensors(graph, device=CPU)
    shared = {"adjacency": adjacency, "draw": generator(0, "test")}
    return _LabelType(x, 3, 4, **shared), _LabelType(None, 5, 4, **shared)


def test_embeddings_are_means_over_own_and_neighbours_labels(bags):
    words, identity = label_types(bags)
    e = words.table.detach().numpy()
    h, rebuilt = (part.detach().numpy() for part in words.embeddings())
    np.testing.assert_allclose(h[0], (e[0] + 2 * e[1]) / 3, rtol=1e-5)
    np.testing.assert_allclose(h[1], (e[1] + e[2]) / 2, rtol=1e-5)
    # Node 1's neighbours 0 and 2 have 3 + 1 words between them; each counts as often as it occurs.
    np.testing.assert_allclose(rebuilt[1], (e[0] + 2 * e[1] + e[0]) / 4, rtol=1e-5)
    representation = words.representation().detach().numpy()
    np.testing.assert_allclose(representation[3], e[0], rtol=1e-5)  # no words: the neighbour's
    e = identity.table.detach().numpy()
    h, rebuilt = (part.detach().numpy() for part in identity.embeddings())
    assert np.array_equal(h, e)
    np.testing.assert_allclose(rebuilt[1], (e[0] + e[2]) / 2, rtol=1e-5)


def test_the_loss_is_that_of_plain_loops(bags):
    words, _ = label_types(bags)
    h, rebuilt = (part.detach().numpy() for part in words.embeddings())
    u = [2, 0, 1, 0, 1]
    # Ranked: 0, 1 and 2. Node 3 has no words to be right about, node 4 no neighbours.
    losses = [
        max(0, 0.5 + np.linalg.norm(rebuilt[v] - h[v]) - np.linalg.norm(rebuilt[v] - h[u[v]]))
        for v in (0, 1, 2)
    ]
    found = words.loss(torch.tensor(u), 0.5).item()
    assert found == pytest.approx(np.mean(losses), rel=1e-5)
    assert found > 0


def test_it_learns(graph):
    bags = Graph.from_edge_index(
        graph.edge_index(),
        scipy.sparse.csr_array((graph.x > 1).astype(np.float32)),
        graph.y,
        train_mask=graph.train_mask,
        val_mask=graph.val_mask,
        test_mask=graph.test_mask,
    )
    z = EPB(dim=16, epochs=50).embed(bags, seed=0, device=CPU)
    assert z.shape == (60, 32)
    assert linear_probe(z, bags).accuracy > 0.7
