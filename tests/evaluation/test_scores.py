import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from graphcl.errors import GraphError
from graphcl.evaluation import linear_probe, score_predictions
from graphcl.evaluation.scores import probe_confusion
from graphcl.graphs.graph import Graph
from tests.conftest import random_collection, random_graph


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
    assert found.accuracy == score.accuracy
    assert found.counts.sum() == graph.test_mask.sum()
    of_class = [(graph.y[graph.test_mask] == c).sum() for c in found.classes]
    assert found.counts.sum(axis=1).tolist() == of_class
    assert 0 < found.accuracy < 1  # some are wrong, so rows and columns cannot be mixed up
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
