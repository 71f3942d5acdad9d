import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl.embedding import embed
from graphcl.estimator.components import Components
from graphcl.graphs.graph import Graph
from graphcl.graphs.schema import Schema
from graphcl.graphs.tensors import graph_tensors
from graphcl.recipes import load_recipe
from graphcl.research.systems.untrained import (
    RANDOM_ENCODER,
    LabelPropagation,
    Propagation,
    RawFeatures,
    harmonic,
)
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
