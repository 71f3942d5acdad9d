import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.research.systems.layers import Symmetric
from graphcl.research.systems.training import CHECK_EVERY, EarlyStopping, cosine_decay, seeded
from tests.conftest import dense_adjacency

CPU = torch.device("cpu")


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60), st.integers(1, 12)
)
def test_early_stopping_is_the_plain_loop(epochs, patience):
    module = nn.Linear(1, 1)
    stopping = EarlyStopping(module, patience=patience)
    kept, waited, running = module.weight.item(), 0, True
    for number, (keep, improved) in enumerate(epochs, 1):
        with torch.no_grad():
            module.weight.fill_(number)
        stopping.update(keep=torch.tensor(keep), improved=torch.tensor(improved))
        if running:  # what a loop that asks at every epoch would do
            kept = number if keep else kept
            waited = 0 if improved else waited + 1
            running = waited < patience
        asked = number % CHECK_EVERY == 0
        assert stopping.stopped(number) == (asked and not running)
    stopping.restore()
    assert module.weight.item() == kept


def test_seeded_draws_are_those_of_the_name():
    def draw(seed, name):
        with seeded(seed, name, CPU):
            return torch.rand(3)

    assert torch.equal(draw(0, "a"), draw(0, "a"))
    assert not torch.equal(draw(0, "a"), draw(0, "b"))
    assert not torch.equal(draw(0, "a"), draw(1, "a"))


def test_a_weighted_graph_is_normalised_by_its_weights(graph):
    edges = graph.edge_index()
    heavy = Graph.from_edge_index(edges, graph.x, edge_weight=1.0 + edges.sum(0) % 3)
    _, adjacency = graph_tensors(heavy, device=torch.device("cpu"))
    a = np.zeros((graph.num_nodes, graph.num_nodes))
    a[tuple(heavy.edge_index())] = heavy.edge_weight
    degree = np.maximum((a > 0).sum(1), 1)
    a += np.diag(np.where(a.sum(1) > 0, a.sum(1) / degree, 1))
    scale = 1 / np.sqrt(a.sum(1))
    h = torch.randn(graph.num_nodes, 3)
    witness = torch.tensor(scale[:, None] * a * scale, dtype=torch.float32) @ h
    torch.testing.assert_close(Symmetric.normalised(adjacency) @ h, witness)


def test_products_and_gradients_are_the_dense_ones(graph):
    a = dense_adjacency(graph)
    loops = a + np.eye(len(a))
    scale = 1 / np.sqrt(loops.sum(1))
    dense = {"plain": a, "normalised": scale[:, None] * loops * scale}
    _, adjacency = graph_tensors(graph, device=torch.device("cpu"))
    for kind, matrix in dense.items():
        sparse = getattr(Symmetric, kind)(adjacency)
        witness = torch.tensor(matrix, dtype=torch.float32)
        h = torch.randn(graph.num_nodes, 5, requires_grad=True)
        weight = torch.randn(graph.num_nodes, 5)
        torch.testing.assert_close(sparse @ h, witness @ h)
        (ours,) = torch.autograd.grad((sparse @ h * weight).sum(), h)
        (theirs,) = torch.autograd.grad((witness @ h * weight).sum(), h)
        torch.testing.assert_close(ours, theirs)


def test_a_cosine_falls_from_1_to_0():
    assert (cosine_decay(0), cosine_decay(0.5), cosine_decay(1)) == (1, pytest.approx(0.5), 0)
