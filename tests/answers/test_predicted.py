import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

import graphcl
from graphcl import Graph
from graphcl.answers.inputs import known_labels
from graphcl.answers.predicted import (
    LEAST_TOP,
    OURS,
    TOP_SHARES,
    Estimates,
    check_ranking,
    rank,
)
from graphcl.errors import GraphError, InvalidInputError, ParameterError
from graphcl.evaluation.prediction_error import measure


@pytest.fixture(scope="module")
def asked():
    """A step in one column, which trees see and regressions do not; embeddings of noise."""
    random = np.random.default_rng(0)
    x = random.normal(size=(400, 3)).astype(np.float32)
    y = (np.abs(x[:, 0]) > 1).astype(int)
    graph = Graph.from_edge_index(random.integers(0, 400, (2, 500)), x)
    z = random.normal(size=(400, 4)).astype(np.float32)
    names = np.array(["good", "bad"])[y]
    return z, graph, {row: names[row] for row in range(200)}, y


def test_a_better_rival_is_named_and_predicts_if_asked(asked):
    z, graph, labels, y = asked
    found = graphcl.predict(z, graph, labels)
    assert [one.name for one in found.rivals][:2] == [OURS, "majority"]
    assert found.better.name.startswith("boosted trees")
    assert found.better.chance < 0.01
    trees = graphcl.predict(z, graph, labels, using="boosted trees")
    right = np.array(trees.labels) == np.array(["good", "bad"])[y[trees.rows]]
    assert right.mean() > 0.9
    assert abs(trees.error.accuracy - right.mean()) < 0.06
    # What measures a rival had no part in the table by which it was chosen.
    assert trees.error.nodes + found.rivals[0].error.nodes == 200
    assert trees.evidence == {"boosted trees": 1.0}
    assert trees.rivals[0].score == found.rivals[0].score  # ours is still ours


def test_two_classes_begin_with_the_wanted_one(asked):
    z, graph, labels, _ = asked
    found = graphcl.predict(z, graph, labels, using="boosted trees")
    assert found.ranking.wanted == "bad"  # the rarer
    risk = found.columns()["p:bad"]
    assert (np.diff(risk) <= 0).all()
    other = graphcl.predict(z, graph, labels, using="boosted trees", wanted="good")
    assert (np.diff(other.columns()["p:good"]) <= 0).all()
    sure = graphcl.predict(z, graph, labels, using="boosted trees", precision=0.6)
    called = np.array(sure.labels) == "bad"
    assert called.sum() == (sure.columns()["p:bad"] >= sure.ranking.threshold).sum()
    assert sure.ranking.precision >= sure.ranking.promised >= 0.6
    some = graphcl.predict(z, graph, labels, nodes=[399, 201], rivals=False)
    assert some.ids.tolist() == [399, 201]  # ids that were asked for keep their order


def test_shares_of_the_population(asked):
    z, graph, labels, _ = asked
    plain = graphcl.predict(z, graph, labels, rivals=False)
    found = graphcl.predict(z, graph, labels, rivals=False, shares={"good": 0.98, "bad": 0.02})
    there = {row: place for place, row in enumerate(plain.rows.tolist())}
    before = plain.probabilities[[there[row] for row in found.rows.tolist()]].astype(float)
    bad = list(found.classes).index("bad")
    ratio = np.array([0.02, 0.98]) if bad == 0 else np.array([0.98, 0.02])
    labelled = np.array(plain.labelled) / sum(plain.labelled)
    expected = before * ratio / labelled
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.probabilities, expected, atol=1e-5)
    assert found.ranking.share == pytest.approx(0.02)
    for wrong in ({"good": 1.0}, {"good": 0.5, "bad": 0.5, "ugly": 0.1}, {"good": 1, "bad": 0}):
        with pytest.raises(ParameterError, match="a positive share for each of"):
            graphcl.predict(z, graph, labels, rivals=False, shares=wrong)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": "x"}, "seed must be a whole number"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"seed": 1 << 40}, "seed must be a whole number"),
        ({"shares": "a=0.5"}, "shares must be a mapping of class to share"),
        ({"shares": {"good": float("inf"), "bad": 0.1}}, "a positive share for each of"),
        ({"shares": {"good": "x", "bad": 0.1}}, "a positive share for each of"),
        ({"level": "x"}, "level must be between 0 and 1"),
        ({"level": 1}, "level must be between 0 and 1"),
        ({"using": "magic"}, "using must be one of majority, median"),
        ({"using": 3}, "using must be one of majority, median"),
        ({"using": "median"}, "using must be one of majority, logistic"),  # not of classes
        ({"label_kind": "most"}, "label_kind must be auto, classes or number"),
    ],
)
def test_nonsense_is_refused_by_name(asked, given, message):
    z, graph, labels, _ = asked
    with pytest.raises(InvalidInputError, match=message):
        graphcl.predict(z, graph, labels, **given)


def test_labels_that_are_chance_name_no_rival_and_a_choice_does_not_inflate_a_score():
    random = np.random.default_rng(0)
    x, z = (random.normal(size=(300, 5)).astype(np.float32) for _ in range(2))
    graph = Graph.from_edge_index(np.zeros((2, 0), int), x)
    named = 0
    for seed in range(4):
        labels = dict(enumerate(random.integers(0, 2, 40).tolist()))
        named += graphcl.predict(z, graph, labels, seed=seed).better is not None
    assert named == 0


def test_a_number_has_a_value_an_interval_and_rivals(asked):
    z, graph, _, _ = asked
    truth = graph.x[:, 1] * 3 + 10 + np.random.default_rng(1).normal(size=400)
    labels = np.where(np.arange(400) < 200, truth, np.nan)
    found = graphcl.predict(z, graph, labels, why=True)
    assert isinstance(found, Estimates)
    table = found.columns()
    assert list(table) == ["id", "value", "low", "high", "why"]
    inside = (found.low <= truth[200:]) & (truth[200:] <= found.high)
    assert 0.83 < inside.mean() < 0.97
    assert found.error.mae == pytest.approx(np.abs(found.values - truth[200:]).mean(), rel=0.2)
    assert [one.name for one in found.rivals][1:3] == ["median", "ridge regression"]
    assert "R²" in found.title()
    with pytest.raises(ParameterError, match="there are not two classes"):
        graphcl.predict(z, graph, labels, wanted="high")


def test_macro_scores_and_scores_of_each_label_are_measured():
    random = np.random.default_rng(0)
    targets, p = random.integers(0, 2, (80, 3)), random.random((80, 3))
    found = measure(p, targets, True, nodes=80)
    assert len(found.by_class) == 3
    assert found.headline[0] == "micro-F1"
    assert found.macro_f1 == pytest.approx(np.mean([one for one, _ in found.by_class]))


def test_plain_models_are_measured_on_the_nodes_that_ours_is():
    random = np.random.default_rng(0)
    x = random.normal(size=(80, 3)).astype(np.float32)
    graph = Graph.from_edge_index(random.integers(0, 80, (2, 90)), x)
    labels = {row: "ab"[row % 2] for row in range(30)} | {30: "the only one of its kind"}
    found = graphcl.predict(x, graph, labels)
    assert {one.error.nodes for one in found.rivals} == {16}  # half of each class


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
    risk = np.linspace(1, 0, 100)
    truth = np.arange(100) < 40  # all of the first 40
    found = rank(risk, truth, "bad", precision=0.8)
    assert found.precision >= found.promised >= 0.8
    assert (found.sure, found.found) == (0.8, 1)
    strict = rank(risk, truth, "bad", precision=0.9)
    assert strict.threshold > found.threshold
    few = risk[:12], np.arange(12) < 8  # 8 of 8 do not make 95 % certain
    with pytest.raises(GraphError, match=r"precision=0.95 cannot be promised with 80 % certainty"):
        rank(*few, "bad", precision=0.95)
    with pytest.raises(GraphError, match="label more nodes"):
        rank(np.full(7, 0.5), np.arange(7) < 4, "bad", precision=0.9)  # all or none
    risk, truth = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, True, False, True])
    assert rank(risk, truth, "bad", cost=(1, 3)).threshold == 0.25
    assert rank(risk, truth, "bad").threshold is None
    assert rank(risk, truth, "bad").promised is None
    assert rank(risk, np.ones(4, bool), "bad") is None


def test_weights_stand_for_repeated_nodes():
    random = np.random.default_rng(0)
    risk, truth, times = random.random(60), random.random(60) < 0.4, random.integers(1, 4, 60)
    found = rank(risk, truth, "bad", weight=times.astype(float), cost=(1, 2))
    again = rank(np.repeat(risk, times), np.repeat(truth, times), "bad", cost=(1, 2))
    for name in ("share", "roc_auc", "average_precision", "threshold", "precision", "found"):
        assert getattr(found, name) == pytest.approx(getattr(again, name)), name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("ugly", None, None), "wanted must be one of good, bad"),
        ((None, 1.5, None), "precision must be between 0 and 1"),
        ((None, "x", None), "precision must be between 0 and 1"),
        ((None, True, None), "precision must be between 0 and 1"),
        ((None, None, ("a", 1)), "cost must be two positive numbers"),
        ((None, None, 5), "cost must be two positive numbers"),
        ((None, None, (1, 0)), "cost must be two positive numbers"),
        ((None, 0.5, (1, 2)), "cost must be left out with precision"),
    ],
)
def test_what_cannot_be_asked(given, message):
    with pytest.raises(ParameterError, match=message):
        check_ranking(known_labels(np.arange(2), range(2), ("good", "bad")), *given)
