import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

import graphcl
from graphcl import Graph
from graphcl.answers.inputs import known_labels
from graphcl.answers.learning import learn
from graphcl.answers.predicted import (
    BETTER,
    LEAST_TOP,
    OURS,
    TOP_SHARES,
    Estimates,
    check_ranking,
    explain,
    rank,
)
from graphcl.errors import GraphError, ParameterError
from graphcl.evaluation.prediction_error import measure


def drawn(decides, seed=0):
    """Nodes whose class is in their own first column, or in that of their neighbours."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(300, 4)).astype(np.float32)
    ends = np.stack([np.arange(300), random.permutation(300)])
    graph = Graph.from_edge_index(ends[:, ends[0] != ends[1]], x)
    relation = graph.only_relation
    around = np.array(
        [
            x[relation.indices[a:b], 0].mean() if b > a else 0
            for a, b in zip(relation.indptr[:-1], relation.indptr[1:], strict=True)
        ]
    )
    tells = x[:, 0] if decides == "own columns" else around
    z = np.concatenate([x, around[:, None], random.normal(size=(300, 3))], axis=1)
    return graph, z.astype(np.float32), tells


PARTS = {"own columns": slice(0, 4), "neighbours": slice(4, 5), "their neighbours": slice(5, 8)}


@pytest.mark.parametrize("decides", ["own columns", "neighbours"])
@pytest.mark.parametrize("kind", ["classes", "number"])
def test_the_part_that_decides_is_named(decides, kind):
    graph, z, tells = drawn(decides)
    labels = (tells > 0).astype(int) if kind == "classes" else tells + 1e-6
    known = known_labels(labels, np.arange(300)).only(np.arange(300) < 120)
    learned = learn(z, np.arange(300), known, graph=graph, parts=PARTS)
    rows = np.flatnonzero(tells > 0.5)
    rows = rows[rows >= 120]
    places = np.full(len(rows), 1 if kind == "classes" else 0)
    found = explain(learned, rows, places, graph=graph, ids=np.arange(300))
    assert len(found) == len(rows)
    other = ({*PARTS} - {decides} - {"their neighbours"}).pop()
    speak = [one.parts[decides] > abs(one.parts[other]) for one in found]
    assert np.mean(speak) > 0.9
    if decides == "own columns":
        named = [one.columns[0][0] == "feature 0" and one.columns[0][1] > 0 for one in found]
        assert np.mean(named) > 0.9
        assert "columns: feature 0 +" in str(found[0])


def test_similar_nodes_are_the_nearest_labelled_ones_and_never_the_node_itself():
    graph, z, tells = drawn("own columns")
    labels = {row: "high" if tells[row] > 0 else "low" for row in range(60)}
    found = graphcl.predict(z, graph, labels, nodes="all", why=True, rivals=False)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    for place in (0, 7, 150):
        row = int(found.rows[place])
        cosine = unit[row] @ unit[:60].T
        cosine[row : row + 1] = -np.inf if row < 60 else cosine[row : row + 1]
        expected = np.argsort(-cosine)[:3].tolist()
        assert [one for one, _ in found.reasons[place].like] == expected
        assert [label for _, label in found.reasons[place].like] == [
            labels[one] for one in expected
        ]
    assert found.columns()["why"][0] == str(found.reasons[0])


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
