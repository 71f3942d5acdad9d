import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from graphcl.errors import GraphError
from graphcl.evaluation import splits
from graphcl.evaluation.probe import STRENGTHS, linear_probe, standardiser
from graphcl.evaluation.splits import (
    DRAWN,
    compare_probe,
    comparison_splits,
    mean_auc,
    metric_of,
    over_splits,
    probe_confusion,
    score_predictions,
    validation_score,
)
from graphcl.graphs.graph import Graph
from tests.conftest import random_collection, random_graph

CPU = torch.device("cpu")
NO_MASKS = dict.fromkeys(("train_mask", "val_mask", "test_mask"))


def many_splits(graph, count=3):
    random = np.random.default_rng(5)
    third = graph.num_nodes // 3
    masks = np.zeros((3, graph.num_nodes, count), bool)
    for number in range(count):
        order = random.permutation(graph.num_nodes)
        for place in range(3):
            masks[place, order[place * third : (place + 1) * third], number] = True
    train, val, test = masks
    return Graph.from_edge_index(
        graph.edge_index(), graph.x, graph.y, train_mask=train, val_mask=val, test_mask=test
    )


def test_scores_are_means_over_the_splits(graph):
    several = many_splits(graph)
    found = over_splits(lambda one: linear_probe(graph.x, one), several)
    each = [linear_probe(graph.x, several.split(number)) for number in range(3)]
    assert found["splits"] == 3
    assert found["accuracy"] == pytest.approx(sum(one.accuracy for one in each) / 3)
    assert found["val_accuracy"] == pytest.approx(sum(one.val_accuracy for one in each) / 3)
    assert len({one.accuracy for one in each}) > 1
    assert "splits" not in over_splits(lambda one: linear_probe(graph.x, one), graph)


def words(nodes=240, columns=60):
    """A graph whose columns are words: few, and one that is much larger than all others."""
    graph, random = random_graph(num_nodes=nodes), np.random.default_rng(3)
    likely = np.where(np.arange(columns) % 3 == graph.y[:, None], 0.06, 0.02)
    x = (random.random((nodes, columns)) < likely).astype(np.float32)
    x[:, 0] = 3 + 20 * random.normal(size=nodes)
    return many_splits(graph.replace(x=x))


def plain_loop(x, y, parts):
    """Returns, per split, the test accuracy of what is best on validation, and its scaling."""
    found = []
    for train, val, test in parts:
        standard, size = standardiser(x[train]), np.sqrt(x[train].var(axis=0).mean())
        best = (-1.0, 0.0, "")
        for name, rows in (("scaled", standard(x)), ("unscaled", x / size)):
            for strength in STRENGTHS:
                probe = LogisticRegression(C=strength, max_iter=10_000)
                probe.fit(rows[train], y[train])
                on_val, on_test = ((probe.predict(rows[n]) == y[n]).mean() for n in (val, test))
                best = max(best, (on_val, on_test, name), key=lambda one: one[0])
        found.append(best)
    return found


@pytest.mark.parametrize("labels", [None, 6])
def test_it_is_the_plain_loop_over_splits_scalings_and_strengths(labels):
    graph = many_splits(random_graph(num_nodes=240))
    found = compare_probe(graph.x, graph, labels=labels, device=CPU)
    parts = comparison_splits(graph, labels)[1]
    on_val, on_test, scaling = zip(*plain_loop(graph.x, graph.y, parts), strict=True)
    kind = "given" if labels is None else "6 a class"
    assert (found.metric, found.split, found.splits) == ("accuracy", kind, 3)
    # One node on the border; of few validation nodes, many settings are the best.
    near = 1.01 / 80 if labels is None else 0.05
    assert found.split_scores == pytest.approx(on_test, abs=near)
    assert found.val_score == pytest.approx(np.mean(on_val), abs=1.01 / 18)
    assert found.chosen == {name: scaling.count(name) for name in scaling}
    assert found.score == pytest.approx(np.mean(found.split_scores))
    assert found.score == found.accuracy == found.micro_f1


def test_columns_are_scaled_where_that_is_better_on_validation_and_on_a_tie():
    graph = words()
    assert compare_probe(graph.x, graph, device=CPU).chosen == {"scaled": 3}  # else one drowns all
    random = np.random.default_rng(0)
    z = 0.05 * random.normal(size=(240, 100)).astype(np.float32)  # noise, one column that tells
    z[:, 0] = graph.y + 0.3 * random.normal(size=240)
    found = compare_probe(z, graph, labels=5, device=CPU)
    assert found.chosen.get("unscaled", 0) >= 2
    assert found.score > 0.8
    tied = compare_probe(np.eye(3)[graph.y], graph, device=CPU)
    assert (tied.chosen, tied.score) == ({"scaled": 3}, 1)


@given(st.lists(st.integers(-1, 4), min_size=12, max_size=150), st.integers(1, 25), st.booleans())
def test_few_labels_are_as_many_of_each_class_and_the_rest_is_test(classes, labels, several):
    y = np.array(classes)
    if several:
        y = (y[:, None] == np.arange(3)).astype(np.int64)
    graph = Graph.from_edge_index(np.zeros((2, 0), np.int64), np.ones((len(y), 1)), y)
    groups = np.zeros(len(y), int) if several else y
    counts = {label: int((groups == label).sum()) for label in set(groups[groups >= 0].tolist())}
    most = 3 * labels if several else labels
    wanted = {label: min(most, count // 3) for label, count in counts.items()}
    if not sum(wanted.values()):
        with pytest.raises(GraphError, match="too few labelled nodes"):
            comparison_splits(graph, labels)
        return
    kind, parts = comparison_splits(graph, labels)
    assert (kind, len(parts)) == (f"{labels} a class", DRAWN)
    for train, val, test in parts:
        assert sorted([*train, *val, *test]) == np.flatnonzero(groups >= 0).tolist()
        for label, count in wanted.items():
            assert (groups[train] == label).sum() == (groups[val] == label).sum() == count
    again = comparison_splits(graph, labels)[1]
    assert all(np.array_equal(a, b) for a, b in zip(parts[0], again[0], strict=True))


def test_few_labels_ignore_the_graphs_own_split(graph):
    bare = graph.replace(**NO_MASKS)
    for own, drawn in zip(
        comparison_splits(graph, 4)[1], comparison_splits(bare, 4)[1], strict=True
    ):
        assert all(np.array_equal(a, b) for a, b in zip(own, drawn, strict=True))


def test_a_learner_sees_the_labels_of_train_nodes_alone(graph):
    right, wrong = np.eye(3)[graph.y], np.eye(3)[(graph.y + 1) % 3]
    seen = []

    def learn(parts, targets, exclusive):
        assert exclusive
        for (train, val, test), y in zip(parts, targets, strict=True):
            assert np.array_equal(y, right[train])
            assert len(y) < graph.num_nodes / 2
            seen.append(test)
            on_val = np.stack([wrong[val], right[val], right[val]])
            on_test = {0: wrong[test], 1: right[test], 2: wrong[test]}
            yield splits.Answers(["bad", "good", "late"], on_val, on_test.get)

    found = splits.compare_learner(learn, graph, labels=5)
    assert (found.score, found.val_score, found.chosen) == (1, 1, {"good": DRAWN})
    assert len(seen) == DRAWN


def test_without_splits_three_are_drawn_of_each_class():
    graph = random_graph(num_nodes=300).replace(**NO_MASKS)
    kind, parts = comparison_splits(graph)
    assert (kind, len(parts)) == ("random", DRAWN)
    for train, val, test in parts:
        assert len({*train, *val, *test}) == len(train) + len(val) + len(test) == 300
        for label in range(3):
            tenth = (graph.y == label).sum() // 10
            assert (graph.y[train] == label).sum() == (graph.y[val] == label).sum() == tenth
    assert not np.array_equal(parts[0][0], parts[1][0])


def test_missing_validation_nodes_are_taken_from_the_train_nodes(graph):
    half = graph.replace(val_mask=None)
    kind, ((train, val, test),) = comparison_splits(half)
    assert kind == "given, validation drawn"
    assert set(np.flatnonzero(graph.train_mask)) == {*train, *val}
    assert not {*train} & {*val}
    assert np.array_equal(test, np.flatnonzero(graph.test_mask))
    assert set(graph.y[val]) == {0, 1, 2}


def test_two_classes_are_scored_by_roc_auc():
    graph = random_graph(num_nodes=150)
    y = np.where(graph.y == 2, -1, graph.y + 1)  # classes 1 and 2, some nodes without
    z = np.eye(2)[np.clip(y - 1, 0, 1)] + np.random.default_rng(0).normal(size=(150, 2))
    found = compare_probe(z, graph.replace(y=y, **NO_MASKS), device=CPU)
    assert found.metric == "roc_auc"
    assert found.nodes[0] + found.nodes[1] + found.nodes[2] == (y >= 0).sum()
    assert 0.7 < found.score < 1  # two unit normals whose means are √2 apart: 0.84 at best
    assert found.score != found.accuracy


def test_several_labels_are_scored_by_their_mean_auc(graph):
    random = np.random.default_rng(0)
    y = (graph.x[:, :4] + 0.5 * random.normal(size=(60, 4)) > 0).astype(np.int64)
    found = compare_probe(graph.x, graph.replace(y=y), device=CPU)
    assert found.metric == "label_auc"
    assert found.score > 0.75
    assert found.micro_f1 > 0.6
    noise = compare_probe(random.normal(size=(60, 4)), graph.replace(y=y), device=CPU)
    assert noise.score < 0.7


def test_auc_is_scikit_learns_with_ties_and_empty_labels():
    random = np.random.default_rng(0)
    scores = random.integers(0, 5, (40, 3)).astype(float)
    targets = random.integers(0, 2, (40, 3))
    expected = np.mean([roc_auc_score(targets[:, k], scores[:, k]) for k in range(3)])
    assert mean_auc(scores, targets) == pytest.approx(expected)
    targets[:, 1] = 0
    expected = np.mean([roc_auc_score(targets[:, k], scores[:, k]) for k in (0, 2)])
    assert mean_auc(scores, targets) == pytest.approx(expected)
    assert mean_auc(scores[:, :1], np.zeros((40, 1), int)) == 0.5


def test_micro_f1_is_scikit_learns():
    random = np.random.default_rng(1)
    scores, targets = random.normal(size=(30, 4)), random.integers(0, 2, (30, 4))
    found = splits.measure(scores, targets, "label_auc")
    assert found[2] == pytest.approx(f1_score(targets, scores > 0, average="micro"))


def test_test_labels_choose_nothing(graph):
    several = many_splits(graph)
    found = compare_probe(graph.x, several, device=CPU)
    other = np.where(several.split(0).test_mask, (graph.y + 1) % 3, graph.y)
    wrong = compare_probe(graph.x, several.split(0).replace(y=other), device=CPU)
    right = compare_probe(graph.x, several.split(0), device=CPU)
    assert (wrong.val_score, wrong.chosen) == (right.val_score, right.chosen)
    assert wrong.score < right.score
    assert found.split_scores[0] == right.score


@pytest.mark.parametrize(
    ("changes", "z", "message"),
    [
        ({"y": None}, np.ones((60, 2)), "random: has no labels"),
        ({}, np.ones((59, 2)), r"embeddings \(59, 2\) for a graph of 60 nodes"),
        ({"y": np.zeros(60, np.int64)}, np.ones((60, 2)), "fewer than two classes"),
        ({}, np.full((60, 2), np.nan), "nan"),
    ],
)
def test_what_cannot_be_scored_says_why(graph, changes, z, message):
    with pytest.raises(GraphError, match=message):
        compare_probe(z, graph.replace(**changes), device=CPU)


def test_no_test_row_moves_another_rows_score():
    graph = many_splits(random_graph(num_nodes=240))
    _, _, test = comparison_splits(graph)[1][0]
    moved = np.array(graph.x)
    moved[test[0]] *= 1e4
    before = compare_probe(graph.x, graph, device=CPU)
    after = compare_probe(moved, graph, device=CPU)
    # One of its rows may be classified otherwise, in the splits that test on it.
    assert after.split_scores[0] == pytest.approx(before.split_scores[0], abs=1 / len(test) + 1e-9)


def test_one_split_is_the_probes_own(graph):
    from graphcl import linear_probe

    known = graph.train_mask | graph.val_mask
    z, y, train = graph.x[known], graph.y[known], graph.train_mask[known]
    found = validation_score(z, y, train, splits=1)
    # The probe tries weaker penalties too, and takes one that is good on other splits: near.
    assert abs(found - linear_probe(graph.x, graph).val_accuracy) <= 0.1
    assert 0 <= validation_score(z, y, train) <= 1
    assert validation_score(z, y, train) == validation_score(z, y, train)


def test_errors_name_what_is_missing(graph):
    with pytest.raises(GraphError, match="fewer than two"):
        validation_score(graph.x, np.zeros(graph.num_nodes), graph.train_mask)
    with pytest.raises(GraphError, match="no labelled validation"):
        validation_score(graph.x, graph.y, np.ones(graph.num_nodes, dtype=bool))


def test_two_classes_are_ranked_by_the_area_and_more_by_accuracy():
    random = np.random.default_rng(0)
    y = (np.arange(200) % 10 == 0).astype(int)  # a rare class: accuracy tells nothing of it
    z = random.normal(size=(200, 2)) + 1.5 * y[:, None]
    train = np.arange(200) % 2 == 0
    train[np.flatnonzero(y)[::2]] = False
    found = validation_score(z, y, train, splits=1)
    areas, strengths = [], [one for one in STRENGTHS if one <= 1]
    rows = standardiser(z[train])(z)
    for strength in strengths:
        probe = LogisticRegression(C=strength, max_iter=300).fit(rows[train], y[train])
        areas.append(roc_auc_score(y[~train], probe.decision_function(rows[~train])))
    assert found == pytest.approx(max(areas), abs=1e-3)
    assert metric_of(y) == "roc_auc"
    assert metric_of(np.arange(9) % 3) == "accuracy"
    assert metric_of(np.eye(3)) == "label_auc"


def test_one_class_per_node(graph):
    predicted = np.random.default_rng(0).integers(0, 3, graph.num_nodes)
    result = score_predictions(predicted, graph)
    y, test, val = graph.y, graph.test_mask, graph.val_mask
    assert result.accuracy == result.micro_f1 == accuracy_score(y[test], predicted[test])
    assert result.macro_f1 == pytest.approx(f1_score(y[test], predicted[test], average="macro"))
    assert result.val_accuracy == accuracy_score(y[val], predicted[val])
    assert (result.split, result.nodes) == ("given", (20, 20, 20))
    assert score_predictions(y, graph).accuracy == 1


def test_several_labels_per_node(collection):
    y = collection.y
    predicted = np.random.default_rng(0).integers(0, 2, y.shape)
    result = score_predictions(predicted, collection)
    train, val, test = collection.split_nodes
    tested = slice(train + val, train + val + test)
    assert result.micro_f1 == f1_score(y[tested], predicted[tested], average="micro")
    hits = (y[tested] * predicted[tested]).sum()
    assert result.micro_f1 == pytest.approx(2 * hits / (y[tested].sum() + predicted[tested].sum()))
    assert result.accuracy == (y[tested] == predicted[tested]).mean()
    assert result.nodes == (train, val, test)
    assert 0 < result.val_micro_f1 < 1


def test_other_shapes_and_missing_labels_are_refused(graph):
    with pytest.raises(GraphError, match=r"predictions \(59,\) for labels \(60,\)"):
        score_predictions(np.zeros(59), graph)
    bare = Graph.from_edge_index(graph.edge_index(), graph.x)
    with pytest.raises(GraphError, match="no labels"):
        score_predictions(np.zeros(60), bare)


@pytest.mark.parametrize(
    ("mask", "name"),
    [("train_mask", "train"), ("val_mask", "validation"), ("test_mask", "test")],
)
def test_a_part_without_labels_and_half_a_split_are_refused(graph, mask, name):
    bare = graph.replace(y=np.where(getattr(graph, mask), -1, graph.y))
    with pytest.raises(GraphError, match=f"^scores: no labelled node among the {name} nodes$"):
        score_predictions(graph.y, bare)
    with pytest.raises(GraphError, match=f"^scores: .* are given, {name} nodes are not; give all"):
        score_predictions(graph.y, graph.replace(**{mask: None}))


def test_the_matrix_is_that_of_the_probe_that_was_scored():
    graph = random_graph()
    z = graph.x + np.random.default_rng(0).normal(size=graph.x.shape)
    score = linear_probe(z, graph)
    found = probe_confusion(z, graph, strength=score.strength)
    accuracy = np.trace(found.counts) / found.counts.sum()
    assert accuracy == score.accuracy
    assert found.counts.sum() == graph.test_mask.sum()
    of_class = [(graph.y[graph.test_mask] == c).sum() for c in found.classes]
    assert found.counts.sum(axis=1).tolist() == of_class
    assert 0 < accuracy < 1  # some are wrong, so rows and columns cannot be mixed up
    assert not np.array_equal(found.counts, found.counts.T)


def test_the_matrix_of_a_drawn_split_with_gaps_in_the_classes():
    graph = random_graph()
    y = graph.y * 10
    y[:5] = -1
    free = Graph.from_edge_index(graph.edge_index(), graph.x, y)
    found = probe_confusion(free.x, free, strength=1.0)
    assert found.classes.tolist() == [0, 10, 20]
    assert found.counts.sum() == linear_probe(free.x, free).nodes[2]


def test_what_has_no_confusion_matrix():
    graph = random_graph()
    bare = Graph.from_edge_index(graph.edge_index(), graph.x)
    with pytest.raises(GraphError, match="one class per node"):
        probe_confusion(graph.x, bare, strength=1.0)
    several = random_collection()
    with pytest.raises(GraphError, match="one class per node"):
        probe_confusion(np.ones((several.num_nodes, 2)), several, strength=1.0)
    with pytest.raises(GraphError, match="for a graph of 60 nodes"):
        probe_confusion(graph.x[:7], graph, strength=1.0)
