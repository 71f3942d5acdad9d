import numpy as np
import pytest
import torch

from graphcl.encoders import Layer, build_encoder, stated_layers
from graphcl.errors import ParameterError
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.counter import Draws, edge_draws, kept, stream_key, threshold
from graphcl.kernels.gather_mean import dropped
from graphcl.kernels.neighbours import sample_neighbours
from graphcl.sampling import Tree, encode_tree, sample_tree, tree_views
from graphcl.views import drop
from tests.conftest import dense_adjacency, random_graph

CPU = torch.device("cpu")
NO_DROP = drop(0.0, 0.0)


def tree_of(graph, nodes, **options):
    csr = torch.tensor(graph.indptr), torch.tensor(graph.indices)
    return sample_tree(*csr, nodes, **({"seed": 0} | options))


def encoder_for(graph, name, layers, dim=8):
    return build_encoder(
        name, graph.num_features, dim=dim, layers=layers, generator=torch.Generator().manual_seed(0)
    )


def encoded(graph, tree, name, encoder, edge_drop=0.0, feature_drop=0.0, seed=0):
    perturbation = drop(edge_drop, feature_drop)
    views = tree_views(torch.tensor(graph.x), tree, perturbation, own=name == "residual", seed=seed)
    return [encode_tree(view, stated_layers(encoder)) for view in views]


def with_isolated(graph):
    edges = graph.edge_index()
    return Graph.from_edge_index(edges[:, (edges > 2).all(0)], graph.x)


def test_a_tree_is_regular_and_follows_edges(graph):
    tree = tree_of(graph, torch.arange(6), fan_outs=(4, 3, 2))
    assert [len(level) for level in tree.levels] == [6, 24, 72, 144]
    edges = dense_adjacency(graph) + np.eye(graph.num_nodes)
    for level, fan_out in enumerate(tree.fan_outs):
        parents = tree.levels[level].repeat_interleave(fan_out)
        assert edges[parents, tree.levels[level + 1]].all()


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("name", ["mean", "residual"])
def test_a_tree_of_all_neighbours_is_exact(name, layers):
    """Without replacement and with room for every neighbour, nothing is left to chance."""
    graph = with_isolated(random_graph(num_nodes=30))
    widest = int(np.diff(graph.indptr).max())
    tree = tree_of(graph, torch.arange(30), fan_outs=(widest + 1,) * layers, replace=False)
    encoder = encoder_for(graph, name, layers)
    expected = encoder(*graph_tensors(graph, device=CPU))
    for h in encoded(graph, tree, name, encoder):
        torch.testing.assert_close(h, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("name", ["mean", "residual"])
def test_the_expectation_of_a_linear_encoder_is_the_exact_one(name, replace):
    """Two layers and no ELU: Â² X W, or (Â W_1 + W_2)² with identity weights."""
    graph = with_isolated(random_graph(num_nodes=40))
    repeats, nodes = 3000, torch.arange(40)
    tree = tree_of(graph, nodes.repeat(repeats), fan_outs=(3, 3), replace=replace)
    # elu(h + c) − c = h wherever h + c > 0: a bias in the features makes the encoder linear.
    lifted = torch.tensor(graph.x) + 100
    views = tree_views(lifted, tree, NO_DROP, own=name == "residual", seed=0)
    eye = torch.eye(graph.num_features)
    own = eye if name == "residual" else None
    h = encode_tree(views[0], [Layer(eye, own), Layer(eye, own, activation=None)])
    samples = h.view(repeats, 40, -1).double()
    pool = torch.tensor(dense_adjacency(graph) + np.eye(40))
    pool = pool / pool.sum(1, keepdim=True)
    layer = pool + torch.eye(40) if name == "residual" else pool
    expected = layer @ layer @ lifted.double()
    error = (samples.mean(0) - expected).abs()
    bound = 5.5 * samples.std(0) / repeats**0.5 + 1e-4
    assert (error <= bound).all()
    assert (samples.std(0)[3:] > 0).any()


def test_paper_weights_count_a_child_like_its_parent(graph):
    nodes = torch.arange(graph.num_nodes)
    degree = torch.tensor(np.diff(graph.indptr))
    tree = tree_of(graph, nodes, fan_outs=(4,), unbiased=False)
    assert (tree.weights[0] == 1).all()
    tree = tree_of(graph, nodes, fan_outs=(4,))
    torch.testing.assert_close(tree.weights[0].view(-1, 4).sum(1), degree.float())
    tree = tree_of(graph, nodes, fan_outs=(4,), replace=False)
    torch.testing.assert_close(tree.weights[0].view(-1, 4).sum(1), degree.float())
    assert ((tree.weights[0].view(-1, 4) > 0).sum(1) == degree.clamp(max=4)).all()


def slow_encoding(x, tree, views_of, layers):
    """Node by node from the tree's definition, with the draws taken from `views_of`."""
    keeps, features = views_of

    def h(layer, level, place):
        if layer == 0:
            return features[level][place]
        fan_out = tree.fan_outs[level]
        total, count = h(layer - 1, level, place), 1.0
        own = total
        for child in range(place * fan_out, (place + 1) * fan_out):
            w = float(tree.weights[level][child]) * float(keeps[level][child])
            if w:
                total = total + w * h(layer - 1, level + 1, child)
                count += w
        out = total / count @ layers[layer - 1].pooled
        if layers[layer - 1].own is not None:
            out = out + own @ layers[layer - 1].own
        return torch.nn.functional.elu(out) if layer < len(layers) else out

    return torch.stack([h(len(layers), 0, place) for place in range(len(tree.levels[0]))])


@pytest.mark.parametrize("view", [0, 1])
@pytest.mark.parametrize("name", ["mean", "residual"])
def test_the_encoder_on_a_perturbed_tree_value_and_gradient(graph, name, view):
    x = torch.tensor(graph.x)
    tree = tree_of(graph, torch.tensor([3, 11]), fan_outs=(3, 2, 2))
    encoder = encoder_for(graph, name, 3)
    ours = encoded(graph, tree, name, encoder, edge_drop=0.3, feature_drop=0.4, seed=9)[view]
    draws = Draws(0.3, 0.4, stream_key(9, "edges"), stream_key(9, "features"))
    places = [torch.arange(len(nodes)) // (len(nodes) // 2) for nodes in tree.levels]
    keeps = [
        kept(
            edge_draws(below, above.repeat_interleave(fan_out), children, draws.edges),
            view,
            threshold(0.3),
        )
        for below, above, fan_out, children in zip(
            places[1:], tree.levels, tree.fan_outs, tree.levels[1:], strict=False
        )
    ]
    features = [
        dropped(x[nodes], place, nodes, draws)[view]
        for place, nodes in zip(places, tree.levels, strict=True)
    ]
    plain = slow_encoding(x, tree, (keeps, features), stated_layers(encoder))
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
    ours_gradient = torch.autograd.grad(ours.square().sum(), list(encoder.parameters()))
    plain_gradient = torch.autograd.grad(plain.square().sum(), list(encoder.parameters()))
    for a, b in zip(ours_gradient, plain_gradient, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_views_share_the_tree_and_differ(graph):
    tree = tree_of(graph, torch.arange(10), fan_outs=(3, 3))
    encoder = encoder_for(graph, "residual", 2)
    first, second = encoded(graph, tree, "residual", encoder, edge_drop=0.2, feature_drop=0.2)
    assert not torch.equal(first, second)
    again, _ = encoded(graph, tree, "residual", encoder, edge_drop=0.2, feature_drop=0.2)
    other, _ = encoded(graph, tree, "residual", encoder, edge_drop=0.2, feature_drop=0.2, seed=1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    same = encoded(graph, tree, "residual", encoder)
    assert torch.equal(*same)


def test_bad_arguments(graph):
    with pytest.raises(ParameterError, match="fan_outs must be one number of at least 1 per layer"):
        tree_of(graph, torch.arange(3), fan_outs=(3, 0))
    tree = tree_of(graph, torch.arange(3), fan_outs=(2, 2))
    assert isinstance(tree, Tree)
    with pytest.raises(ParameterError, match=r"Drop: edge_drop must be in \[0, 1\); got 1.0"):
        encoded(graph, tree, "mean", encoder_for(graph, "mean", 2), edge_drop=1.0)
    with pytest.raises(ParameterError, match="encode_tree: layers must be 2, the hops; got 3"):
        encoded(graph, tree, "mean", encoder_for(graph, "mean", 3))
    with pytest.raises(ParameterError, match=r"this needs an encoder that states its layers.*Pyg"):
        stated_layers(encoder_for(graph, "gcn", 2))


def test_a_hop_is_the_kernels_draw(graph):
    csr = torch.tensor(graph.indptr), torch.tensor(graph.indices)
    nodes = torch.arange(5)
    tree = sample_tree(*csr, nodes, fan_outs=(4, 2), seed=3)
    key = stream_key(3, "neighbours", 1)
    expected = sample_neighbours(*csr, tree.levels[1], fan_out=2, replace=True, key=key)
    assert torch.equal(tree.levels[2], expected)
