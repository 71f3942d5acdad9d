import numpy as np
import pytest
import torch

from graphcl.errors import ParameterError, TrainingError
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.supervised import GAT, GCN, FastGcn, NormalisedAdjacency
from graphcl.research.systems.system import is_unsupervised
from tests.conftest import dense_adjacency, random_collection, random_graph
from tests.research.systems.communities import (
    CPU,
    communities,
    unseen_accuracy,
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
    with pytest.raises(TrainingError, match="gat: the result is not finite"):
        GAT(learning_rate=1e30, epochs=3).fit_predict(graph, seed=0, device=CPU)


SMALL = {"hidden": 16, "samples": 40, "batch_nodes": 16, "epochs": 10}


def small(**fields):
    return SYSTEMS["fastgcn"].method("", **(SMALL | fields))


def normalised(graph):
    looped = dense_adjacency(graph) + np.eye(graph.num_nodes)
    scale = looped.sum(1) ** -0.5
    return torch.tensor(scale[:, None] * looped * scale, dtype=torch.float32)


def test_the_propagation_is_the_symmetric_one(graph):
    ours, plain = NormalisedAdjacency.of(graph, CPU), normalised(graph)
    h = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours.matrix @ h, plain @ h)
    torch.testing.assert_close(ours.importance, plain.square().sum(0))
    rows, columns = torch.tensor([3, 3, 59, 0]), torch.arange(59, -1, -1)
    torch.testing.assert_close(ours.entries(rows, columns), plain[rows][:, columns])


def test_the_sampled_layer_is_unbiased(graph):
    ours, plain = NormalisedAdjacency.of(graph, CPU), normalised(graph)
    rows = torch.tensor([0, 5, 17])
    h = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    nodes, weight = ours.sample(rows, 200_000, torch.Generator().manual_seed(1))
    assert bool((plain[rows][:, nodes] > 0).any(0).all())  # no draw that every row would waste
    estimate = (ours.entries(rows, nodes) * weight) @ h[nodes]
    torch.testing.assert_close(estimate, plain[rows] @ h, atol=0.02, rtol=0)


def test_it_learns_on_one_graph():
    graph = random_graph(num_nodes=150)
    predicted = small().fit_predict(graph, seed=0, device=CPU)
    assert predicted.shape == (150,)
    assert predicted.dtype == np.int64
    assert (predicted == graph.y)[graph.test_mask].mean() > 0.7  # chance is 0.4
    assert not is_unsupervised(small())


def test_it_learns_on_some_graphs_and_predicts_on_others():
    collection = communities()
    predicted = small().fit_predict(collection, seed=0, device=CPU)
    assert unseen_accuracy(predicted, collection) > 0.7


def test_several_labels_per_node():
    collection = random_collection()
    predicted = small(epochs=30).fit_predict(collection, seed=0, device=CPU)
    assert predicted.shape == collection.y.shape
    assert set(np.unique(predicted)) <= {0, 1}
    assert (predicted == collection.y).mean() > max(collection.y.mean(), 1 - collection.y.mean())


def test_same_seed_same_bits(graph):
    options = {"epochs": 2, "hidden": 4, "patience": 1, "samples": 5}
    seeds = (0, 0, *range(1, 6))
    one, again, *others = (
        small(**options).fit_predict(graph, seed=seed, device=CPU) for seed in seeds
    )
    assert np.array_equal(one, again)
    assert any(not np.array_equal(one, other) for other in others)


def test_it_stops_when_validation_does_not_improve(graph):
    epochs = []
    small(learning_rate=1e-12, epochs=50, patience=3).fit_predict(
        graph, seed=0, device=CPU, on_epoch=lambda done, _: epochs.append(done)
    )
    assert epochs == [1, 2, 3, 4]


def test_test_graphs_change_nothing():
    collection = communities()
    seen = sum(collection.split_nodes[:2])
    one, other = (
        small(epochs=2).fit_predict(data, seed=0, device=CPU)
        for data in (collection, with_other_unseen(collection, val=False))
    )
    assert np.array_equal(one[:seen], other[:seen])


def test_inductive_training_sees_the_training_nodes_alone(graph):
    """With one epoch there is no choice of weights left to validation."""
    other = with_other_unseen_nodes(graph)
    alone = np.flatnonzero(graph.train_mask)[:1]
    isolated = [cut_off(data, alone) for data in (graph, other)]
    one, two = (
        small(inductive=True, epochs=1).fit_predict(data, seed=0, device=CPU) for data in isolated
    )
    assert np.array_equal(one[alone], two[alone])


def cut_off(graph, nodes):
    """The graph without the edges of some nodes: their predictions depend on weights alone."""
    edges = graph.edge_index()
    kept = edges[:, ~np.isin(edges, nodes).any(0)]
    masks = {name: getattr(graph, name) for name in ("train_mask", "val_mask", "test_mask")}
    return type(graph).from_edge_index(kept, graph.x, graph.y, **masks)


def test_bad_parameters_are_named():
    with pytest.raises(ParameterError, match="FastGcn: samples must be at least 1; got 0"):
        FastGcn(samples=0)
