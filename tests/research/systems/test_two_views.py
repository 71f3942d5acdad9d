import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import rows
from graphcl.evaluation.probe import linear_probe
from graphcl.graphs.tensors import graph_tensors
from graphcl.research.systems import SYSTEMS, two_views
from graphcl.research.systems.two_views import (
    BGRL,
    CCASSG,
    GRACE,
    bootstrap_loss,
    cca_loss,
    follow,
    follow_rate_at,
    grace_loss,
    learning_rate_at,
    standardise,
)

CPU = torch.device("cpu")
ROWS = Path(__file__).parents[3] / "benchmarks/results/search_grace.jsonl"


def test_the_loss_is_that_of_plain_loops(generator):
    u, v = (torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in range(2))

    def cosine(a, b):
        return float(a @ b / (a.norm() * b.norm()))

    def one(a, b, i):
        positive = math.exp(cosine(a[i], b[i]) / 0.4)
        between = sum(math.exp(cosine(a[i], b[k]) / 0.4) for k in range(6) if k != i)
        within = sum(math.exp(cosine(a[i], a[k]) / 0.4) for k in range(6) if k != i)
        return -math.log(positive / (positive + between + within))

    expected = sum(one(u, v, i) + one(v, u, i) for i in range(6)) / 12
    assert math.isclose(grace_loss(u, v, 0.4).item(), expected, rel_tol=1e-10)


def test_it_learns(graph):
    losses = []
    method = GRACE(dim=32, epochs=60, learning_rate=0.01, feature_scaling="none")
    z = method.embed(graph, seed=0, device=CPU, on_epoch=lambda done, _: losses.append(done))
    assert losses == list(range(1, 61))
    assert z.shape == (graph.num_nodes, 32)
    assert linear_probe(z, graph).accuracy > 0.7


def test_settings_are_the_published_ones_or_chosen_on_validation():
    published = SYSTEMS["grace"].method("")
    assert (published.dim, published.learning_rate, published.epochs) == (128, 5e-4, 200)
    assert SYSTEMS["grace"].method("pubmed").epochs == 1500
    found = defaultdict(list)
    for row in rows.read(ROWS):
        found[row["graph"], tuple(sorted(row["settings"].items()))].append(row["val_accuracy"])
    for graph in ("cora", "citeseer"):
        means = {
            settings: sum(scores) / len(scores)
            for (name, settings), scores in found.items()
            if name == graph and len(scores) >= 3
        }
        best = dict(max(means, key=means.get))
        assert {key: getattr(SYSTEMS["grace"].method(graph), key) for key in best} == best


def test_negative_and_zero_rows_do_no_harm(graph):
    x = graph.x.copy()
    x[5] = 0
    z = GRACE(dim=4, epochs=3).embed(graph.replace(x=x), seed=0, device=CPU)
    assert np.isfinite(z).all()


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


def test_bgrl_it_learns(graph):
    method = BGRL(hidden=32, dim=16, epochs=60, learning_rate=0.01, feature_scaling="none")
    z = method.embed(graph, seed=0, device=CPU)
    assert z.shape == (graph.num_nodes, 16)
    assert linear_probe(z, graph).accuracy > 0.7


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_target_starts_elsewhere_and_follows_by_the_momentum(graph, monkeypatch, momentum):
    built = []
    build = two_views.Convolutions

    def spy(*arguments, **keywords):
        built.append(build(*arguments, **keywords))
        built[-1].start = [p.detach().clone() for p in built[-1].parameters()]
        return built[-1]

    monkeypatch.setattr(two_views, "Convolutions", spy)
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


CLOTHED = [(GRACE, {}), (BGRL, {"predictor": 8}), (CCASSG, {})]


@pytest.mark.parametrize(("system", "more"), CLOTHED)
def test_beside_is_a_plain_concatenation(graph, system, more):
    alone = system(dim=8, epochs=3, **more).embed(graph, seed=0, device=CPU)
    both = system(dim=8, epochs=3, beside=True, **more).embed(graph, seed=0, device=CPU)
    assert both.shape == (graph.num_nodes, 16)
    for part in (both[:, :8], both[:, 8:]):
        np.testing.assert_allclose(part.mean(0), 0, atol=1e-5)
        assert np.square(part).sum(1).mean() == pytest.approx(1, rel=1e-4)
    centred = alone - alone.mean(0)
    expected = centred / np.sqrt(np.square(centred).sum(1).mean())
    np.testing.assert_allclose(both[:, 8:], expected, rtol=1e-3, atol=1e-5)
    x = graph_tensors(graph, device=CPU, feature_scaling=system().feature_scaling)[0].numpy()
    own = np.linalg.lstsq(np.c_[x, np.ones(len(x))], both[:, :8], rcond=None)[0]
    np.testing.assert_allclose(np.c_[x, np.ones(len(x))] @ own, both[:, :8], atol=1e-4)


@pytest.mark.parametrize(("system", "more"), CLOTHED)
def test_our_encoder_is_trained_in_place_of_convolutions(graph, system, more, monkeypatch):
    built = []
    plain = two_views.ResidualEncoder

    def spy(*arguments, **keywords):
        built.append(plain(*arguments, **keywords))
        built[-1].before = [p.detach().clone() for p in built[-1].parameters()]
        return built[-1]

    monkeypatch.setattr(two_views, "ResidualEncoder", spy)
    method = system(dim=8, epochs=30, encoder="residual", learning_rate=0.01, **more)
    z = method.embed(graph, seed=0, device=CPU)
    online = built[0]
    assert [layer.normalisation is not None for layer in online.layer_specs()] == [True, False]
    assert any(
        not torch.equal(now, before)
        for now, before in zip(online.parameters(), online.before, strict=True)
    )
    x, adjacency = graph_tensors(graph, device=CPU, feature_scaling=system().feature_scaling)
    with torch.no_grad():
        np.testing.assert_array_equal(online(x, adjacency).numpy(), z)
    assert linear_probe(z, graph).accuracy > 0.5


def tables(generator):
    return [torch.randn(7, 3, generator=generator, dtype=torch.float64) for _ in range(2)]


def test_columns_are_standardised(generator):
    h, _ = tables(generator)
    z = standardise(3 * h + 5)
    for k in range(3):
        column = [float(value) for value in h[:, k]]
        mean = sum(column) / 7
        deviation = math.sqrt(sum((value - mean) ** 2 for value in column) / 6)
        expected = [(value - mean) / deviation for value in column]
        np.testing.assert_allclose(z[:, k], expected, rtol=1e-10)


def test_a_constant_column_becomes_zeros_and_has_a_finite_gradient():
    h = torch.ones(5, 2, requires_grad=True)
    z = standardise(h)
    assert torch.equal(z, torch.zeros(5, 2))
    z.sum().backward()
    assert bool(h.grad.isfinite().all())


def test_cca_ssg_the_loss_is_that_of_plain_loops(generator):
    a, b = tables(generator)
    alike = -sum(float(a[u, k] * b[u, k]) for u in range(7) for k in range(3)) / 7
    apart = 0.0
    for z in (a, b):
        for i in range(3):
            for j in range(3):
                correlation = sum(float(z[u, i] * z[u, j]) for u in range(7)) / 7
                apart += (correlation - (i == j)) ** 2
    assert math.isclose(cca_loss(a, b, 0.25).item(), alike + 0.25 * apart, rel_tol=1e-10)


def test_it_is_the_papers_loss_up_to_a_constant(generator):
    """The paper has Z / √N of deviation 1 (n) and ‖Z₁ − Z₂‖²; half of it differs by a constant."""
    found = []
    for _ in range(2):
        a, b = ((h - h.mean(0)) / h.std(0, correction=0) for h in tables(generator))
        scaled_a, scaled_b = a / math.sqrt(7), b / math.sqrt(7)
        same = torch.eye(3, dtype=torch.float64)
        apart = sum((z.T @ z - same).square().sum() for z in (scaled_a, scaled_b))
        paper = (scaled_a - scaled_b).square().sum() / 2 + 0.1 * apart
        found.append(float(paper - cca_loss(a, b, 0.1)))
    assert math.isclose(found[0], found[1], rel_tol=1e-10)
    assert math.isclose(found[0], 3, rel_tol=1e-10)


def test_cca_ssg_it_learns(graph):
    z = CCASSG(dim=16, epochs=40, learning_rate=0.01).embed(graph, seed=0, device=CPU)
    assert z.shape == (graph.num_nodes, 16)
    assert linear_probe(z, graph).accuracy > 0.7


def test_settings_are_the_published_ones():
    assert SYSTEMS["cca-ssg"].method("citeseer").layers == 1
    assert SYSTEMS["cca-ssg"].method("cora").edge_drop == 0.4
    assert SYSTEMS["cca-ssg"].method("pubmed").feature_drop == 0.3
