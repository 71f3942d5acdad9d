"""The calibrated probe: against plain loops, scikit-learn, and data whose truth is known."""

import numpy as np
import pytest
from scipy.special import expit, softmax

from graphcl.errors import GraphError
from graphcl.evaluation import calibration, folds, logistic
from graphcl.evaluation.calibration import (
    STRENGTHS,
    HeldOut,
    Term,
    average,
    log_shares,
)
from graphcl.evaluation.prediction_error import measure
from graphcl.evaluation.probe import standardiser


def fitted(z, targets, *, standard=None, **how):
    """A probe of one table."""
    standard = None if standard is None else {"z": standard}
    return calibration.fit_calibrated({"z": z}, targets, standard=standard, **how)


def one_hot(y, classes):
    return np.eye(classes, dtype=np.int64)[y]


def noisy_classes(seed, n, classes=3, dim=6, noise=1.0):
    """Rows whose class follows a softmax, so that the true probabilities are known."""
    random = np.random.default_rng(seed)
    z = random.normal(size=(n, dim))
    truth = softmax(z @ np.random.default_rng(99).normal(size=(dim, classes)) / noise, axis=1)
    y = np.array([random.choice(classes, p=p) for p in truth])
    return z.astype(np.float32), y, truth


def test_five_labels_a_class_that_mean_nothing_are_right_as_often_as_chance():
    # With uneven folds a held-out node's class is the smaller one, and 20 % would be right.
    found = []
    for seed in range(12):
        random = np.random.default_rng(seed)
        targets = one_hot(np.repeat([0, 1], 5), 2)
        probe = fitted(random.normal(size=(10, 200)), targets, several=False, seed=seed)
        found.append(probe.error.accuracy)
    assert np.mean(found) == pytest.approx(0.5, abs=0.12)


def test_without_evidence_probabilities_are_the_shares_of_classes():
    random = np.random.default_rng(0)
    targets = one_hot((np.arange(400) % 10 == 0).astype(int), 2)
    probe = fitted(random.normal(size=(400, 5)), targets, several=False)
    found = probe.probabilities({"z": random.normal(size=(500, 5))})
    np.testing.assert_allclose(found.mean(axis=0), [0.9, 0.1], atol=0.03)
    assert probe.error.accuracy == pytest.approx(0.9, abs=0.01)
    assert probe.error.calibration_error < 0.03


def test_columns_are_scaled_by_all_nodes_where_they_are_known():
    random = np.random.default_rng(0)
    z = random.normal(size=(300, 3)) * [1, 100, 1]
    few = np.r_[0:10]
    targets = one_hot((z[few, 0] > np.median(z[few, 0])).astype(int), 2)
    probe = fitted(z[few], targets, several=False, standard=standardiser(z))
    again = fitted(z[few] / 7, targets, several=False, standard=standardiser(z / 7))
    np.testing.assert_allclose(
        probe.probabilities({"z": z}), again.probabilities({"z": z / 7}), atol=1e-3
    )


def test_probabilities_are_near_the_truth_and_the_error_is_what_new_nodes_show():
    z, y, _ = noisy_classes(2, 600)
    new, new_y, truth = noisy_classes(3, 3000)
    probe = fitted(z, one_hot(y, 3), several=False)
    found = probe.probabilities({"z": new})
    assert np.abs(found - truth).mean() < 0.04
    shown = measure(found.astype(float), one_hot(new_y, 3), False, nodes=3000)
    assert shown.calibration_error < 0.03
    assert probe.error.accuracy == pytest.approx(shown.accuracy, abs=0.04)
    assert probe.error.log_loss == pytest.approx(shown.log_loss, abs=0.06)
    assert probe.error.nodes == 600


def test_labels_that_mean_nothing_are_called_so():
    random = np.random.default_rng(0)
    z, y = random.normal(size=(80, 20)), random.integers(0, 2, 80)
    probe = fitted(z, one_hot(y, 2), several=False)
    assert probe.error.accuracy < 0.65  # fitted on its own nodes it would be right in all
    assert probe.error.calibration_error < 0.2
    confidence = probe.probabilities({"z": random.normal(size=(500, 20))}).max(axis=1)
    assert confidence.mean() < 0.65


def test_no_node_is_fitted_in_the_fold_that_scores_it(monkeypatch):
    random = np.random.default_rng(0)
    z = random.normal(size=(90, 4))
    y = (z[:, 0] + random.normal(size=90) > 0).astype(int)
    seen = []

    def spy(z, targets, parts, several):
        seen.extend(parts)
        return original(z, targets, parts, several)

    original = calibration._fit_parts
    monkeypatch.setattr(calibration, "_fit_parts", spy)
    monkeypatch.setattr(logistic, "VALUES", 90 * 30 * 4)  # a few folds at a time
    probe = fitted(z, one_hot(y, 2), several=False)
    for train, test in seen:
        assert sorted([*train, *test]) == list(range(90))
    *seen, (every, _) = seen  # the last one is fitted to all nodes
    assert sorted(every) == list(range(90))
    single, double = seen[:20], seen[20:]  # without one fold, and without two of a division
    assert sorted(np.concatenate([test for _, test in single])) == sorted([*range(90)] * 2)
    assert len(double) == 2 * 20
    monkeypatch.undo()
    at_once = fitted(z, one_hot(y, 2), several=False)
    np.testing.assert_allclose(at_once.held_out, probe.held_out, atol=1e-3)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("few", [True, False])
def test_a_nodes_own_label_changes_nothing_by_which_it_is_scored(monkeypatch, several, few):
    z, y, _ = noisy_classes(0, 24)
    place = np.arange(24) % 6  # labels decide on the division; here it is given
    monkeypatch.setattr(folds, "deal", lambda *_: place)
    if not few:
        monkeypatch.setattr(folds, "FEW_NODES", 0)
        monkeypatch.setattr(folds, "FOLDS", 6)
    y[:12] = np.repeat([0, 1, 2], 4)
    targets = one_hot(y, 3)
    before = fitted(z, targets, several=several).held_out
    for node in (0, 7, 20):
        other = targets.copy()
        other[node] = np.roll(other[node], 1)
        after = fitted(z, other, several=several).held_out
        np.testing.assert_allclose(after[node], before[node], atol=1e-5)
        assert np.abs(np.delete(after - before, node, axis=0)).max() > 1e-3  # others learn from it


def test_nodes_that_have_a_label_of_their_own_each():
    targets = np.eye(5, dtype=np.int64)
    probe = fitted(np.random.default_rng(0).normal(size=(5, 3)), targets, several=True)
    assert np.isfinite(probe.probabilities({"z": np.zeros((2, 3))})).all()


def test_several_labels():
    random = np.random.default_rng(0)
    rule = random.normal(size=(8, 5)) * 2
    z, new = random.normal(size=(400, 8)), random.normal(size=(2000, 8))
    y, new_y = (
        (rows @ rule + random.normal(size=(len(rows), 5)) * 2 > 1).astype(np.int64)
        for rows in (z, new)
    )
    probe = fitted(z, y, several=True)
    found = probe.probabilities({"z": new})
    shown = measure(found.astype(float), new_y, True, nodes=2000)
    assert shown.micro_f1 > 0.7
    assert shown.calibration_error < 0.05
    assert probe.error.micro_f1 == pytest.approx(shown.micro_f1, abs=0.05)
    assert probe.held_out.shape == (400, 5)


def test_a_class_with_one_node_is_learned_but_not_tested():
    z, y, _ = noisy_classes(0, 60, classes=2)
    targets = np.zeros((61, 3), np.int64)
    targets[:60, :2] = one_hot(y, 2)
    targets[60, 2] = 1
    lonely = np.concatenate([z, np.full((1, 6), 30, np.float32)])
    probe = fitted(lonely, targets, several=False)
    assert probe.error.nodes == 60
    assert np.isnan(probe.held_out[60]).all()
    assert probe.probabilities({"z": lonely[60:]}).argmax() == 2


def test_one_node_per_class_has_no_error_to_report():
    probe = fitted(np.eye(3), np.eye(3, dtype=np.int64), several=False)
    assert probe.error is None
    assert probe.probabilities({"z": np.eye(3)}).argmax(axis=1).tolist() == [0, 1, 2]


def test_nothing_to_tell_apart():
    with pytest.raises(GraphError, match="no second class"):
        fitted(np.eye(3), np.ones((3, 1), np.int64), several=False)
    with pytest.raises(GraphError, match="no label that some nodes have"):
        fitted(np.eye(3), np.ones((3, 2), np.int64), several=True)
    with pytest.raises(GraphError, match="nan at row 1"):
        fitted(np.array([[0.0], [np.nan], [1]]), one_hot(np.array([0, 1, 1]), 2), several=False)


@pytest.mark.parametrize("ids", [np.arange(40) * 3, np.array([f"n{row}" for row in range(40)])])
@pytest.mark.parametrize("several", [False, True])
def test_folds_follow_ids_and_not_rows(ids, several):
    random = np.random.default_rng(0)
    z = random.normal(size=(40, 6)).astype(np.float32)
    kinds = (z[:, 0] + random.normal(size=40) > 0).astype(np.int64)
    targets = np.eye(2, dtype=np.int64)[kinds]
    if several:
        targets = np.stack([kinds, 1 - kinds[::-1]], axis=1)
    how = {"several": several, "standard": standardiser(z)}
    whole = fitted(z, targets, names=ids, **how)
    order = random.permutation(40)
    other = fitted(z[order], targets[order], names=ids[order], **how)
    assert other.error == whole.error
    np.testing.assert_array_equal(other.held_out, whole.held_out[order])
    without = fitted(z[order], targets[order], **how)
    assert not np.allclose(without.held_out, whole.held_out[order], atol=1e-4)


def held_out(scores, targets, several=False, rows=None, shares=None):
    """The same scores for all strengths."""
    rows = np.arange(len(scores)) if rows is None else rows
    shares = np.log(np.full(targets.shape[1], 1 / targets.shape[1])) if shares is None else shares
    shares = np.broadcast_to(shares, targets.shape)
    every = np.repeat(scores[None], len(STRENGTHS), axis=0)
    return HeldOut(rows, np.zeros(len(rows)), 1, every, targets, shares, several)


def drawn(seed, n, classes=3):
    random = np.random.default_rng(seed)
    truth = softmax(random.normal(size=(n, classes)) * 1.5, axis=1)
    return truth, np.array([random.choice(classes, p=p) for p in truth])


def test_shares_and_odds():
    targets = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0]])
    np.testing.assert_allclose(np.exp(log_shares(targets, False)), np.array([2.5, 1.5, 0.5]) / 4.5)
    np.testing.assert_allclose(np.exp(log_shares(targets, True)), [2.5 / 1.5, 1.5 / 2.5, 0.5 / 3.5])


def test_a_temperature_undoes_a_wrong_scale():
    truth, y = drawn(1, 3000)
    held = held_out(np.log(truth) * 3, one_hot(y, 3))  # three times too certain
    terms = held.choose()
    assert [term.weight for term in terms] == pytest.approx([1 / len(STRENGTHS)] * len(STRENGTHS))
    assert [term.temperature for term in terms] == pytest.approx([3] * len(terms), rel=0.1)


@pytest.mark.parametrize("right", [10, 7])
def test_of_ten_answers_the_confidence_is_laplaces(right):
    y = np.arange(10) % 2
    scores = one_hot(np.where(np.arange(10) < right, y, 1 - y), 2) * 50.0
    held = held_out(scores, one_hot(y, 2))
    found = average(held.choose(), held.scores, held.shares, False).max(axis=1)
    # The mean of a uniform prior on [0.5, 1] after so many right answers.
    p = np.linspace(0.5, 1, 20001)[1:-1]
    weight = p**right * (1 - p) ** (10 - right)
    np.testing.assert_allclose(found, (p * weight).sum() / weight.sum(), atol=0.006)


def test_a_better_strength_has_more_weight_the_more_nodes_say_so():
    truth, y = drawn(2, 400)
    noise = np.random.default_rng(0).normal(size=(400, 3))
    weights = []
    for count in (10, 50, 400):
        held = held_out(noise[:count], one_hot(y[:count], 3))
        held.scores[2] = np.log(truth[:count])
        weights.append(sum(term.weight for term in held.choose() if term.place == 2))
    assert weights[0] < weights[1] < weights[2]
    assert weights[2] > 0.99


def test_weights_are_those_of_a_plain_loop_and_a_node_counts_once():
    truth, y = drawn(3, 40)
    twice = np.concatenate([truth, truth])
    once = held_out(np.log(truth), one_hot(y, 3))
    both = held_out(np.log(twice), one_hot(np.tile(y, 2), 3), rows=np.tile(np.arange(40), 2))
    noise = np.random.default_rng(0).normal(size=(40, 3))
    once.scores[0], both.scores[0] = noise, np.tile(noise, (2, 1))
    found, again = once.choose(), both.choose()
    for one, other in zip(found, again, strict=True):
        assert one.weight == pytest.approx(other.weight, rel=1e-4)
        assert one.temperature == pytest.approx(other.temperature, rel=1e-3)
    likelihood = []
    for scores in once.scores:
        total = 0.0
        levels = np.linspace(0.001, 0.999, 300)
        temperatures = np.geomspace(1 / 64, 256, 2000)
        reached = [softmax(scores / t, axis=1).max(axis=1).mean() for t in temperatures]
        reached = (np.array(reached) - 1 / 3) / (2 / 3)
        for level in levels:
            t = temperatures[np.abs(reached - level).argmin()]
            p = softmax(scores / t, axis=1)
            total += np.prod([p[row, y[row]] for row in range(40)]) / len(levels)
        likelihood.append(total)
    expected = np.array(likelihood) / sum(likelihood)
    for term in found:
        assert term.weight == pytest.approx(expected[term.place], rel=0.05)


def test_the_average_is_that_of_a_plain_loop():
    random = np.random.default_rng(0)
    scores, shares = random.normal(size=(len(STRENGTHS), 5, 3)), np.log([0.5, 0.3, 0.2])
    terms = [Term(1, 2.0, 0.3), Term(4, 0.5, 0.1)]
    for several in (False, True):
        found = average(terms, scores, shares, several)
        for row in range(5):
            expected = 0
            for term in terms:
                s = [
                    (one - share) / term.temperature + share
                    for one, share in zip(scores[term.place, row], shares, strict=True)
                ]
                expected = expected + term.weight / 0.4 * (expit(s) if several else softmax(s))
            np.testing.assert_allclose(found[row], expected)


def test_without_evidence_the_shares_remain():
    shares = log_shares(np.repeat([[1, 0], [0, 1]], [90, 10], axis=0), False)
    random = np.random.default_rng(0)
    targets = one_hot((np.arange(500) % 10 == 0).astype(int), 2)
    held = held_out(random.normal(size=(500, 2)), targets, shares=shares)
    found = average(held.choose(), held.scores, shares, False)
    np.testing.assert_allclose(found, np.tile([0.9, 0.1], (500, 1)), atol=0.05)
