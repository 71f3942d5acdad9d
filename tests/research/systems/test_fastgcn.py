import numpy as np
import pytest
import torch

from graphcl.errors import ParameterError
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.fastgcn import FastGcn, FastGcnModel, InputTable, LayerSampler
from graphcl.research.systems.system import Unsupervised, scaling_for
from tests.conftest import random_collection, random_graph
from tests.research.systems.communities import (
    communities,
    unseen_accuracy,
    with_other_unseen,
    with_other_unseen_nodes,
)

CPU = torch.device("cpu")
SMALL = {"hidden": 16, "samples": 40, "batch_nodes": 16, "epochs": 30}


def small(**fields):
    return SYSTEMS["fastgcn"].method("", **(SMALL | fields))


def fit_predict(data, *, seed=0, **fields):
    return small(**fields).fit_predict(data, seed=seed, device=CPU)


def draws(seed=0):
    return torch.Generator().manual_seed(seed)


def normalised(graph):
    """The matrix of a GCN, entry by entry."""
    neighbours = [{u} for u in range(graph.num_nodes)]
    for u, v in graph.edge_index().T.tolist():
        neighbours[u].add(v)
    matrix = np.zeros((graph.num_nodes, graph.num_nodes))
    for u, own in enumerate(neighbours):
        for v in own:
            matrix[u, v] = (len(own) * len(neighbours[v])) ** -0.5
    return matrix


def plain_logits(graph, first, second):
    """A GCN of two layers, node by node."""
    matrix = normalised(graph)
    hidden = np.zeros((graph.num_nodes, first.shape[1]))
    for u in range(graph.num_nodes):
        pooled = sum(matrix[u, v] * graph.x[v].astype(np.float64) for v in range(graph.num_nodes))
        hidden[u] = np.maximum(pooled @ first, 0)
    return (
        np.array(
            [
                sum(matrix[u, v] * hidden[v] for v in range(graph.num_nodes))
                for u in range(len(matrix))
            ]
        )
        @ second
    )


def model_and_table(graph, *, pooled):
    model = FastGcnModel((graph.num_features, 5, 3), 0.0, draws=draws())
    return model, InputTable.of(graph, scaling_for(graph, "none"), CPU, pooled=pooled)


@pytest.mark.parametrize("pooled", [True, False])
def test_with_all_nodes_it_is_a_gcn_in_value_loss_and_gradient(graph, pooled):
    model, table = model_and_table(graph, pooled=pooled)
    rows = torch.tensor([0, 5, 17, 59])
    first, second = (weight.detach().double().numpy() for weight in model.weights)
    expected = plain_logits(graph, first, second)
    np.testing.assert_allclose(model.exact(table).detach(), expected, rtol=1e-4, atol=1e-5)
    sampled = model.sampled(table, rows, 10_000, draws())
    np.testing.assert_allclose(sampled.detach(), expected[rows], rtol=1e-4, atol=1e-5)
    y = torch.tensor([0, 1, 2, 1])
    loss = torch.nn.functional.cross_entropy(sampled, y)
    likely = np.exp(expected[rows]) / np.exp(expected[rows]).sum(axis=1, keepdims=True)
    assert float(loss.detach()) == pytest.approx(
        -np.mean([np.log(likely[place, label]) for place, label in enumerate(y)]), rel=1e-5
    )
    matrix = torch.tensor(normalised(graph))
    weights = [torch.tensor(weight, requires_grad=True) for weight in (first, second)]
    h = torch.relu(matrix @ torch.tensor(graph.x).double() @ weights[0]) @ weights[1]
    plain = torch.nn.functional.cross_entropy((matrix @ h)[rows], y)
    for ours, theirs in zip(
        torch.autograd.grad(loss, list(model.weights)),
        torch.autograd.grad(plain, weights),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_node_is_drawn_in_proportion_to_the_square_of_its_column(graph):
    matrix, count = normalised(graph), 12
    sampler = LayerSampler.of(graph, CPU)
    np.testing.assert_allclose(sampler.importance, (matrix**2).sum(axis=0), rtol=1e-5)
    rows = torch.tensor([3, 8, 40])
    near = (matrix[rows] > 0).any(axis=0)
    q = np.where(near, (matrix**2).sum(axis=0), 0)
    q /= q.sum()
    stream, times, repeats = draws(), np.zeros(graph.num_nodes), 4000
    for _ in range(repeats):
        layer = sampler.sample(rows, count, stream)
        nodes = layer.nodes.numpy()
        # A weight is k / (t q) of a node that was drawn k times.
        weight = layer.block.numpy() / np.where(
            matrix[rows][:, nodes] > 0, matrix[rows][:, nodes], 1
        )
        times[nodes] += np.round(weight.max(axis=0) * count * q[nodes])
    assert times.sum() == repeats * count
    error = np.sqrt(q * (1 - q) / (repeats * count))
    assert (np.abs(times / times.sum() - q) <= 5 * error).all()


def test_the_mean_of_many_draws_is_the_gcn(graph):
    model, table = model_and_table(graph, pooled=True)
    rows, stream = torch.tensor([0, 5, 17]), draws(1)
    with torch.no_grad():
        found = torch.stack([model.sampled(table, rows, 8, stream) for _ in range(1000)])
        exact = model.exact(table)[rows]
    error = found.std(dim=0) / 1000**0.5
    assert bool(((found.mean(dim=0) - exact).abs() <= 5 * error).all())
    assert float(found.std(dim=0).mean()) > 0


def test_layers_are_drawn_independently(graph):
    """Of two sampled layers without an activation between, the mean is the product, too."""
    matrix = normalised(graph)
    sampler, rows, stream = LayerSampler.of(graph, CPU), torch.tensor([2, 30]), draws(2)
    total, repeats = np.zeros((2, graph.num_nodes)), 1500
    squares = np.zeros_like(total)
    for _ in range(repeats):
        upper = sampler.sample(rows, 15, stream)
        lower = sampler.sample(upper.nodes, 15, stream)
        estimate = np.zeros_like(total)
        estimate[:, lower.nodes] = (upper.block @ lower.block).numpy()
        total += estimate
        squares += estimate**2
    mean = total / repeats
    error = np.sqrt((squares / repeats - mean**2) / repeats)
    assert (np.abs(mean - (matrix @ matrix)[rows]) <= 6 * error + 1e-6).all()


@pytest.mark.parametrize("precompute", [True, False])
def test_it_learns_on_one_graph(precompute):
    graph = random_graph(num_nodes=150)
    predicted = fit_predict(graph, precompute=precompute)
    assert (predicted == graph.y)[graph.test_mask].mean() > 0.7  # chance is 0.4
    assert not isinstance(small(), Unsupervised)


def test_it_learns_on_some_graphs_and_predicts_on_others():
    collection = communities()
    assert unseen_accuracy(fit_predict(collection), collection) > 0.7


def test_several_labels_per_node():
    collection = random_collection()
    predicted = fit_predict(collection)
    assert predicted.shape == collection.y.shape
    assert (predicted == collection.y).mean() > max(collection.y.mean(), 1 - collection.y.mean())


@pytest.mark.parametrize("precompute", [True, False])
def test_a_seed_decides_what_is_drawn(graph, precompute):
    options = {"epochs": 2, "hidden": 4, "samples": 5, "precompute": precompute}
    one, again = (fit_predict(graph, **options) for _ in range(2))
    assert np.array_equal(one, again)
    others = [fit_predict(graph, seed=seed, **options) for seed in range(1, 5)]
    assert any(not np.array_equal(one, other) for other in others)


def test_it_stops_when_validation_does_not_improve(graph):
    epochs = []
    small(learning_rate=1e-12, epochs=50, patience=3).fit_predict(
        graph, seed=0, device=CPU, on_epoch=lambda done, _: epochs.append(done)
    )
    assert epochs[-1] == 10  # patience is looked at every tenth epoch


def test_unseen_graphs_and_nodes_change_nothing(graph):
    collection = communities()
    seen = sum(collection.split_nodes[:2])
    one, other = (
        fit_predict(data, epochs=2)
        for data in (collection, with_other_unseen(collection, val=False))
    )
    assert np.array_equal(one[:seen], other[:seen])
    # Nodes without edges are predicted by the weights alone; one epoch leaves no choice of them.
    alone = np.flatnonzero(graph.train_mask)[:1]
    one, other = (
        fit_predict(cut_off(data, alone), inductive=True, epochs=1)
        for data in (graph, with_other_unseen_nodes(graph))
    )
    assert np.array_equal(one[alone], other[alone])


def cut_off(graph, nodes):
    """The graph without the edges of some nodes."""
    edges = graph.edge_index()
    kept = edges[:, ~np.isin(edges, nodes).any(0)]
    masks = {name: getattr(graph, name) for name in ("train_mask", "val_mask", "test_mask")}
    return type(graph).from_edge_index(kept, graph.x, graph.y, **masks)


def test_bad_parameters_are_named():
    with pytest.raises(ParameterError, match="fastgcn: samples must be at least 1; got 0"):
        FastGcn(samples=0)
