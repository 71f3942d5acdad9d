import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import prelu
from torch_geometric.nn import DeepGraphInfomax, GCNConv

from graphcl.errors import ParameterError, TrainingError
from graphcl.evaluation.probe import linear_probe
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.neighbours import sample_levels
from graphcl.research.systems import SYSTEMS, dgi
from graphcl.research.systems.dgi import (
    DGI,
    DgiInductive,
    Infomax,
    SampledEncoder,
    SkipEncoder,
    shuffled,
)
from graphcl.research.systems.layers import Convolutions, Symmetric, dense_csr
from graphcl.seeding import generator
from tests.conftest import dense_adjacency
from tests.research.systems.communities import (
    CPU,
    communities,
    same_weights,
    weights_of,
    with_other_unseen,
    with_other_unseen_nodes,
)


def test_the_loss_is_that_of_plain_loops():
    draw = generator(0, "test")
    loss_of = Infomax(4, draw, bias=True)
    with torch.no_grad():
        loss_of.bias.fill_(0.3)
    h, corrupted = (torch.randn(7, 4, generator=draw) for _ in range(2))
    s = [1 / (1 + math.exp(-float(h[:, k].mean()))) for k in range(4)]
    m = loss_of.weight.detach().numpy()
    total = 0.0
    for row, sign in [(row, 1) for row in h] + [(row, -1) for row in corrupted]:
        score = sum(float(row[a]) * m[a, b] * s[b] for a in range(4) for b in range(4)) + 0.3
        total += math.log1p(math.exp(-sign * score))
    found = loss_of(h, corrupted).item()
    assert math.isclose(found, total / 14, rel_tol=1e-5)


def test_pyg_agrees(graph):
    x, adjacency = graph_tensors(graph, device=CPU)
    draw = generator(0, "test")
    encoder = Convolutions((12, 8), draw=draw, activation="prelu")
    loss_of = Infomax(8, draw, bias=True)
    order = torch.randperm(graph.num_nodes)
    pool, product = Symmetric.normalised(adjacency), x @ encoder.weights[0]
    h, corrupted = (encoder.propagate(one, pool) for one in (product, product[order]))
    conv = GCNConv(12, 8)
    conv.lin.weight.data = encoder.weights[0].detach().T.clone()
    edges = adjacency.edge_index()
    torch.testing.assert_close(h, torch.nn.functional.prelu(conv(x, edges), encoder.slopes[0]))
    theirs = torch.nn.functional.prelu(conv(x[order], edges), encoder.slopes[0])
    torch.testing.assert_close(corrupted, theirs)
    infomax = DeepGraphInfomax(8, conv, lambda z: z.mean(0).sigmoid(), None)
    infomax.weight.data = loss_of.weight.detach().clone()
    loss = infomax.loss(h, corrupted, h.mean(0).sigmoid()) / 2  # theirs is the sum of two means
    torch.testing.assert_close(loss_of(h, corrupted), loss, rtol=1e-4, atol=0)


def test_it_learns_and_stops_by_itself(graph):
    epochs = []
    z = DGI(dim=32, patience=10, learning_rate=0.01).embed(
        graph, seed=0, device=CPU, on_epoch=lambda done, _: epochs.append(done)
    )
    assert 20 < epochs[-1] < 10_000
    assert np.isfinite(z).all()
    assert linear_probe(z, graph).accuracy > 0.7


def test_a_training_that_runs_away_says_so(graph):
    with pytest.raises(TrainingError, match="dgi: the loss is not finite in epoch 5"):
        DGI(dim=8, learning_rate=1e30, epochs=5).embed(graph, seed=0, device=CPU)


SMALL = {"dim": 16, "epochs": 2, "samples_1": 3, "samples_2": 2, "samples_3": 2, "batch_nodes": 32}


def small(**fields):
    return SYSTEMS["dgi-inductive"].method("", **(SMALL | fields))


def fresh():
    return torch.Generator().manual_seed(0)


def test_the_encoder_of_several_graphs_is_the_papers(graph):
    encoder = SkipEncoder(12, 8, fresh())
    with torch.no_grad():
        for number, activation in enumerate(encoder.activations):
            activation.weight.fill_(0.1 * (number + 1))
    x, adjacency = graph_tensors(graph, device=CPU)
    looped = torch.tensor(dense_adjacency(graph) + np.eye(60), dtype=torch.float32)
    pool = looped / looped.sum(1, keepdim=True)
    slopes = [torch.tensor([0.1]), torch.tensor([0.2]), torch.tensor([0.3])]
    h_1 = prelu(pool @ x @ encoder.first, slopes[0])
    h_2 = prelu(pool @ (h_1 + x @ encoder.skip) @ encoder.second, slopes[1])
    plain = prelu(pool @ (h_2 + h_1 + x @ encoder.skip) @ encoder.third, slopes[2])
    torch.testing.assert_close(encoder(x, adjacency), plain)


def test_patches_agree_with_the_graph_where_sampling_has_no_choice():
    edges = np.arange(20).reshape(2, 10)
    graph = Graph.from_edge_index(edges, np.random.default_rng(0).normal(size=(20, 6)))
    encoder = SampledEncoder(6, 8, 3, fresh())
    x, indptr, indices = dense_csr(graph, CPU, "none")
    nodes = torch.arange(20)
    levels = sample_levels(indptr, indices, nodes, fan_outs=(1, 1, 1), seed=0)
    on_patches = encoder.on_patches(x, [level.view(20, -1) for level in levels])
    torch.testing.assert_close(on_patches, encoder.on_graph(x, indptr, indices))


def test_the_loss_is_binary_cross_entropy_against_the_summary():
    discriminator = Infomax(4, fresh())
    h, corrupted = torch.randn(2, 5, 4, generator=fresh())
    summary = torch.sigmoid(h.mean(0))
    real = torch.sigmoid(h @ discriminator.weight @ summary)
    false = torch.sigmoid(corrupted @ discriminator.weight @ summary)
    plain = -(real.log().sum() + (1 - false).log().sum()) / 10
    torch.testing.assert_close(discriminator(h, corrupted), plain)


def test_shuffling_stays_within_a_patch():
    levels = [torch.arange(5)[:, None] * 100, torch.arange(5)[:, None] * 100 + torch.arange(1, 40)]
    mixed = shuffled(levels, fresh())
    assert [level.shape for level in mixed] == [level.shape for level in levels]
    before, after = torch.cat(levels, 1), torch.cat(mixed, 1)
    assert torch.equal(after.sort(1).values, before)
    assert not torch.equal(after, before)
    places = after - before[:, :1]
    assert len({tuple(row.tolist()) for row in places}) == 5  # a permutation of its own for each


def test_it_learns_communities_of_unseen_graphs():
    collection = communities()
    z = small(epochs=10).embed(collection, seed=0, device=CPU)
    assert z.shape == (collection.num_nodes, 16)
    assert linear_probe(z, collection).accuracy > 0.7  # chance is 0.4


def test_it_learns_communities_of_one_graph(graph):
    z = small(epochs=10).embed(graph, seed=0, device=CPU)
    assert z.shape == (graph.num_nodes, 16)
    assert linear_probe(z, graph).accuracy > 0.7


@pytest.mark.parametrize("kind", ["many", "one graph of many", "large"])
def test_same_seed_same_bits(kind, graph):
    many = communities((2, 1, 1))
    data = {"many": many, "large": graph}.get(kind) or replace(many, train=many.train[:1])
    one, again, other = (small().embed(data, seed=seed, device=CPU) for seed in (0, 0, 1))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_unseen_graphs_stay_unseen(monkeypatch):
    collection = communities()
    built = weights_of(monkeypatch, dgi, "SkipEncoder")
    rows = [
        small().embed(data, seed=0, device=CPU)
        for data in (collection, with_other_unseen(collection, val=True))
    ]
    assert same_weights(*built)
    seen = collection.split_nodes[0]
    assert np.array_equal(rows[0][:seen], rows[1][:seen])
    assert not np.array_equal(rows[0][seen:], rows[1][seen:])


@pytest.mark.parametrize("inductive", [True, False])
def test_unseen_nodes_stay_unseen(inductive, graph, monkeypatch):
    built = weights_of(monkeypatch, dgi, "SampledEncoder")
    for data in (graph, with_other_unseen_nodes(graph)):
        small(inductive=inductive).embed(data, seed=0, device=CPU)
    assert same_weights(*built) == inductive


@pytest.mark.parametrize(("name", "large"), [("SkipEncoder", False), ("SampledEncoder", True)])
def test_training_moves_every_weight(name, large, graph, monkeypatch):
    built = weights_of(monkeypatch, dgi, name)
    data = graph if large else GraphCollection((graph, graph))
    for rate in (1e-12, 1e-3):
        small(learning_rate=rate).embed(data, seed=0, device=CPU)
    start, end = (dict(encoder.named_parameters()) for encoder in built)
    for parameter, weight in end.items():
        assert not torch.allclose(weight, start[parameter], atol=1e-6), parameter


def test_bad_parameters_are_named():
    with pytest.raises(ParameterError, match="dim must be even and at least 2; got 7"):
        DgiInductive(dim=7)
    with pytest.raises(ParameterError, match=r"feature_drop must be in \[0, 1\)"):
        DgiInductive(feature_drop=1)


def test_own_features_beside_it(graph):
    alone, both = (
        DGI(dim=8, epochs=5, beside=one).embed(graph, seed=0, device=CPU) for one in (False, True)
    )
    centred = alone - alone.mean(0)
    expected = centred / np.sqrt(np.square(centred).sum(1).mean())
    np.testing.assert_allclose(both[:, 8:], expected, rtol=1e-3, atol=1e-5)
    assert np.square(both[:, :8]).sum(1).mean() == pytest.approx(1, rel=1e-4)
