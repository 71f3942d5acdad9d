import sys
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl.embedding import embed
from graphcl.errors import MissingExtraError
from graphcl.estimator.fitted import Components
from graphcl.evaluation.probe import linear_probe
from graphcl.graphs.graph import Graph
from graphcl.graphs.schema import Schema
from graphcl.graphs.tensors import graph_tensors
from graphcl.recipes import load_recipe
from graphcl.research.systems.shallow import (
    EPB,
    RANDOM_ENCODER,
    DeepWalk,
    DeepWalkFeatures,
    LabelPropagation,
    Propagation,
    RawFeatures,
    _LabelType,
    harmonic,
    random_walks,
)
from graphcl.seeding import generator
from tests.conftest import dense_adjacency

CPU = torch.device("cpu")


def test_it_is_the_power_of_the_mean(graph):
    a = dense_adjacency(graph) + np.eye(graph.num_nodes)
    a /= a.sum(1, keepdims=True)
    for scaling in ("none", "row"):
        x = graph.x / np.abs(graph.x).sum(1, keepdims=True) if scaling == "row" else graph.x
        z = Propagation(hops=3, feature_scaling=scaling).embed(graph, seed=0, device=CPU)
        np.testing.assert_allclose(z, a @ a @ a @ x, rtol=1e-4, atol=1e-6)


def test_no_hops_and_raw_features_are_the_features_dense_or_sparse(graph):
    sparse = Graph.from_edge_index(graph.edge_index(), scipy.sparse.csr_array(graph.x))
    for one in (graph, sparse):
        z = Propagation(hops=0, feature_scaling="none").embed(one, seed=0, device=CPU)
        assert np.array_equal(z, graph.x)
        assert np.array_equal(RawFeatures().embed(one, seed=0, device=CPU), graph.x)


@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed", "ppi"])
def test_it_is_the_encoder_of_the_shipped_recipe(name):
    method, recipe = RANDOM_ENCODER.method(name), load_recipe(name)
    for field in ("encoder", "layers", "dim", "feature_scaling"):
        assert getattr(method, field) == getattr(recipe, field)


def test_its_weights_are_those_training_starts_from(graph):
    recipe = load_recipe("cora").replace(dim=8)
    encoder = Components(recipe).new_encoder(Schema.plain(graph.num_features), seed=3)
    untrained = embed(
        encoder, *graph_tensors(graph, device=CPU, feature_scaling=recipe.feature_scaling)
    )
    z = RANDOM_ENCODER.method("cora", dim=8).embed(graph, seed=3, device=CPU)
    assert np.array_equal(z, untrained)


def test_the_harmonic_function_is_the_limit_of_averaging(graph):
    a = dense_adjacency(graph)
    a[7], a[:, 7] = 0, 0  # a node that no label reaches
    labelled = np.array([0, 5, 11, 20])
    values = np.eye(3)[[0, 1, 2, 1]]
    f = np.full((len(a), 3), 1 / 3)
    for _ in range(3000):
        f = np.divide(a @ f, a.sum(1, keepdims=True), out=f.copy(), where=a.sum(1)[:, None] > 0)
        f[labelled] = values
    found = harmonic(scipy.sparse.csr_array(a), labelled, values, elsewhere=np.full(3, 1 / 3))
    np.testing.assert_allclose(found, f, atol=1e-6)


def test_labels_reach_along_edges_and_training_labels_stay():
    path = np.array([[0, 1, 2, 3], [1, 2, 3, 4]])
    y = np.array([0, -1, -1, -1, 1, -1])  # node 5 stands alone
    graph = Graph.from_edge_index(
        path, np.ones((6, 1)), y, train_mask=[0, 4], val_mask=[1], test_mask=[2, 3]
    )
    predicted = LabelPropagation(class_mass=False).fit_predict(graph, seed=0, device=CPU)
    assert predicted[[0, 1, 3, 4]].tolist() == [0, 0, 1, 1]


def test_class_mass_gives_each_class_its_share():
    # Two stars of centres 0 and 5, joined by the edges 0-5 and 0-7; labelled are 0 and the leaf 6.
    edges = np.array([[0, 0, 0, 0, 5, 5, 0, 0], [1, 2, 3, 4, 6, 7, 5, 7]])
    y = np.array([0, 0, 0, 0, 0, 1, 1, 1])
    masks = {"train_mask": [0, 6], "val_mask": [1], "test_mask": [5, 7]}
    graph = Graph.from_edge_index(edges, np.ones((8, 1)), y, **masks)
    plain = LabelPropagation(class_mass=False).fit_predict(graph, seed=0, device=CPU)
    scaled = LabelPropagation(class_mass=True).fit_predict(graph, seed=0, device=CPU)
    # Class 1 has 0.4 at node 5 and 0.2 at node 7, and so 0.6 in all against 5.4 of class 0.
    assert plain[[5, 7]].tolist() == [0, 0]
    assert scaled.tolist() == y.tolist()


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
