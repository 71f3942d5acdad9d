import math

import numpy as np
import torch

from graphcl.evaluation import linear_probe
from graphcl.research.systems.cca_ssg import BASELINE, CCASSG, cca_loss, standardise

CPU = torch.device("cpu")


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


def test_the_loss_is_that_of_plain_loops(generator):
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


def test_it_learns(graph):
    z = CCASSG(dim=16, epochs=40, learning_rate=0.01).embed(graph, seed=0, device=CPU)
    assert z.shape == (graph.num_nodes, 16)
    assert linear_probe(z, graph).accuracy > 0.7


def test_settings_are_the_published_ones():
    assert BASELINE.method("citeseer").layers == 1
    assert BASELINE.method("cora").edge_drop == 0.4
    assert BASELINE.method("pubmed").feature_drop == 0.3
