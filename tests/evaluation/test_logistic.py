import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from graphcl.evaluation.logistic import fit_logistic_batch

STRENGTHS = (1e-4, 1e-2, 1.0, 100.0)


def problem(rows, dim, classes, seed):
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, rows)
    z = random.normal(size=(rows, dim)) + 0.8 * np.eye(classes, dim)[y] + 0.5
    return z * np.linspace(0.1, 3, dim), y


def tensors(z, targets):
    return torch.tensor(z, dtype=torch.float64), torch.tensor(targets, dtype=torch.float64)


@pytest.mark.parametrize(("rows", "dim"), [(80, 6), (20, 50)])  # more rows than columns, and fewer
def test_it_is_scikit_learns_regression_for_every_strength(rows, dim):
    many = [problem(rows + 7 * number, dim, 3, number) for number in range(2)]
    fitted = fit_logistic_batch(
        [tensors(z, np.eye(3)[y]) for z, y in many], STRENGTHS, softmax=True, steps=2000
    )
    for (z, y), one in zip(many, fitted, strict=True):
        for number, strength in enumerate(STRENGTHS):
            theirs = LogisticRegression(C=strength, max_iter=100_000, tol=1e-10).fit(z, y)
            ours = one.scores(torch.tensor(z))[number].softmax(1)
            np.testing.assert_allclose(ours, theirs.predict_proba(z), atol=1e-3)


def test_two_classes_are_one_sigmoid():
    z, y = problem(60, 5, 2, 0)
    (one,) = fit_logistic_batch([tensors(z, y[:, None])], STRENGTHS, softmax=False, steps=2000)
    for number, strength in enumerate(STRENGTHS):
        theirs = LogisticRegression(C=strength, max_iter=100_000, tol=1e-10).fit(z, y)
        ours = one.scores(torch.tensor(z))[number].sigmoid()
        np.testing.assert_allclose(ours[:, 0], theirs.predict_proba(z)[:, 1], atol=1e-3)


def test_labels_are_fitted_apart_and_problems_do_not_touch_each_other():
    z, y = problem(50, 4, 2, 1)
    labels = np.stack([y, 1 - y, np.arange(50) % 2], 1)
    other = tensors(*[part[:30] for part in (z, labels)])
    together = fit_logistic_batch([tensors(z, labels), other], STRENGTHS, softmax=False)[0]
    for label in range(3):
        (alone,) = fit_logistic_batch([tensors(z, labels[:, [label]])], STRENGTHS, softmax=False)
        torch.testing.assert_close(
            together.weight[:, :, [label]], alone.weight, rtol=1e-2, atol=1e-2
        )


def test_its_usual_steps_are_enough_for_predictions():
    z, y = problem(300, 20, 4, 2)
    (one,) = fit_logistic_batch([tensors(z, np.eye(4)[y])], STRENGTHS, softmax=True)
    for number, strength in enumerate(STRENGTHS):
        theirs = LogisticRegression(C=strength, max_iter=100_000).fit(z, y).predict(z)
        ours = one.scores(torch.tensor(z))[number].argmax(1).numpy()
        assert (ours == theirs).mean() > 0.99


def test_constant_columns_do_no_harm():
    z, y = problem(40, 3, 2, 3)
    z[:, 1] = 5
    (one,) = fit_logistic_batch([tensors(z, y[:, None])], STRENGTHS, softmax=False)
    assert bool(one.weight.isfinite().all())
    assert bool(one.bias.isfinite().all())
    np.testing.assert_allclose(one.weight[:, 1], 0, atol=1e-6)
