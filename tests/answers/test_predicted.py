import numpy as np
import pytest

import graphcl
from graphcl import Graph
from graphcl.answers.predicted import BETTER, OURS, Estimates
from graphcl.errors import ParameterError
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
    assert found.better.score > found.rivals[0].score + BETTER
    trees = graphcl.predict(z, graph, labels, using="boosted trees")
    right = np.array(trees.labels) == np.array(["good", "bad"])[y[trees.rows]]
    assert right.mean() > 0.9
    assert abs(trees.error.accuracy - right.mean()) < 0.06
    assert trees.evidence == {"boosted trees": 1.0}
    assert trees.rivals[0].score == found.rivals[0].score  # ours is still ours
    with pytest.raises(ParameterError, match="using must be one of majority, logistic"):
        graphcl.predict(z, graph, labels, using="magic")


def test_two_classes_begin_with_the_wanted_one(asked):
    z, graph, labels, _ = asked
    found = graphcl.predict(z, graph, labels, using="boosted trees")
    assert found.ranking.wanted == "bad"  # the rarer
    risk = found.columns()["p:bad"]
    assert (np.diff(risk) <= 0).all()
    other = graphcl.predict(z, graph, labels, using="boosted trees", wanted="good")
    assert (np.diff(other.columns()["p:good"]) <= 0).all()
    sure = graphcl.predict(z, graph, labels, using="boosted trees", precision=0.95)
    called = np.array(sure.labels) == "bad"
    assert called.sum() == (sure.columns()["p:bad"] >= sure.ranking.threshold).sum()
    assert sure.ranking.precision >= 0.95
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


def test_reasons_of_a_rivals_answer_do_not_say_what_ours_would_rest_on(asked):
    z, graph, labels, _ = asked
    ours = graphcl.predict(z, graph, labels, why=True, rivals=False)
    trees = graphcl.predict(z, graph, labels, why=True, using="boosted trees")
    assert "own columns" in ours.reasons[0].parts
    assert trees.reasons[0].parts == {}
    assert trees.reasons[0].columns
    assert len(trees.reasons[0].like) == 3


def test_plain_models_are_measured_on_the_nodes_that_ours_is():
    random = np.random.default_rng(0)
    x = random.normal(size=(80, 3)).astype(np.float32)
    graph = Graph.from_edge_index(random.integers(0, 80, (2, 90)), x)
    labels = {row: "ab"[row % 2] for row in range(30)} | {30: "the only one of its kind"}
    found = graphcl.predict(x, graph, labels)
    assert {one.error.nodes for one in found.rivals} == {30}
