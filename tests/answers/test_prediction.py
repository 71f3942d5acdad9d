import numpy as np
import pandas
import pytest

from graphcl.answers.prediction import known_labels, predict
from graphcl.errors import GraphError, ParameterError
from graphcl.graphs.graph import Graph
from tests.conftest import random_graph


@pytest.fixture
def z(graph):
    random = np.random.default_rng(0)
    return (np.eye(3)[graph.y] * 3 + random.normal(size=(60, 3))).astype(np.float32)


def hidden(graph, count=30):
    return np.where(np.arange(60) < count, graph.y, -1)


def test_nodes_without_a_label_get_one_with_a_probability(graph, z):
    found = predict(z, graph, hidden(graph))
    assert found.rows.tolist() == list(range(30, 60))
    right = np.array(found.labels) == graph.y[30:]
    assert right.mean() > 0.85
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, rtol=1e-5)
    assert found.error.nodes == 30
    assert found.labelled == tuple(np.bincount(graph.y[:30]).tolist())
    assert sum(found.counts().values()) == 30


def test_the_same_seed_gives_the_same_answer_and_labels_are_all_that_is_learned_from(graph, z):
    first, second = (predict(z, graph, hidden(graph), seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.probabilities, second.probabilities)
    assert first.error == second.error
    other = Graph.from_edge_index(graph.edge_index(), graph.x, (graph.y + 1) % 3)
    blind = predict(z, other, hidden(graph), seed=3)  # the graph's own labels are not looked at
    np.testing.assert_array_equal(first.probabilities, blind.probabilities)


def test_all_nodes_include_the_labelled_ones_by_probes_that_have_not_seen_them(graph, z):
    wrong = hidden(graph)
    wrong[4] = (wrong[4] + 1) % 3  # a label that is a mistake
    found = predict(z, graph, wrong, nodes="all")
    assert len(found) == 60
    assert found.known[:30].sum() == 30
    assert (found.known[30:] == -1).all()
    assert found.labels[4] != wrong[4]
    some = predict(z, graph, wrong)
    np.testing.assert_allclose(found.probabilities[30:], some.probabilities, rtol=1e-5, atol=1e-7)


def test_names_ids_and_columns_are_kept(graph, z):
    ids = [f"node {n}" for n in range(60)]
    names = ("Physics", "Art, modern", "Zoë")
    named = Graph.from_edge_index(
        graph.edge_index(), graph.x, hidden(graph), node_ids=ids, class_names=names
    )
    found = predict(z, named)
    assert found.classes == names
    table = found.columns()
    assert list(table) == ["id", "label", "probability", *(f"p:{name}" for name in names)]
    assert table["id"].tolist() == ids[30:]
    for row, label in enumerate(table["label"]):
        assert table[f"p:{label}"][row] == table["probability"][row]


def test_labels_come_as_names_with_gaps_as_a_mapping_or_as_a_column(graph, z):
    words = np.array(["a", "b", "c"], dtype=object)[graph.y]
    words[30:] = None
    numbers = predict(z, graph, hidden(graph))
    for labels in (
        words,
        pandas.Series(words),
        {n: str(words[n]) for n in range(30)},
        {str(n): str(words[n]) for n in range(30)},
    ):
        found = predict(z, graph, labels)
        assert found.classes == ("a", "b", "c")
        np.testing.assert_array_equal(found.probabilities, numbers.probabilities)


def test_a_model_embeds_the_graph_itself(graph, z):
    class Model:
        def transform(self, given):
            assert given is graph
            return z

    found = predict(Model(), graph, hidden(graph))
    np.testing.assert_array_equal(
        found.probabilities, predict(z, graph, hidden(graph)).probabilities
    )


def test_several_labels_per_node(graph, z):
    labels = np.stack([graph.y == 0, graph.y != 1], axis=1).astype(float)
    labels[40:] = np.nan
    found = predict(z, graph, labels)
    assert found.several
    assert len(found) == 20
    truth = [
        [place for place in (0, 1) if (graph.y[n] == 0, graph.y[n] != 1)[place]]
        for n in range(40, 60)
    ]
    assert sum(a == b for a, b in zip(found.labels, truth, strict=True)) >= 15
    assert "probability" not in found.columns()
    by_id = predict(z, graph, {n: [k for k in (0, 1) if labels[n, k]] for n in range(40)})
    np.testing.assert_allclose(by_id.probabilities, found.probabilities, atol=1e-6)


def test_scores_on_hidden_labels(graph, z):
    found = predict(z, graph, hidden(graph))
    score = found.score(known_labels(graph.y, np.arange(60)))
    assert score.nodes == 30
    assert score.how == "held-out nodes"
    assert score.accuracy == (np.array(found.labels) == graph.y[30:]).mean()
    assert found.score(known_labels(hidden(graph), np.arange(60))) is None


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "no labels"),
        (np.zeros(59, int), r"labels \(59,\) for 60 nodes"),
        (np.full(60, -1), "no node has a label"),
        (np.where(np.arange(60) < 5, 0, -1), "no second class"),
        (np.arange(60) % 3, "all 60 nodes have a label"),
        (np.where(np.arange(60) < 5, -3, -1), "must be whole"),
        (np.full((60, 2), 2), "must be 0 or 1"),
        (np.tile([0, -1], (60, 1)), "known all or none"),
        ({"absent": "a"}, "no node has the id 'absent'"),
    ],
)
def test_labels_that_do_not_fit(labels, message, z):
    with pytest.raises(GraphError, match=message):
        predict(z, labels=labels)


def test_which_nodes(z):
    with pytest.raises(ParameterError, match="predict: nodes must be unlabelled or all"):
        predict(z, random_graph(), nodes="some")
