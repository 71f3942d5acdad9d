"""Promised precisions: how often they are kept where the true precision is known."""

import numpy as np
import pytest

from graphcl.evaluation.promises import SURE, promised_thresholds


def draw(random, nodes):
    """Probabilities that are right: a node with risk p is wanted with probability p."""
    risk = random.beta(1.2, 1.5, nodes)
    return risk, random.random(nodes) < risk


def test_promises_are_kept_whichever_threshold_is_chosen():
    random = np.random.default_rng(0)
    many = np.sort(random.beta(1.2, 1.5, 100_000))
    above = np.cumsum(many[::-1])[::-1] / np.arange(len(many), 0, -1)

    def true_precision(threshold):
        return above[min(np.searchsorted(many, threshold), len(many) - 1)]

    all_kept, lowest_kept, told = [], [], 0
    for _ in range(150):
        promises = promised_thresholds(*draw(random, 100), likely=0.7)
        all_kept.append(all(true_precision(one.threshold) >= one.precision for one in promises))
        good = [one for one in promises if one.precision >= 0.7]
        if good:
            told += 1
            lowest_kept.append(true_precision(good[-1].threshold) >= 0.7)
    assert np.mean(all_kept) >= SURE - 0.05
    assert told >= 30
    assert np.sum(np.logical_not(lowest_kept)) <= (1 - SURE) * 150


def test_thresholds_descend_and_equal_probabilities_stay_together():
    random = np.random.default_rng(1)
    risk, truth = draw(random, 80)
    promises = promised_thresholds(risk.round(1), truth)
    thresholds = [one.threshold for one in promises]
    assert thresholds == sorted(set(thresholds), reverse=True)
    assert promised_thresholds(np.full(7, 0.5), truth[:7])[0].threshold == 0.5
    assert promised_thresholds(risk[:2], truth[:2]) == []


def test_weights_of_few_nodes_promise_less():
    risk, truth = np.linspace(1, 0, 40), np.ones(40, bool)
    even = promised_thresholds(risk, truth)[-1].precision
    weight = np.where(np.arange(40) < 4, 50.0, 1.0)
    assert promised_thresholds(risk, truth, weight)[-1].precision < even - 0.1
    assert promised_thresholds(risk, ~truth)[-1].precision == pytest.approx(0)
