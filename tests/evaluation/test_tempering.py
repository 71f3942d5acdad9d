"""Averages over strengths: against plain loops, and where the right answer is known."""

import numpy as np
import pytest
from scipy.special import expit, softmax

from graphcl.evaluation.tempering import STRENGTHS, HeldOut, Term, average, log_shares


def one_hot(y, classes):
    return np.eye(classes, dtype=np.int64)[y]


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
