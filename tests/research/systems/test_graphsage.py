import numpy as np
import pytest
import scipy.stats
import torch
from torch.nn.functional import relu

from graphcl.errors import ParameterError
from graphcl.evaluation.probe import linear_probe
from graphcl.graphs.graph import Graph
from graphcl.research.systems import SYSTEMS, graphsage
from graphcl.research.systems.graphsage import (
    GraphSage,
    build_aggregators,
    co_occurring,
    draw_negatives,
    negative_distribution,
    walk_loss,
)
from graphcl.research.systems.layers import dense_csr
from graphcl.research.systems.system import Unsupervised
from tests.research.systems.communities import (
    CPU,
    communities,
    same_weights,
    weights_of,
    with_other_unseen,
    with_other_unseen_nodes,
)

SMALL = {"dim": 8, "pool_dim": 16, "lstm_dim": 8, "samples_1": 4, "samples_2": 3, "batch_nodes": 64}
VARIANTS = ("gcn", "mean", "lstm", "pool")


def small(variant, **fields):
    return SYSTEMS[f"graphsage-{variant}"].method("", **(SMALL | {"epochs": 1} | fields))


def csr(graph):
    return torch.tensor(graph.indptr), torch.tensor(graph.indices)


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_learns_communities_of_unseen_graphs(variant):
    collection = communities()
    method = small(variant, epochs=6, learning_rate=0.01)
    assert isinstance(method, Unsupervised)
    calls = []
    z = method.embed(collection, seed=0, device=CPU, on_epoch=lambda *done: calls.append(done))
    assert z.shape == (collection.num_nodes, 16)
    assert z.dtype == np.float32
    assert calls == [(epoch, 6) for epoch in range(1, 7)]
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1, rtol=1e-5)
    assert linear_probe(z, collection).accuracy > 0.7  # chance is 0.4


@pytest.mark.parametrize("variant", VARIANTS)
def test_same_seed_same_bits(variant, graph):
    one, again, other = (small(variant).embed(graph, seed=s, device=CPU) for s in (0, 0, 1))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("variant", VARIANTS)
def test_unseen_graphs_stay_unseen(variant, monkeypatch):
    collection = communities()
    other = with_other_unseen(collection, val=True)
    built = weights_of(monkeypatch, graphsage, "build_aggregators")
    rows = [small(variant).embed(data, seed=0, device=CPU) for data in (collection, other)]
    assert same_weights(*built)
    seen = collection.split_nodes[0]
    assert np.array_equal(rows[0][:seen], rows[1][:seen])
    assert not np.array_equal(rows[0][seen:], rows[1][seen:])


@pytest.mark.parametrize("inductive", [True, False])
def test_unseen_nodes_stay_unseen(inductive, graph, monkeypatch):
    built = weights_of(monkeypatch, graphsage, "build_aggregators")
    for data in (graph, with_other_unseen_nodes(graph)):
        small("mean", inductive=inductive).embed(data, seed=0, device=CPU)
    assert same_weights(*built) == inductive


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_moves_every_weight(variant, graph, monkeypatch):
    built = weights_of(monkeypatch, graphsage, "build_aggregators")
    small(variant, learning_rate=1e-12).embed(graph, seed=0, device=CPU)
    small(variant).embed(graph, seed=0, device=CPU)
    start, end = (dict(layers.named_parameters()) for layers in built)
    for name, weight in end.items():
        assert not torch.allclose(weight, start[name], atol=1e-6), name


def test_layer_by_layer_is_the_tree_where_sampling_has_no_choice():
    """Each node has one neighbour, so every sample is the same."""
    edges = np.arange(20).reshape(2, 10)
    graph = Graph.from_edge_index(edges, np.random.default_rng(0).normal(size=(20, 6)))
    for variant in VARIANTS:
        method = small(variant, samples_1=3)  # a tree's first layer has both on its levels
        layers = graphsage.build_aggregators(method, 6, torch.Generator().manual_seed(0))
        x, *structure = dense_csr(graph, CPU, method.feature_scaling)
        with torch.no_grad():
            plain = method._encode(layers, x, *structure, torch.arange(20), seed=5).numpy()
        whole = method._embed_all(layers, x, *structure, seed=3)
        np.testing.assert_allclose(whole, plain, rtol=1e-5, atol=1e-6)


def test_the_loss_is_the_papers():
    draws = torch.Generator().manual_seed(0)
    z, near, far = (torch.randn(rows, 3, generator=draws) for rows in (4, 4, 5))
    counts = torch.tensor([True, False, True, True])
    terms = [
        -torch.log(torch.sigmoid(z[u] @ near[u]))
        - sum(torch.log(torch.sigmoid(-z[u] @ far[n])) for n in range(5))
        for u in range(4)
        if counts[u]
    ]
    expected = sum(terms) / 3
    torch.testing.assert_close(walk_loss(z, near, far, counts=counts), expected)
    nothing = walk_loss(z, near, far, counts=torch.zeros(4, dtype=torch.bool))
    assert float(nothing) == 0


def test_walks_stop_at_each_place_equally_often():
    """On a long path, a walk of 3 nodes ends 1 away, or 0 or 2 away, with known odds."""
    edges = np.stack([np.arange(99), np.arange(1, 100)])
    indptr, indices = csr(Graph.from_edge_index(edges, np.zeros((100, 1))))
    start = torch.full((20_000,), 50)
    found = co_occurring(indptr, indices, start, length=3, seed=0) - 50
    counts = [int((found == away).sum()) for away in (-2, -1, 0, 1, 2)]
    assert sum(counts) == 20_000
    expected = 20_000 * np.array([1 / 8, 1 / 4, 1 / 4, 1 / 4, 1 / 8])
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-3


def test_a_walk_from_a_lonely_node_stays():
    indptr, indices = csr(Graph.from_edge_index([[0], [1]], np.zeros((3, 1))))
    assert co_occurring(indptr, indices, torch.tensor([2]), length=5, seed=0).tolist() == [2]


def test_negatives_follow_degree_to_three_quarters(graph):
    indptr, _ = csr(graph)
    drawn = draw_negatives(negative_distribution(indptr), 40_000, seed=0)
    weight = np.diff(graph.indptr) ** 0.75
    expected = 40_000 * weight / weight.sum()
    met = expected > 0
    counts = np.bincount(drawn.numpy(), minlength=graph.num_nodes)
    assert counts[~met].sum() == 0
    assert scipy.stats.chisquare(counts[met], expected[met]).pvalue > 1e-3


def test_a_graph_without_edges_can_be_embedded():
    graph = Graph.from_edge_index(np.empty((2, 0), int), np.eye(6))
    assert np.isfinite(small("mean").embed(graph, seed=0, device=CPU)).all()


def test_bad_parameters_are_named():
    with pytest.raises(ParameterError, match="aggregator must be gcn or mean or lstm or pool"):
        GraphSage(aggregator="sum")
    with pytest.raises(ParameterError, match="walk_length must be at least 2"):
        GraphSage(walk_length=1)


@pytest.fixture
def rows():
    draws = torch.Generator().manual_seed(1)
    return torch.randn(7, 5, generator=draws), torch.randn(7, 3, 5, generator=draws)


def layer(name):
    draws = torch.Generator().manual_seed(0)
    method = GraphSage(aggregator=name, dim=4, pool_dim=6, lstm_dim=3)
    layers = build_aggregators(method, 5, draws)
    assert len(layers) == 2
    return layers[0]


def each(own, around, formula):
    return torch.stack([formula(own[n], list(around[n])) for n in range(len(own))])


def test_gcn_is_the_mean_with_the_node_itself(rows):
    gcn = layer("gcn")
    plain = each(*rows, lambda h, near: (h + sum(near)) / 4 @ gcn.weight)
    torch.testing.assert_close(gcn(*rows), plain)


def test_mean_keeps_the_node_beside_its_neighbours(rows):
    mean = layer("mean")
    plain = each(*rows, lambda h, near: torch.cat([h @ mean.own, sum(near) / 3 @ mean.weight]))
    torch.testing.assert_close(mean(*rows), plain)


def test_pool_is_the_maximum_of_a_small_network(rows):
    pool = layer("pool")
    with torch.no_grad():
        pool.pool_bias.normal_()

    def formula(h, near):
        hidden = torch.stack([relu(n @ pool.pool + pool.pool_bias) for n in near])
        return torch.cat([h @ pool.own, hidden.max(0).values @ pool.weight])

    torch.testing.assert_close(pool(*rows), each(*rows, formula))


def test_lstm_reads_the_neighbours_in_their_order(rows):
    lstm = layer("lstm")
    own, around = rows
    w_in, w_state = lstm.lstm.weight_ih_l0, lstm.lstm.weight_hh_l0

    def formula(h, near):
        state = cell = torch.zeros(3)
        for n in near:
            i, f, g, o = (w_in @ n + w_state @ state).split(3)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            state = torch.sigmoid(o) * torch.tanh(cell)
        return torch.cat([h @ lstm.own, state @ lstm.weight])

    torch.testing.assert_close(lstm(own, around), each(own, around, formula))
    assert not torch.allclose(lstm(own, around), lstm(own, around.flip(1)))


@pytest.mark.parametrize("name", ["gcn", "mean", "lstm", "pool"])
def test_the_generator_alone_decides_the_weights(name):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, second = layer(name), layer(name)
    assert torch.equal(torch.random.get_rng_state(), before)
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
