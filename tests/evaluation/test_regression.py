"""The probe of a number: against scikit-learn, plain loops, and data whose truth is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_absolute_error, r2_score

from graphcl.errors import GraphError, ParameterError
from graphcl.evaluation import regression
from graphcl.evaluation.regression import STRENGTHS, fit_regression, half_width, measure_number


def tables(seed, n, noise=1.0, wide=8):
    """Two inputs, of which the first says something, and a number."""
    random = np.random.default_rng(seed)
    useful, useless = random.normal(size=(2, n, wide)).astype(np.float32)
    values = useful @ np.random.default_rng(99).normal(size=wide) + noise * random.normal(size=n)
    return {"useful": useful, "useless": useless}, values


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 40), wide=st.integers(1, 30), seed=st.integers(0, 99), data=st.data())
def test_regressions_without_some_nodes_are_those_of_scikit_learn(n, wide, seed, data):
    random = np.random.default_rng(seed)
    rows, values = random.normal(size=(n, wide)) * 3 + 1, random.normal(size=(n, 2)) + 5
    ridge = regression._Ridge(rows, values)
    length = np.square(rows - rows.mean(axis=0)).sum(axis=1).mean()
    out = np.array(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=n - 1))))
    kept = np.setdiff1d(np.arange(n), out)
    held, whole = ridge.without(out), ridge.predict(rows)
    for place, strength in enumerate(STRENGTHS):
        for found, some, asked in ((whole, np.arange(n), rows), (held, kept, rows[out])):
            rival = Ridge(alpha=strength * length).fit(rows[some], values[some])
            low, high = values[some].min(axis=0), values[some].max(axis=0)
            beyond = (high - low) * [1, 0]  # on the log scale, which is the second, not at all
            expected = rival.predict(asked).clip(low - beyond, high + beyond)
            assert found[place] == pytest.approx(expected, abs=1e-6)


def test_terms_are_weighed_by_the_likelihood_of_held_out_values():
    random = np.random.default_rng(0)
    scaled = np.stack([np.exp(random.normal(size=6)), np.zeros(6)], axis=1)
    scaled[:, 1] = np.log(scaled[:, 0])
    found = scaled + random.normal(size=(2, 3, 6, 2)) / 3  # inputs, strengths, nodes, scales
    expected = np.zeros((2, 3, 2))
    for one in np.ndindex(2, 3, 2):
        total = 0.0
        for i in range(6):
            value = found[one[0], one[1], i, one[2]]
            total += abs((np.exp(value) if one[2] else value) - scaled[i, 0])
        expected[one] = total**-6
    expected[expected < 0.01 * expected.max()] = 0
    seen = [(np.arange(4), found[:, :, :4]), (np.arange(4, 6), found[:, :, 4:])]
    scale = regression._Scale(1.0, 0.0, 1e-9, (False, True))
    weights = regression._weigh(seen, scaled, scale)
    assert weights == pytest.approx(expected / expected.sum())


def test_a_fold_is_predicted_without_its_values():
    inputs, values = tables(0, 60)
    fold = np.array_split(np.random.default_rng(0).permutation(60), regression.FOLDS)[3]
    changed = values.copy()
    changed[fold] += 50
    before, after = (fit_regression(inputs, one).held_out for one in (values, changed))
    assert after[fold] == pytest.approx(before[fold], rel=1e-9)
    assert np.abs(after - before)[np.setdiff1d(np.arange(60), fold)].min() > 1e-3


def test_the_input_that_says_something_has_the_weight_and_the_error_is_that_of_new_nodes():
    inputs, values = tables(0, 400)
    probe = fit_regression({name: table[:200] for name, table in inputs.items()}, values[:200])
    assert probe.weights["useful"] > 0.99
    assert sum(probe.weights.values()) == pytest.approx(1)
    found, low, high = probe.predict({name: table[200:] for name, table in inputs.items()})
    assert probe.error.rmse == pytest.approx(1, abs=0.15)
    assert np.abs(found - values[200:]).mean() == pytest.approx(probe.error.mae, rel=0.15)
    assert probe.error.r2 > 0.8
    assert probe.error.mae < 0.5 * probe.error.baseline_mae
    assert (low < found).all()
    assert (found < high).all()
    measured = measure_number(probe.held_out, values[:200], coverage=0)
    assert measured.mae == pytest.approx(mean_absolute_error(values[:200], probe.held_out))
    assert measured.r2 == pytest.approx(r2_score(values[:200], probe.held_out))
    assert measured.rmse**2 == pytest.approx(((probe.held_out - values[:200]) ** 2).mean())


@pytest.mark.parametrize("tail", ["normal", "heavy", "log"])
def test_intervals_hold_the_truth_as_often_as_they_say(tail):
    inside, expected, nodes = [], [], 30
    for seed in range(40):
        inputs, values = tables(seed, nodes + 100)
        if tail == "heavy":
            values = values + np.random.default_rng(seed).standard_t(1.5, size=len(values))
        values = np.exp(values) if tail == "log" else values
        probe = fit_regression({name: one[:nodes] for name, one in inputs.items()}, values[:nodes])
        _, low, high = probe.predict({name: one[nodes:] for name, one in inputs.items()})
        inside.append(((low <= values[nodes:]) & (values[nodes:] <= high)).mean())
        expected.append(probe.error.coverage)
    # Three standard errors below the level; not so wide that they say nothing.
    bound = 3 * np.std(inside) / len(inside) ** 0.5
    assert 0.9 - bound <= np.mean(inside) <= 0.95
    assert np.mean(expected) == pytest.approx(np.mean(inside), abs=0.03)


def test_the_half_width_is_the_smallest_that_is_enough():
    errors = np.random.default_rng(0).random(19)
    for level in (0.5, 0.8, 0.9, 0.95):
        expected = min(e for e in errors if (errors <= e).sum() >= (19 + 1) * level - 1e-9)
        assert half_width(errors, level) == expected
    assert half_width(errors, 0.96) == np.inf


def test_numbers_over_decades_are_looked_at_as_logarithms():
    inputs, values = tables(0, 200)
    probe = fit_regression(inputs, np.exp(values))
    assert probe.logarithmic > 0.99
    found, low, high = probe.predict(inputs)
    assert (low > 0).all()
    assert high / found == pytest.approx(found / low)
    counts = np.floor(np.exp(values))  # with zeros
    assert (counts == 0).any()
    found, low, high = fit_regression(inputs, counts).predict(inputs)
    assert (low >= 0).all()
    assert np.corrcoef(np.log(found + 1), values)[0, 1] > 0.8
    assert fit_regression(inputs, values).logarithmic == 0
    assert fit_regression(inputs, values - values.min() + 1).logarithmic < 0.01


def test_neither_rows_nor_their_order_decide_the_folds():
    inputs, values = tables(0, 50)
    names = [f"node {one}" for one in range(50)]
    order = np.random.default_rng(1).permutation(50)
    first = fit_regression(inputs, values, names=names)
    turned = {name: table[order] for name, table in inputs.items()}
    second = fit_regression(turned, values[order], names=[names[one] for one in order])
    assert second.held_out == pytest.approx(first.held_out[order])
    assert second.error.mae == pytest.approx(first.error.mae)
    assert second.predict(inputs)[2] == pytest.approx(first.predict(inputs)[2])
    other = fit_regression(inputs, values, names=names, seed=1)
    assert other.held_out != pytest.approx(first.held_out)


def test_few_values_and_a_constant():
    inputs, values = tables(0, 40)
    for count in (1, 2, 3):
        few = {name: table[:count] for name, table in inputs.items()}
        probe = fit_regression(few, values[:count])
        found, low, high = probe.predict(inputs)
        assert np.isfinite(found).all()
        assert np.isinf(low).all()
        assert np.isinf(high).all()
        assert (probe.error is None) == (count == 1)
    same = fit_regression(inputs, np.full(40, 7.5))
    assert np.concatenate([same.held_out, *same.predict(inputs)]) == pytest.approx(7.5)
    assert (same.error.mae, same.error.r2) == (pytest.approx(0, abs=1e-9), 0)
    blank = {"constant": np.ones((40, 3), np.float32), "none": np.zeros((40, 0), np.float32)}
    probe = fit_regression(blank, values)
    assert probe.predict(blank)[0] == pytest.approx(values.mean())
    assert probe.error.baseline_mae == pytest.approx(np.abs(values - np.median(values)).mean())


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_huge_and_tiny_numbers(size):
    inputs, values = tables(0, 40)
    plain, probe = fit_regression(inputs, values), fit_regression(inputs, values * size)
    assert probe.error.r2 == pytest.approx(plain.error.r2)
    assert probe.error.mae / size == pytest.approx(plain.error.mae)


def test_what_is_no_number_is_refused():
    inputs, values = tables(0, 10)
    for wrong in (np.nan, np.inf):
        with pytest.raises(GraphError, match=f"{wrong} is not a number"):
            fit_regression(inputs, np.where(np.arange(10) == 3, wrong, values))
    with pytest.raises(ParameterError, match="values must be at least one"):
        fit_regression({name: table[:0] for name, table in inputs.items()}, values[:0])
    with pytest.raises(GraphError, match="nan at row 2"):
        fit_regression({"x": np.where(np.arange(10)[:, None] == 2, np.nan, 1.0)}, values)
    with pytest.raises(ParameterError, match="level must be between 0 and 1; got 90"):
        fit_regression(inputs, values, level=90)
