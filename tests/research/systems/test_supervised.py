import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl.answers import rivals
from graphcl.errors import TrainingError
from graphcl.evaluation.splits import compare_learner, comparison_splits, mean_auc
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.supervised import GAT, GCN, Trees
from tests.conftest import random_graph

CPU = torch.device("cpu")


def test_it_learns_the_classes(graph):
    predicted = GCN(epochs=40, learning_rate=0.05).fit_predict(graph, seed=0, device=CPU)
    assert (predicted == graph.y)[graph.test_mask].mean() > 0.7
    assert (predicted == graph.y)[graph.train_mask].mean() > 0.9


def test_epochs_are_counted(graph):
    seen = []
    GCN(epochs=3).fit_predict(graph, seed=0, device=CPU, on_epoch=lambda *c: seen.append(c))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_it_learns_the_classes_and_stops_by_itself(graph):
    epochs = []
    predicted = GAT(hidden=4, heads=2, learning_rate=0.05, patience=10).fit_predict(
        graph, seed=0, device=CPU, on_epoch=lambda done, _: epochs.append(done)
    )
    assert (predicted == graph.y)[graph.test_mask].mean() > 0.7
    assert 10 < epochs[-1] < 2000


def test_several_output_heads_are_averaged(graph):
    predicted = GAT(output_heads=3, epochs=3).fit_predict(graph, seed=0, device=CPU)
    assert predicted.max() < 3


def test_a_training_that_runs_away_says_so(graph):
    with pytest.raises(TrainingError, match="gat: the loss is not finite in epoch 3"):
        GAT(learning_rate=1e30, epochs=3).fit_predict(graph, seed=0, device=CPU)


def tables(graph):
    """Returns own columns, and with them the means one and two hops away, by plain loops."""
    own = np.asarray(graph.x, np.float64)
    one, two = np.zeros_like(own), np.zeros_like(own)
    around = [graph.indices[a:b] for a, b in zip(graph.indptr, graph.indptr[1:], strict=False)]
    for table, means in ((own, one), (one, two)):
        for node, others in enumerate(around):
            if len(others):
                means[node] = table[others].mean(axis=0)
    return own, np.hstack([own, one, two])


def boosted(x, train, y, **settings):
    make = lambda *given: rivals.boosted_trees(*given, l2_regularization=1.0, **settings)  # noqa: E731
    return rivals.fit_model(make, x[train], y, 0)


@pytest.mark.parametrize("labels", [None, 8])
def test_it_is_a_direct_call_for_every_setting_and_split(labels):
    graph = random_graph(num_nodes=150)
    found = compare_learner(Trees().learner(graph, seed=0), graph, labels=labels)
    own, wide = tables(graph)
    scores, chosen = [], []
    for train, val, test in comparison_splits(graph, labels)[1]:
        tried = []
        for name, x, more in (
            ("own columns", own, {}),
            ("with neighbours", wide, {}),
            ("with neighbours, small steps", wide, {"learning_rate": 0.05}),
        ):
            model = boosted(x, train, graph.y[train], **more)
            on_val, on_test = ((model.predict(x[n]) == graph.y[n]).mean() for n in (val, test))
            tried.append((on_val, on_test, name))
        best = max(tried, key=lambda one: one[0])
        scores.append(best[1])
        chosen.append(best[2])
    # Sums in another order: a threshold may fall on the other side of a node.
    assert found.split_scores == pytest.approx(scores, abs=0.05)
    assert set(found.chosen) <= set(chosen) | {"with neighbours", "own columns"}
    assert sum(found.chosen.values()) == len(scores)


def test_neighbours_help_where_a_node_alone_tells_nothing():
    graph = random_graph(num_nodes=150)
    blind = np.random.default_rng(0).normal(size=(150, 3)).astype(np.float32)
    alone = compare_learner(Trees(hops=1).learner(graph.replace(x=blind), seed=0), graph)
    told = compare_learner(Trees().learner(graph, seed=0), graph)
    assert told.score > alone.score + 0.1


def test_two_classes_and_several_labels_are_ranked():
    graph = random_graph(num_nodes=150)
    y = (graph.y == 0).astype(np.int64)
    two = graph.replace(y=y, x=scipy.sparse.csr_array(graph.x))
    assert compare_learner(Trees().learner(two, seed=0), two, labels=20).metric == "roc_auc"
    several = graph.replace(y=np.stack([y, 1 - y, graph.y // 2], axis=1))
    found = compare_learner(Trees().learner(several, seed=0), several, labels=20)
    assert found.metric == "label_auc"
    assert found.score > 0.6
    (answer,) = Trees().learner(several, seed=0)(
        [(np.arange(50), np.arange(50, 100), np.arange(100, 150))], [several.y[:50]], False
    )
    assert answer.val.shape == (3, 50, 3)
    assert mean_auc(answer.test(1), several.y[100:]) > 0.6


def test_it_predicts_as_any_supervised_system_does(graph):
    predicted = SYSTEMS["trees"].method("").fit_predict(graph, seed=0, device=CPU)
    assert (predicted[graph.test_mask] == graph.y[graph.test_mask]).mean() > 0.6
    several = graph.replace(y=np.eye(3, dtype=np.int64)[graph.y])
    predicted = SYSTEMS["trees"].method("").fit_predict(several, seed=0, device=CPU)
    assert predicted.shape == several.y.shape
    assert set(np.unique(predicted)) == {0, 1}
