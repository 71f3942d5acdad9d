import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl.embedding import embed
from graphcl.estimator.parts import Parts
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.recipes import load_recipe
from graphcl.research.systems.untrained import RANDOM_ENCODER, Propagation, RawFeatures
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
    recipe = load_recipe("cora").with_values(dim=8)
    encoder = Parts(recipe).new_encoder(graph.num_features, seed=3)
    untrained = embed(
        encoder, *graph_tensors(graph, device=CPU, feature_scaling=recipe.feature_scaling)
    )
    z = RANDOM_ENCODER.method("cora", dim=8).embed(graph, seed=3, device=CPU)
    assert np.array_equal(z, untrained)
