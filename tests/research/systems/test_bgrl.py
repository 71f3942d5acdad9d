import math

import numpy as np
import pytest
import torch
from torch import nn

from graphcl.evaluation import linear_probe
from graphcl.research.systems import bgrl
from graphcl.research.systems.bgrl import (
    BGRL,
    bootstrap_loss,
    follow,
    follow_rate_at,
    learning_rate_at,
)

CPU = torch.device("cpu")


def test_the_loss_is_that_of_plain_loops_and_targets_get_no_gradient(generator):
    p_1, p_2, h_1, h_2 = (
        torch.randn(5, 3, generator=generator, dtype=torch.float64, requires_grad=True)
        for _ in range(4)
    )
    expected = 2.0
    for predicted, target in ((p_1, h_2), (p_2, h_1)):
        for u in range(5):
            p, h = predicted[u].tolist(), target[u].tolist()
            dot = sum(a * b for a, b in zip(p, h, strict=True))
            expected -= dot / (math.hypot(*p) * math.hypot(*h)) / 5
    loss = bootstrap_loss(p_1, p_2, h_1, h_2)
    assert math.isclose(loss.item(), expected, rel_tol=1e-10)
    loss.backward()
    assert (h_1.grad, h_2.grad) == (None, None)
    assert p_1.grad.abs().sum() > 0


def test_the_target_is_the_moving_average():
    target, online = nn.Linear(3, 2), nn.Linear(3, 2)
    expected = [parameter.detach().clone().numpy() for parameter in target.parameters()]
    for rate in (0.01, 0.5, 0.25):
        for place, parameter in enumerate(online.parameters()):
            with torch.no_grad():
                parameter.add_(1)
            weight = parameter.detach().numpy()
            expected[place] = (1 - rate) * expected[place] + rate * weight
        follow(target, online, torch.tensor(rate))
    for found, wanted in zip(target.parameters(), expected, strict=True):
        np.testing.assert_allclose(found.detach(), wanted, rtol=1e-5)


def test_the_schedules_are_the_papers():
    rates = [learning_rate_at(step, 100, 10) for step in range(100)]
    assert rates[:3] == [0, 0.1, 0.2]
    assert rates[10] == max(rates) == 1
    assert math.isclose(rates[55], 0.5)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert math.isclose(follow_rate_at(0, 100, 0.99), 0.01)
    assert math.isclose(follow_rate_at(50, 100, 0.99), 0.005)
    assert follow_rate_at(100, 100, 0.99) == 0
    assert learning_rate_at(0, 5, 0) == 1


def test_it_learns(graph):
    method = BGRL(hidden=32, dim=16, epochs=60, learning_rate=0.01, feature_scaling="none")
    z = method.embed(graph, seed=0, device=CPU)
    assert z.shape == (graph.num_nodes, 16)
    assert linear_probe(z, graph).accuracy > 0.7


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_target_starts_elsewhere_and_follows_by_the_momentum(graph, monkeypatch, momentum):
    built = []
    build = bgrl.Convolutions

    def spy(*arguments, **keywords):
        built.append(build(*arguments, **keywords))
        built[-1].start = [p.detach().clone() for p in built[-1].parameters()]
        return built[-1]

    monkeypatch.setattr(bgrl, "Convolutions", spy)
    # With all of one step in the warm-up, the learning rate is 0: the online network stands still.
    BGRL(hidden=4, dim=3, epochs=1, warm_up=0.99, momentum=momentum).embed(
        graph, seed=0, device=CPU
    )
    online, target = built
    assert not torch.equal(online.start[0], target.start[0])
    for fast, slow, start in zip(
        online.parameters(), target.parameters(), target.start, strict=True
    ):
        torch.testing.assert_close(slow, momentum * start + (1 - momentum) * fast)
