import numpy as np
import pytest
import scipy.sparse
import torch
from torch.nn.functional import leaky_relu

from graphcl.answers import rivals
from graphcl.errors import ParameterError, TrainingError
from graphcl.evaluation.splits import compare_learner, comparison_splits, mean_auc
from graphcl.research.systems import SYSTEMS, supervised
from graphcl.research.systems.supervised import (
    GAT,
    GCN,
    Gaan,
    GaanModel,
    GatedAttention,
    Part,
    Trees,
)
from tests.conftest import dense_adjacency, random_collection, random_graph
from tests.research.systems.communities import (
    CPU,
    communities,
    same_weights,
    unseen_accuracy,
    weights_of,
    with_other_unseen,
    with_other_unseen_nodes,
)


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


SMALL = {
    "layers": 2, "dim": 16, "embed_dim": 8, "heads": 2, "key_dim": 4, "value_dim": 4,
    "max_dim": 4, "epochs": 2, "validate_every": 1, "dropout": 0.1, "learning_rate": 0.005,
}  # fmt: skip


def small(**fields):
    return SYSTEMS["gaan"].method("", **(SMALL | fields))


def test_a_layer_is_the_papers_equations(graph):
    torch.manual_seed(0)
    layer = GatedAttention(small(heads=2, key_dim=3, value_dim=4, max_dim=6), 12, 5)
    part = Part.of(graph, CPU)
    h = part.x
    q, k, v, m = layer.project(h).split([6, 6, 8, 6], dim=1)
    looped = dense_adjacency(graph) + np.eye(60)
    rows = []
    for i in range(60):
        near = np.flatnonzero(looped[i])
        context = torch.cat([h[i], m[near].max(0).values, h[near].mean(0)])
        gates = torch.sigmoid(layer.gate(context))
        heads = []
        for head in range(2):
            keys, values = slice(3 * head, 3 * head + 3), slice(4 * head, 4 * head + 4)
            weight = torch.softmax(k[near, keys] @ q[i, keys], 0)
            heads.append(gates[head] * (weight @ leaky_relu(v[near, values], 0.1)))
        rows.append(layer.output(torch.cat([h[i], *heads])))
    torch.testing.assert_close(layer(h, part.adjacency), torch.stack(rows))


def test_gradient_reaches_every_weight(graph):
    model = GaanModel(small(), 12, 3, generator=torch.Generator().manual_seed(0))
    part = Part.of(graph, CPU).labelled(graph.y)
    logits = model(part, torch.Generator().manual_seed(0)).index_select(0, part.nodes)
    supervised.supervised_loss(logits, part.y).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool((parameter.grad != 0).any()), name


def test_it_learns_on_some_graphs_and_predicts_on_others():
    collection = communities()
    calls = []
    predicted = small(epochs=8).fit_predict(
        collection, seed=0, device=CPU, on_epoch=lambda *done: calls.append(done)
    )
    assert predicted.dtype == np.int64
    assert unseen_accuracy(predicted, collection) > 0.7  # chance is 0.4
    assert calls == [(epoch, 8) for epoch in range(1, 9)]


def test_several_labels_per_node():
    collection = random_collection()
    predicted = small(epochs=15, learning_rate=0.02).fit_predict(collection, seed=0, device=CPU)
    assert predicted.shape == collection.y.shape
    seen = collection.split_nodes[0]
    right = (predicted == collection.y)[:seen].mean()
    assert right > max(collection.y.mean(), 1 - collection.y.mean())


def test_one_graph():
    graph = random_graph(num_nodes=150)
    predicted = small(epochs=60).fit_predict(graph, seed=0, device=CPU)
    assert (predicted == graph.y)[graph.test_mask].mean() > 0.7


def test_same_seed_same_bits(monkeypatch):
    built = weights_of(monkeypatch, supervised, "GaanModel")
    for seed in (0, 0, 1):
        small().fit_predict(communities((2, 1, 1)), seed=seed, device=CPU)
    assert same_weights(built[0], built[1])
    assert not same_weights(built[0], built[2])


def test_test_graphs_change_nothing(monkeypatch):
    collection = communities()
    built = weights_of(monkeypatch, supervised, "GaanModel")
    one, other = (
        small().fit_predict(data, seed=0, device=CPU)
        for data in (collection, with_other_unseen(collection, val=False))
    )
    assert same_weights(*built)
    seen = sum(collection.split_nodes[:2])
    assert np.array_equal(one[:seen], other[:seen])


@pytest.mark.parametrize("inductive", [True, False])
def test_inductive_training_sees_the_training_nodes_alone(inductive, graph, monkeypatch):
    """With one epoch there is no choice of weights left to validation."""
    built = weights_of(monkeypatch, supervised, "GaanModel")
    for data in (graph, with_other_unseen_nodes(graph)):
        small(inductive=inductive, epochs=1).fit_predict(data, seed=0, device=CPU)
    assert same_weights(*built) == inductive


def test_the_best_epoch_on_validation_stays(monkeypatch):
    scores, saved = iter([0.2, 0.9, 0.1]), []
    built = weights_of(monkeypatch, supervised, "GaanModel")

    def validate(model, parts, epoch):
        saved.append([weight.detach().clone() for weight in model.parameters()])
        return next(scores)

    monkeypatch.setattr(supervised, "_validate", validate)
    small(epochs=3).fit_predict(communities((2, 1, 1)), seed=0, device=CPU)
    assert all(torch.equal(a, b) for a, b in zip(built[0].parameters(), saved[1], strict=True))


def test_bad_parameters_are_named():
    with pytest.raises(ParameterError, match="Gaan: heads must be at least 1; got 0"):
        Gaan(heads=0)
    with pytest.raises(ParameterError, match=r"dropout must be in \[0, 1\)"):
        Gaan(dropout=1.5)
