"""Comparisons: terms against scikit-learn's scores, and how often chance is called better."""

import numpy as np
import pytest
from sklearn.metrics import f1_score, r2_score, roc_auc_score

from graphcl.evaluation.paired import LEVEL, chance_of_gain, first_half, score_terms


@pytest.mark.parametrize("ties", [False, True])
def test_the_mean_of_the_terms_is_the_score(ties):
    random = np.random.default_rng(0)
    risk, y, weight = random.random(60), random.random(60) < 0.3, random.random(60)
    risk = risk.round(1) if ties else risk
    p, targets = np.stack([1 - risk, risk], axis=1), np.stack([~y, y], axis=1).astype(int)
    for some in (None, weight):
        area = np.average(score_terms("ROC-AUC", p, targets, some), weights=some)
        assert area == pytest.approx(roc_auc_score(y, risk, sample_weight=some))
        right = np.average(score_terms("accuracy", p, targets, some), weights=some)
        assert right == pytest.approx(np.average((risk > 0.5) == y, weights=some))
    labels, chance = random.integers(0, 2, (60, 4)), random.random((60, 4))
    micro = score_terms("micro-F1", chance, labels).mean()
    assert micro == pytest.approx(f1_score(labels, chance > 0.5, average="micro"))
    values, found = random.normal(size=(2, 60)) * 1e200
    assert score_terms("R²", found, values).mean() == pytest.approx(
        r2_score(values / 1e200, found / 1e200)
    )


def test_an_equal_model_is_rarely_called_better_and_a_better_one_often():
    targets = np.eye(2, dtype=int)[np.arange(60) % 2]

    def share_called_better(ours, rival):
        """Of models that tell the classes apart by so many deviations."""
        random = np.random.default_rng(0)
        called = []
        for draw in range(60):
            terms = []
            for apart in (rival, ours):
                risk = apart * targets[:, 1] + random.normal(size=60)
                terms.append(score_terms("ROC-AUC", np.stack([-risk, risk], axis=1), targets))
            called.append(chance_of_gain(terms[0] - terms[1], seed=draw) <= LEVEL)
        return np.mean(called)

    assert share_called_better(ours=1, rival=1) <= LEVEL
    assert share_called_better(ours=0, rival=3) >= 0.9
    assert chance_of_gain(np.zeros(9)) == 1


def test_half_of_every_class_compares():
    targets = np.eye(3, dtype=int)[np.repeat([0, 1, 2], [21, 6, 2])]
    compares = first_half(targets, "classes", np.random.default_rng(0))
    assert np.abs(targets[compares].sum(axis=0) - targets[~compares].sum(axis=0)).max() <= 1
    numbers = first_half(np.arange(9.0), "number", np.random.default_rng(0))
    assert numbers.sum() in (4, 5)
