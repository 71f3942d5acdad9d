import numpy as np
import pytest
import torch
from torch.nn.functional import leaky_relu

from graphcl.errors import ParameterError
from graphcl.research.systems import SYSTEMS, gaan
from graphcl.research.systems.gaan import Gaan, GaanModel, GatedAttention, Part
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
    gaan.supervised_loss(logits, part.y).backward()
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
    built = weights_of(monkeypatch, gaan, "GaanModel")
    for seed in (0, 0, 1):
        small().fit_predict(communities((2, 1, 1)), seed=seed, device=CPU)
    assert same_weights(built[0], built[1])
    assert not same_weights(built[0], built[2])


def test_test_graphs_change_nothing(monkeypatch):
    collection = communities()
    built = weights_of(monkeypatch, gaan, "GaanModel")
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
    built = weights_of(monkeypatch, gaan, "GaanModel")
    for data in (graph, with_other_unseen_nodes(graph)):
        small(inductive=inductive, epochs=1).fit_predict(data, seed=0, device=CPU)
    assert same_weights(*built) == inductive


def test_the_best_epoch_on_validation_stays(monkeypatch):
    scores, saved = iter([0.2, 0.9, 0.1]), []
    built = weights_of(monkeypatch, gaan, "GaanModel")

    def validate(model, parts, epoch):
        saved.append([weight.detach().clone() for weight in model.parameters()])
        return next(scores)

    monkeypatch.setattr(gaan, "_validate", validate)
    small(epochs=3).fit_predict(communities((2, 1, 1)), seed=0, device=CPU)
    assert all(torch.equal(a, b) for a, b in zip(built[0].parameters(), saved[1], strict=True))


def test_bad_parameters_are_named():
    with pytest.raises(ParameterError, match="Gaan: heads must be at least 1; got 0"):
        Gaan(heads=0)
    with pytest.raises(ParameterError, match=r"dropout must be in \[0, 1\)"):
        Gaan(dropout=1.5)
