"""Measures of predictions: against plain loops and scikit-learn."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import f1_score, log_loss

from graphcl.evaluation.prediction_error import BINS, calibration_error, measure


def one_hot(y, classes):
    return np.eye(classes, dtype=np.int64)[y]


def test_the_calibration_error_is_that_of_a_plain_loop():
    random = np.random.default_rng(0)
    probability = softmax(random.normal(size=(500, 4)) * 2, axis=1)
    y = random.integers(0, 4, 500)
    expected = 0.0
    for group in range(BINS):
        members = [
            row
            for row in range(500)
            if group / BINS <= probability[row].max() < (group + 1) / BINS
            or (group == BINS - 1 and probability[row].max() == 1)
        ]
        if members:
            confidence = np.mean([probability[row].max() for row in members])
            right = np.mean([probability[row].argmax() == y[row] for row in members])
            expected += len(members) / 500 * abs(confidence - right)
    assert calibration_error(probability, one_hot(y, 4), False) == pytest.approx(expected)


def test_certain_and_right_has_no_calibration_error_and_certain_and_wrong_all_of_it():
    certain = one_hot(np.array([0, 1, 2, 0]), 3).astype(float)
    assert calibration_error(certain, one_hot(np.array([0, 1, 2, 0]), 3), False) == 0
    assert calibration_error(certain, one_hot(np.array([1, 2, 0, 2]), 3), False) == 1
    half = np.full((4, 2), 0.5)
    assert calibration_error(half, np.array([[1, 0], [0, 1], [1, 0], [0, 1]]), True) == 0


def test_measures_are_those_of_scikit_learn():
    random = np.random.default_rng(0)
    probability, y = softmax(random.normal(size=(200, 3)), axis=1), random.integers(0, 3, 200)
    found = measure(probability, one_hot(y, 3), False, nodes=200)
    assert found.accuracy == found.micro_f1 == (probability.argmax(1) == y).mean()
    assert found.log_loss == pytest.approx(log_loss(y, probability))
    assert found.macro_f1 == pytest.approx(f1_score(y, probability.argmax(1), average="macro"))
    assert found.majority == np.bincount(y).max() / 200
    assert found.standard_error == pytest.approx(np.std(probability.argmax(1) == y) / 200**0.5)
    labels, chance = random.integers(0, 2, (100, 4)), random.random((100, 4))
    found = measure(chance, labels, True, nodes=100)
    assert found.micro_f1 == pytest.approx(f1_score(labels, chance > 0.5, average="micro"))
    assert found.log_loss == pytest.approx(log_loss(labels.ravel(), chance.ravel()))
