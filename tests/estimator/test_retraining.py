"""Training goes on from the weights, on a graph that has grown."""

import numpy as np
import pytest
import torch

from graphcl.errors import ParameterError
from graphcl.estimator import GraphCL
from graphcl.estimator.inference import embed_fitted
from graphcl.estimator.retraining import retrain
from tests.conftest import random_graph

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def fitted():
    return GraphCL(dim=12, epochs=20, device="cpu").fit(random_graph())._fitted


def weights(one):
    return {name: value.clone() for name, value in one.encoder.state_dict().items()}


def test_it_goes_on_from_the_weights(fitted):
    before = weights(fitted)
    grown = random_graph(1, num_nodes=80)
    after = retrain(fitted, grown, epochs=1, device=CPU)
    moved = [
        float((after.encoder.state_dict()[name] - one).abs().max()) for name, one in before.items()
    ]
    steps = 0.1  # Adam moves a weight by about the learning rate in a step
    assert max(moved) > 0
    trained = [
        float((one.data - before[name]).abs().max())
        for name, one in after.encoder.named_parameters()
    ]
    assert max(trained) < steps
    assert all(
        torch.equal(value, before[name]) for name, value in fitted.encoder.state_dict().items()
    )
    assert [one.epoch for one in after.history] == list(range(1, len(fitted.history) + 2))
    assert after.seconds > fitted.seconds
    assert after.scaling is fitted.scaling
    assert len(fitted.history) == 20


def test_a_tenth_of_the_epochs_unless_told(fitted):
    assert len(retrain(fitted, random_graph(), device=CPU).history) == 22
    with pytest.raises(ParameterError, match="epochs must be at least 1"):
        retrain(fitted, random_graph(), epochs=0, device=CPU)


def test_the_same_again_gives_the_same_bits_and_labels_do_not_matter(fitted):
    graph = random_graph(2)
    other = graph.replace(y=np.roll(graph.y, 7))
    both = [weights(retrain(fitted, one, epochs=2, device=CPU)) for one in (graph, other)]
    assert all(torch.equal(value, both[1][name]) for name, value in both[0].items())


def test_other_views_are_drawn_than_before(fitted):
    graph = random_graph()
    once = retrain(fitted, graph, epochs=1, device=CPU)
    twice = retrain(once, graph, epochs=1, device=CPU)
    assert twice.history[-1].epoch == 22
    assert not np.array_equal(
        embed_fitted(once, graph, device=CPU), embed_fitted(twice, graph, device=CPU)
    )
