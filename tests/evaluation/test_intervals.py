"""Intervals of shares and ROC-AUCs: their equations, and how often they hold the truth."""

import numpy as np
import pytest
from scipy.stats import t
from sklearn.metrics import roc_auc_score

from graphcl.evaluation.intervals import area_interval, effective_nodes, share_interval


@pytest.mark.parametrize(("share", "nodes"), [(0.0, 8), (0.3, 10), (0.85, 60), (1.0, 12)])
def test_the_ends_of_a_share_are_as_many_deviations_away_as_student_says(share, nodes):
    low, high = share_interval(share, nodes)
    away = t.ppf(0.975, nodes - 1)
    for end in (low, high):
        if 0 < end < 1:
            assert abs(share - end) == pytest.approx(away * np.sqrt(end * (1 - end) / nodes))
    assert 0 <= low <= share <= high <= 1
    assert high - low > 0.1


def test_a_share_is_held_as_often_as_it_should_be():
    random = np.random.default_rng(0)
    for nodes, share in ((20, 0.7), (60, 0.85), (150, 0.95)):
        found = random.binomial(nodes, share, 500) / nodes
        held = [low <= share <= high for low, high in (share_interval(p, nodes) for p in found)]
        assert 0.92 <= np.mean(held) <= 0.985


def test_weights_leave_fewer_nodes():
    classes = np.repeat([0, 1], [70, 10])
    right = np.ones(80)
    assert effective_nodes(right, np.full(80, 3.0), classes) == 80
    weight = np.where(classes == 1, 0.5 / 10, 0.5 / 70)
    shares = np.array([71 / 72, 11 / 12])
    deviation = np.sqrt((0.25 * shares * (1 - shares) / [70, 10]).sum())
    mean = shares.mean()
    fewer = effective_nodes(right, weight, classes)
    assert np.sqrt(mean * (1 - mean) / fewer) == pytest.approx(deviation)
    assert fewer < 30
    # Of the rare class alone, ten nodes count.
    assert effective_nodes(right, np.where(classes == 1, 1, 1e-9), classes) == pytest.approx(
        10, 0.01
    )


def test_an_area_has_an_interval_that_holds_it():
    random = np.random.default_rng(0)
    held = []
    y = np.repeat([0, 1], [40, 15])
    truth = 0.8555  # of normal scores that are 1.5 deviations apart
    for _ in range(400):
        area = float(roc_auc_score(y, random.normal(size=55) + 1.5 * y))
        low, high = area_interval(area, 15, 40)
        held.append(low <= truth <= high)
    assert 0.93 <= np.mean(held) <= 0.99
    low, high = area_interval(1.0, 6, 6)
    assert high == 1
    assert low < 0.9
    assert area_interval(0.5, 0, 5) == (0, 1)
