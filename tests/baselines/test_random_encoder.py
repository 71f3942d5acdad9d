import numpy as np
import pytest
import torch

from graphcl.baselines.random_encoder import BASELINE
from graphcl.embedding import embed
from graphcl.estimator.parts import Parts
from graphcl.graphs.tensors import graph_tensors
from graphcl.recipes import load_recipe


@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed", "ppi"])
def test_it_is_the_encoder_of_the_shipped_recipe(name):
    method, recipe = BASELINE.method(name), load_recipe(name)
    for field in ("encoder", "layers", "dim", "feature_scaling"):
        assert getattr(method, field) == getattr(recipe, field)


def test_its_weights_are_those_training_starts_from(graph):
    cpu = torch.device("cpu")
    recipe = load_recipe("cora").with_values(dim=8)
    encoder = Parts(recipe).new_encoder(graph.num_features, seed=3)
    untrained = embed(
        encoder, *graph_tensors(graph, device=cpu, feature_scaling=recipe.feature_scaling)
    )
    z = BASELINE.method("cora", dim=8).embed(graph, seed=3, device=cpu)
    assert np.array_equal(z, untrained)
