"""A layer that is stated once gives the same wherever it is computed."""

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn

from graphcl.embedding import embed, embed_graph
from graphcl.encoders import Layer, LayeredEncoder, glorot
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.sampling import encode_tree, sample_tree, tree_views
from graphcl.views import Drop
from tests.conftest import dense_adjacency, plain_topology, random_graph

CPU = torch.device("cpu")


class Everything(LayeredEncoder):
    """Bias, normalisation over rows, another activation, layers of different widths and kinds."""

    def __init__(self, num_features, *, norm=nn.LayerNorm, widths=(9, 5, 7)):
        super().__init__()
        shapes = list(zip((num_features, *widths[:-1]), widths, strict=True))
        self.pooled = nn.ParameterList(torch.empty(shape) for shape in shapes)
        self.own = nn.ParameterList(torch.empty(shape) for shape in shapes[1:])
        self.shift = nn.Parameter(torch.linspace(-1, 1, widths[0]))
        self.norm = norm(widths[1])
        glorot(self, torch.Generator().manual_seed(0))

    def layer_specs(self):
        return (
            Layer(self.pooled[0], bias=self.shift, activation=torch.tanh),
            Layer(self.pooled[1], self.own[0], normalisation=self.norm),
            Layer(self.pooled[2], self.own[1], activation=None),
        )


def by_hand(graph, encoder):
    """The module's equation with dense matrices."""
    mean = torch.tensor(dense_adjacency(graph) + np.eye(graph.num_nodes), dtype=torch.float32)
    mean = mean / mean.sum(1, keepdim=True)
    h = torch.tensor(np.asarray(graph.x.todense() if scipy.sparse.issparse(graph.x) else graph.x))
    first, second, third = encoder.layer_specs()
    h = torch.tanh(mean @ h @ first.pooled + first.bias)
    h = nn.functional.elu(encoder.norm(mean @ h @ second.pooled + h @ second.own))
    return mean @ h @ third.pooled + h @ third.own


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
@pytest.mark.parametrize("sparse", [False, True])
def test_whole_and_in_blocks_it_is_the_equation(norm, sparse):
    graph = random_graph()
    if sparse:
        x = scipy.sparse.csr_array(graph.x * (graph.x > 0))
        graph = Graph.from_edge_index(graph.edge_index(), x)
    encoder = Everything(graph.num_features, norm=norm)
    if norm is nn.BatchNorm1d:
        encoder.norm.running_mean.uniform_(-1, 1)
        encoder.norm.running_var.uniform_(0.5, 2)
    encoder.eval()
    expected = by_hand(graph, encoder).detach().numpy()
    whole = embed(encoder, *graph_tensors(graph, device=CPU))
    blocks = embed_graph(encoder, graph, device=CPU, block_rows=7)["node"]
    some = embed_graph(encoder, graph, device=CPU, block_rows=7, nodes=slice(11, 29))["node"]
    for found, rows in ((whole, slice(None)), (blocks, slice(None)), (some, slice(11, 29))):
        np.testing.assert_allclose(found, expected[rows], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
def test_on_a_tree_of_all_neighbours_it_is_the_whole_graph(norm):
    """Value and gradient; batch normalisation by its running statistics."""
    graph = random_graph(num_nodes=25)
    encoder = Everything(graph.num_features, norm=norm).eval()
    widest = int(np.diff(graph.indptr).max())
    topology = plain_topology(graph, widest, replace=False)
    tree = sample_tree(topology, {"node": torch.arange(25)}, layers=3, seed=0)
    view, _ = tree_views(topology.x, tree, Drop(0.0, 0.0), own=False, seed=0)
    (found,) = encode_tree(view, encoder)
    expected = encoder(*graph_tensors(graph, device=CPU))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    parameters = list(encoder.parameters())
    ours = torch.autograd.grad(found.square().sum(), parameters)
    theirs = torch.autograd.grad(expected.square().sum(), parameters)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_a_sampled_batch_is_normalised_as_one():
    """While training, batch statistics are over the rows of all levels."""
    graph = random_graph()
    encoder = Everything(graph.num_features, norm=nn.BatchNorm1d).train()
    topology = plain_topology(graph, 3)
    tree = sample_tree(topology, {"node": torch.arange(20)}, layers=3, seed=0)
    view, _ = tree_views(topology.x, tree, Drop(0.1, 0.1), own=False, seed=0)
    encode_tree(view, encoder)
    assert encoder.norm.num_batches_tracked == 1  # once, not once a level
    assert not torch.equal(encoder.norm.running_mean, torch.zeros(5))


@pytest.mark.parametrize("widths", [(3, 3), (12, 12), (20, 12)])
@pytest.mark.parametrize("own", [False, True])
def test_either_order_of_pooling_and_product_gives_the_same(graph, widths, own):
    generator = torch.Generator().manual_seed(0)
    pooled = torch.randn(graph.num_features, widths[0], generator=generator)
    kept = torch.randn(graph.num_features, widths[0], generator=generator) if own else None
    x, adjacency = graph_tensors(graph, device=CPU)
    dense = torch.tensor(dense_adjacency(graph) + np.eye(graph.num_nodes), dtype=torch.float32)
    expected = dense / dense.sum(1, keepdim=True) @ x @ pooled
    expected = expected if kept is None else expected + x @ kept
    found = Layer(pooled, kept, activation=None).on_graph(x, adjacency)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_an_encoder_must_state_something(graph):
    with pytest.raises(NotImplementedError, match="LayeredEncoder must define layer_specs"):
        LayeredEncoder()(*graph_tensors(graph, device=CPU))
