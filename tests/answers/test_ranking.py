import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from graphcl.answers.labels import known_labels
from graphcl.answers.ranking import LEAST_TOP, TOP_SHARES, check_ranking, rank
from graphcl.errors import GraphError, ParameterError


@given(seed=st.integers(0, 50), count=st.integers(12, 300), ties=st.booleans())
def test_a_ranking_is_that_of_plain_loops(seed, count, ties):
    random = np.random.default_rng(seed)
    risk, truth = random.random(count), random.random(count) < 0.3
    risk = risk.round(1) if ties else risk
    truth[:2] = True, False
    found = rank(risk, truth, "bad")
    assert found.roc_auc == pytest.approx(roc_auc_score(truth, risk))
    assert found.average_precision == pytest.approx(average_precision_score(truth, risk))
    order = sorted(range(count), key=lambda row: (-risk[row], row))
    tops = iter(found.top)
    for share in TOP_SHARES:
        first = order[: int(np.ceil(share * count - 1e-6))]
        if len(first) >= LEAST_TOP:
            one = next(tops)
            right = sum(truth[row] for row in first)
            assert (one.share, one.nodes) == (share, len(first))
            assert one.precision == pytest.approx(right / len(first))
            assert one.lift == pytest.approx(right / len(first) / truth.mean())
            assert one.found == pytest.approx(right / truth.sum())
    assert next(tops, None) is None


def test_a_threshold_for_a_precision_or_a_cost():
    risk = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3])
    truth = np.array([True, True, False, True, False, False, True])
    found = rank(risk, truth, "bad", precision=0.75)
    assert found.threshold == 0.6  # 3 of 4 are right; of 7 only 4 are
    assert (found.precision, found.found) == (0.75, 0.75)
    assert rank(risk, truth, "bad", precision=0.99).threshold == 0.8
    with pytest.raises(GraphError, match=r"precision=0.9.*best has 0.57"):
        rank(np.full(7, 0.5), truth, "bad", precision=0.9)  # all or none
    assert rank(risk, truth, "bad", cost=(1, 3)).threshold == 0.25
    assert rank(risk, truth, "bad").threshold is None
    assert rank(risk, np.ones(7, bool), "bad") is None


def test_weights_stand_for_repeated_nodes():
    random = np.random.default_rng(0)
    risk, truth, times = random.random(60), random.random(60) < 0.4, random.integers(1, 4, 60)
    found = rank(risk, truth, "bad", weight=times.astype(float), precision=0.25)
    again = rank(np.repeat(risk, times), np.repeat(truth, times), "bad", precision=0.25)
    for name in ("share", "roc_auc", "average_precision", "threshold", "precision", "found"):
        assert getattr(found, name) == pytest.approx(getattr(again, name)), name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("ugly", None, None), "wanted must be one of good, bad"),
        ((None, 1.5, None), "precision must be between 0 and 1"),
        ((None, None, (1, 0)), "cost must be two positive numbers"),
        ((None, 0.5, (1, 2)), "cost must be left out with precision"),
    ],
)
def test_what_cannot_be_asked(given, message):
    with pytest.raises(ParameterError, match=message):
        check_ranking(known_labels(np.arange(2), range(2), ("good", "bad")), *given)
