"""Plain models: scikit-learn's own cross-validation as witness, and labels that say nothing."""

import warnings

import numpy as np
import pytest
import scipy.sparse
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_selection import SelectKBest, f_classif
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from graphcl.answers import rivals as module
from graphcl.answers.rivals import STRENGTHS, plain_rivals
from graphcl.evaluation.folds import deal
from graphcl.evaluation.prediction_error import measure

REGRESSION, TREES, BOTH = "logistic regression", "boosted trees", "boosted trees with neighbours"


def example(seed, n, wide=6, classes=2):
    """Columns, the means of neighbours, and classes that both say something about."""
    random = np.random.default_rng(seed)
    x, means = random.normal(size=(2, n, wide))
    y = np.digitize(x[:, 0] + means[:, 1] + random.normal(size=n) / 4, [-0.7, 0.7][: classes - 1])
    return x, means, np.eye(classes, dtype=np.int64)[y]


def by_name(found):
    return {one.name: one for one in found}


@threadpool_limits.wrap(limits=1)
def test_held_out_answers_are_those_of_a_cross_validation_by_hand():
    x, means, targets = example(0, 80, classes=3)
    x = np.hstack([x, np.random.default_rng(1).normal(size=(80, 150))])  # trees choose among these
    found, y = (
        by_name(plain_rivals(x, means, targets, kind="classes", seed=3)),
        targets.argmax(axis=1),
    )
    assert list(found) == ["majority", REGRESSION, TREES, BOTH]
    fold = deal(y, module.FOLDS, np.random.default_rng(3))
    for number in range(module.FOLDS):
        learn, asked = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        shares = targets[learn].mean(axis=0)
        assert found["majority"].held_out[asked] == pytest.approx(np.tile(shares, (len(asked), 1)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            regression = LogisticRegressionCV(
                Cs=STRENGTHS, cv=3, scoring="neg_log_loss", tol=1e-3
            ).fit(StandardScaler().fit_transform(x[learn]), y[learn])
        scaled = StandardScaler().fit(x[learn]).transform(x[asked])
        assert found[REGRESSION].held_out[asked] == pytest.approx(regression.predict_proba(scaled))
        for name, rows in ((TREES, x), (BOTH, np.hstack([x, means]))):
            best = SelectKBest(f_classif, k=128).fit(rows[learn], y[learn])
            options = {"max_iter": 50, "max_leaf_nodes": 8, "learning_rate": 0.2}
            options |= {"l2_regularization": 1, "min_samples_leaf": len(learn) // 20}
            trees = HistGradientBoostingClassifier(**options, random_state=3)
            trees.fit(best.transform(rows[learn]), y[learn])
            expected = trees.predict_proba(best.transform(rows[asked]))
            assert found[name].held_out[asked] == pytest.approx(expected)
    right = {n: measure(o.held_out, targets, False, nodes=80).accuracy for n, o in found.items()}
    assert right[BOTH] > right[TREES] > right["majority"]


def test_numbers_have_a_median_and_ridge_regression():
    x, means, _ = example(0, 400)
    values = 3 * x[:, 0] - x[:, 1] + means[:, 0] + np.random.default_rng(1).normal(size=400) / 2
    found = by_name(plain_rivals(x, means, values, kind="number"))
    assert list(found) == ["median", "ridge regression", TREES, BOTH]
    fold = deal(np.zeros(400, np.int64), 3, np.random.default_rng(0))
    for number in range(3):
        learn, asked = fold != number, fold == number
        assert found["median"].held_out[asked] == pytest.approx(np.median(values[learn]))
        ridge = make_pipeline(StandardScaler(), RidgeCV(1 / STRENGTHS)).fit(x[learn], values[learn])
        expected = ridge.predict(x[asked])
        assert found["ridge regression"].held_out[asked] == pytest.approx(expected)
    error = {name: np.abs(one.held_out - values).mean() for name, one in found.items()}
    assert error[BOTH] < error[TREES] < error["median"]
    assert found[BOTH].predict(x, means).shape == (400,)


def test_a_model_never_sees_the_label_of_a_node_that_it_predicts():
    random = np.random.default_rng(0)
    x, means, targets = example(0, 400)
    random.shuffle(targets)  # nothing to learn but the share of the classes
    x[:, 1] = deal(targets.argmax(axis=1), 3, np.random.default_rng(0))  # the folds
    shares = targets.mean(axis=0)
    for one in plain_rivals(x, means, targets, kind="classes"):
        found = measure(one.held_out, targets, False, nodes=400)
        assert found.accuracy < shares.max() + 3 * (0.25 / 400) ** 0.5
    before = plain_rivals(x, means, targets, kind="several")
    asked = deal(np.zeros(400, np.int64), 3, np.random.default_rng(0)) == 1
    changed = np.where(asked[:, None], 1 - targets, targets)
    after = plain_rivals(x, means, changed, kind="several")
    for one, other in zip(before, after, strict=True):
        assert np.array_equal(one.held_out[asked], other.held_out[asked])
        assert not np.array_equal(one.held_out[~asked], other.held_out[~asked])


def test_several_labels_have_a_model_each():
    x, means, targets = example(0, 200)
    second = (x[:, 2] > 0).astype(np.int64)
    targets = np.column_stack([targets[:, 1], second, np.ones(200, np.int64)])
    found = by_name(plain_rivals(x, means, targets, kind="several"))
    assert ((found[TREES].held_out[:, 1] > 0.5) == second).mean() > 0.95
    assert np.array_equal(found[TREES].held_out[:, 2], np.ones(200))  # all nodes have it
    assert len(found[TREES].fit()) == 3
    alone = by_name(plain_rivals(x, means, targets[:, 1:2], kind="several"))
    assert np.array_equal(alone[TREES].held_out, found[TREES].held_out[:, 1:2])
    assert plain_rivals(x, means, np.tile(targets, 7), kind="several") == []


def test_the_fitted_model_answers_for_all_nodes_and_sparse_columns_as_dense_ones():
    x, means, targets = example(0, 150)
    x, means = np.maximum(x - 0.2, 0), np.maximum(means, 0)  # mostly zeros
    dense = plain_rivals(x[:100], means[:100], targets[:100], kind="classes")
    sparse = plain_rivals(
        scipy.sparse.csr_array(x[:100]), means[:100], targets[:100], kind="classes"
    )
    for one, other in zip(dense, sparse, strict=True):
        found = one.predict(x, means)
        assert found.sum(axis=1) == pytest.approx(np.ones(150))
        assert (found[100:].argmax(axis=1) == targets[100:].argmax(axis=1)).mean() > 0.4
        assert one.held_out == pytest.approx(other.held_out)
        other.predict(scipy.sparse.csr_array(x), scipy.sparse.csr_array(means))


def test_rows_in_another_order_have_the_same_answers(monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 80)
    x, means, targets = example(0, 100)
    names, order = [f"node {one}" for one in range(100)], np.random.default_rng(1).permutation(100)
    how = {"kind": "classes", "seed": 5}
    first = plain_rivals(x, means, targets, names=names, **how)
    turned = (x[order], means[order], targets[order])
    second = plain_rivals(*turned, names=[names[one] for one in order], **how)
    for one, other in zip(first, second, strict=True):
        assert np.isnan(one.held_out).all(axis=1).sum() == 20
        assert np.array_equal(one.held_out[order], other.held_out, equal_nan=True)
        assert np.array_equal(one.predict(x, means), other.predict(x, means))


@pytest.mark.parametrize(
    ("counts", "columns"),
    [
        ((3, 3), "normal"),
        ((1, 1), "constant"),
        ((5, 1), "normal"),
        ((1, 4, 9), "constant"),
        ((2, 0), "normal"),
        ((3, 3), "none"),
    ],
)
def test_few_labels_and_few_columns(counts, columns):
    y = np.repeat(np.arange(len(counts)), counts)
    x = np.random.default_rng(0).normal(size=(len(y), 0 if columns == "none" else 3))
    x = np.ones_like(x) if columns == "constant" else x
    targets = np.eye(len(counts), dtype=np.int64)[y]
    found = plain_rivals(x, x + 1, targets, kind="classes")
    assert len(found) == (1 if columns == "none" else 4)
    for one in found:
        assert one.held_out.sum(axis=1) == pytest.approx(np.ones(len(y)))
        assert one.predict(x, x + 1).sum(axis=1) == pytest.approx(np.ones(len(y)))
    for one in plain_rivals(x, None, y.astype(float), kind="number"):
        assert np.isfinite(one.held_out).all()
