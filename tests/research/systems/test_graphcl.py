import numpy as np
import pytest
import torch

from graphcl.errors import ParameterError, RecipeError
from graphcl.estimator import GraphCL
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.graphcl import settings_of

CPU = torch.device("cpu")


def test_it_is_the_estimator(graph, collection):
    for data in (graph, collection):
        method = SYSTEMS["graphcl"].method("", dim="8", epochs=2, layers=1)
        seen = []
        z = method.embed(data, seed=3, device=CPU, on_epoch=lambda *done: seen.append(done))  # noqa: B023
        model = GraphCL(method.recipe, seed=3, device="cpu").fit(data)
        rows = model.transform(data)
        assert np.array_equal(z, np.concatenate(rows) if isinstance(rows, list) else rows)
        assert seen == [(1, 2), (2, 2)]
        assert method.costs["loss"] == model.history_[-1].loss
        assert method.costs["recipe_hash"] == method.recipe.hash


def test_its_settings_are_the_datasets_recipe():
    assert settings_of(SYSTEMS["graphcl"].method("ppi"))["encoder"] == "residual"
    assert settings_of(SYSTEMS["graphcl"].method("", layers="3"))["layers"] == 3
    with pytest.raises((ParameterError, RecipeError), match="temprature"):
        SYSTEMS["graphcl"].method("", temprature=0.1)
