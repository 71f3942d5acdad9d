import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from graphcl.errors import GraphError
from graphcl.evaluation.validation import link_auc, validation_accuracy


def test_one_split_is_the_probes_own(graph):
    from graphcl import linear_probe

    known = graph.train_mask | graph.val_mask
    z, y, train = graph.x[known], graph.y[known], graph.train_mask[known]
    found = validation_accuracy(z, y, train, splits=1)
    # The probe standardises over all nodes and tries weaker penalties too: near, not equal.
    assert abs(found - linear_probe(graph.x, graph).val_accuracy) <= 0.1
    assert 0 <= validation_accuracy(z, y, train) <= 1
    assert validation_accuracy(z, y, train) == validation_accuracy(z, y, train)


def test_what_cannot_be_learned_is_said(graph):
    with pytest.raises(GraphError, match="fewer than two"):
        validation_accuracy(graph.x, np.zeros(graph.num_nodes), graph.train_mask)
    with pytest.raises(GraphError, match="no labelled validation"):
        validation_accuracy(graph.x, graph.y, np.ones(graph.num_nodes, dtype=bool))


def test_link_auc_against_scikit_learn(graph):
    random = np.random.default_rng(0)
    links, others = (random.integers(0, graph.num_nodes, (2, n)) for n in (40, 70))
    z = graph.x.astype(float)
    z = (z - z.mean(0)) / z.std(0)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    scores = [np.sum(z[pairs[0]] * z[pairs[1]], axis=1) for pairs in (links, others)]
    expected = roc_auc_score([1] * 40 + [0] * 70, np.concatenate(scores))
    assert link_auc(graph.x, links, others) == pytest.approx(expected)


def test_ties_count_half():
    z = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    assert link_auc(z, np.array([[0], [1]]), np.array([[2], [3]])) == 0.5
