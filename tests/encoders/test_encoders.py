import math

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.nn import SimpleConv

from graphcl.encoders import ENCODERS, build_encoder
from graphcl.encoders.paper import MeanPoolingEncoder, ResidualEncoder
from graphcl.errors import ParameterError
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from tests.conftest import dense_adjacency, random_graph

CPU = torch.device("cpu")


def elu(value):
    return value if value > 0 else math.exp(value) - 1


def plain_mean_pooling(graph, weights):
    """The paper's update rule node by node: mean over {u} and its neighbours, then W."""
    h = np.asarray(graph.x, dtype=np.float64)
    for number, weight in enumerate(weights):
        pooled = np.zeros_like(h)
        for u in range(graph.num_nodes):
            members = [u, *graph.indices[graph.indptr[u] : graph.indptr[u + 1]]]
            pooled[u] = sum(h[v] for v in members) / len(members)
        h = pooled @ weight
        if number < len(weights) - 1 or len(weights) == 1:
            h = np.vectorize(elu)(h)
    return h


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("dim", [4, 20])  # narrower and wider than the input: both orders of Â X W
def test_mean_pooling_is_the_papers_rule(graph, layers, dim, generator):
    encoder = build_encoder("mean", graph.num_features, dim=dim, layers=layers, generator=generator)
    x, adjacency = graph_tensors(graph, device=CPU)
    weights = [weight.detach().double().numpy() for weight in encoder.weights]
    expected = plain_mean_pooling(graph, weights)
    np.testing.assert_allclose(encoder(x, adjacency).detach(), expected, rtol=1e-4, atol=1e-5)


def plain_residual_units(graph, encoder):
    """The paper's three equations node by node, for any number of layers."""
    h = np.asarray(graph.x, dtype=np.float64)
    layers = len(encoder.own_weights)
    for number in range(layers):
        pooled_weight = encoder.pooled_weights[number].detach().double().numpy()
        own_weight = encoder.own_weights[number].detach().double().numpy()
        rows = []
        for u in range(graph.num_nodes):
            members = [u, *graph.indices[graph.indptr[u] : graph.indptr[u + 1]]]
            mean = sum(h[v] for v in members) / len(members)
            rows.append(mean @ pooled_weight + h[u] @ own_weight)
        h = np.array(rows)
        if number < layers - 1:
            h = np.vectorize(elu)(h)
    return h


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("dim", [4, 12, 20])  # narrower, as wide and wider than the input
def test_residual_units_are_the_papers_equations(graph, layers, dim, generator):
    encoder = build_encoder(
        "residual", graph.num_features, dim=dim, layers=layers, generator=generator
    )
    expected = plain_residual_units(graph, encoder)
    h = encoder(*graph_tensors(graph, device=CPU))
    np.testing.assert_allclose(h.detach(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dim", [4, 20])
def test_gradients_of_residual_units(graph, dim, generator):
    encoder = build_encoder("residual", graph.num_features, dim=dim, layers=3, generator=generator)
    x, adjacency = graph_tensors(graph, device=CPU)
    encoder(x, adjacency).square().sum().backward()
    dense = torch.tensor(dense_adjacency(graph) + np.eye(graph.num_nodes), dtype=torch.float32)
    mean = dense / dense.sum(1, keepdim=True)
    weights = [(p.detach().clone(), p.grad) for p in encoder.parameters()]
    plain = [weight.requires_grad_() for weight, _ in weights]
    h = x
    for number in range(3):
        h = torch.nn.functional.elu(h) if number else h
        h = mean @ h @ plain[number] + h @ plain[3 + number]
    h.square().sum().backward()
    for weight, (_, ours) in zip(plain, weights, strict=True):
        torch.testing.assert_close(ours, weight.grad, rtol=1e-3, atol=1e-3)


def test_mean_pooling_against_pyg(graph, generator):
    encoder = build_encoder("mean", graph.num_features, dim=8, layers=1, generator=generator)
    x, adjacency = graph_tensors(graph, device=CPU)
    pooled = SimpleConv(aggr="mean", combine_root="self_loop")(x, graph.to_pyg().edge_index)
    expected = torch.nn.functional.elu(pooled @ encoder.weights[0])
    torch.testing.assert_close(encoder(x, adjacency), expected)


def test_sparse_and_dense_features_agree(graph, generator):
    sparse = Graph.from_edge_index(graph.edge_index(), scipy.sparse.csr_array(graph.x))
    for name in ENCODERS:
        encoder = build_encoder(name, graph.num_features, dim=8, layers=2, generator=generator)
        dense_h = encoder(*graph_tensors(graph, device=CPU))
        torch.testing.assert_close(encoder(*graph_tensors(sparse, device=CPU)), dense_h)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("layers", [1, 2])
def test_encoders_are_permutation_equivariant(name, layers, generator):
    graph = random_graph()
    order = np.random.default_rng(0).permutation(graph.num_nodes)
    place = np.argsort(order)
    moved = Graph.from_edge_index(place[graph.edge_index()], graph.x[order])
    encoder = build_encoder(
        name, graph.num_features, dim=8, layers=layers, generator=generator
    ).eval()
    h = encoder(*graph_tensors(graph, device=CPU))
    moved_h = encoder(*graph_tensors(moved, device=CPU))
    assert h.shape == (graph.num_nodes, 8)
    torch.testing.assert_close(moved_h, h[torch.tensor(order)], rtol=1e-4, atol=1e-5)


def test_glorot_bounds_and_no_bias(generator):
    encoder = MeanPoolingEncoder(100, dim=50, layers=2, generator=generator)
    shapes = [tuple(parameter.shape) for parameter in encoder.parameters()]
    assert shapes == [(100, 50), (50, 50)]
    for weight in encoder.weights:
        bound = math.sqrt(6 / sum(weight.shape))
        assert 0.95 * bound < weight.abs().max() <= bound


def test_residual_glorot_bounds_and_no_bias(generator):
    encoder = ResidualEncoder(100, dim=50, layers=3, generator=generator)
    shapes = [tuple(parameter.shape) for parameter in encoder.parameters()]
    assert shapes == [(100, 50), (50, 50), (50, 50)] * 2
    for weight in encoder.parameters():
        bound = math.sqrt(6 / sum(weight.shape))
        assert 0.95 * bound < weight.abs().max() <= bound


@pytest.mark.parametrize("name", ENCODERS)
def test_the_generator_alone_decides_the_weights(name):
    state = torch.random.get_rng_state()
    built = []
    for disturbance in range(2):
        torch.manual_seed(disturbance)
        inside = torch.random.get_rng_state()
        encoder = build_encoder(
            name, 6, dim=4, layers=2, generator=torch.Generator().manual_seed(1)
        )
        assert torch.equal(torch.random.get_rng_state(), inside)
        built.append(encoder.state_dict())
    torch.random.set_rng_state(state)
    assert all(torch.equal(built[0][key], built[1][key]) for key in built[0])


def test_unknown_encoder(generator):
    with pytest.raises(ParameterError, match=r"known: mean, residual, gcn, .*did you mean 'gcn'"):
        build_encoder("gcnn", 3, generator=generator)
