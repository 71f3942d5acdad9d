import numpy as np
import pytest
import torch

from graphcl.kernels.adjacency import Adjacency
from graphcl.research.systems import edge_attention as module
from graphcl.research.systems.edge_attention import (
    EdgePattern,
    additive_attention,
    edge_attention,
    neighbour_max,
)
from tests.conftest import dense_adjacency, random_graph


@pytest.fixture
def looped():
    """A graph with an isolated node, as a pattern and as a dense mask of A + I."""
    graph = random_graph(num_nodes=30)
    keep = (graph.edge_index() != 7).all(0)
    edges = graph.edge_index()[:, keep]
    graph = type(graph).from_edge_index(edges, graph.x)
    adjacency = Adjacency.from_csr(
        graph.indptr, graph.indices, device=torch.device("cpu"), dtype=torch.float64
    )
    mask = torch.tensor(dense_adjacency(graph) + np.eye(30)) > 0
    assert mask[7].sum() == 1
    return EdgePattern.of(adjacency), mask


def inputs(*shapes, seed=0):
    draws = torch.Generator().manual_seed(seed)
    return [
        torch.randn(shape, generator=draws, dtype=torch.float64, requires_grad=True)
        for shape in shapes
    ]


def test_mirror_is_the_entry_of_the_other_direction(looped):
    pattern, _ = looped
    assert torch.equal(pattern.rows[pattern.mirror], pattern.columns)
    assert torch.equal(pattern.columns[pattern.mirror], pattern.rows)


def test_attention_and_its_gradient_are_those_of_the_masked_softmax(looped):
    pattern, mask = looped
    q, k, v = inputs((30, 2, 3), (30, 2, 3), (30, 2, 4))
    (upstream,) = inputs((30, 2, 4), seed=1)
    scores = torch.einsum("ihd,jhd->hij", q, k).masked_fill(~mask, -torch.inf)
    plain = torch.einsum("hij,jhd->ihd", scores.softmax(2), v)
    expected = torch.autograd.grad(plain, (q, k, v), upstream)
    ours = edge_attention(q, k, v, pattern)
    torch.testing.assert_close(ours, plain)
    for found, wanted in zip(torch.autograd.grad(ours, (q, k, v), upstream), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_attention_stands_large_scores(looped):
    pattern, _ = looped
    q, k, v = inputs((30, 1, 3), (30, 1, 3), (30, 1, 2))
    assert bool(edge_attention(1e4 * q, k, v, pattern).isfinite().all())


def test_maximum_and_its_gradient_are_those_of_the_dense_one_ties_shared(looped):
    pattern, mask = looped
    (m,) = inputs((30, 5))
    m = m.detach().round().requires_grad_()  # many nodes are equal
    (upstream,) = inputs((30, 5), seed=1)
    plain = m[None].masked_fill(~mask[:, :, None], -torch.inf).amax(1)
    ours = neighbour_max(m, pattern)
    torch.testing.assert_close(ours, plain)
    (expected,) = torch.autograd.grad(plain, m, upstream)
    (found,) = torch.autograd.grad(ours, m, upstream)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("block", [1 << 18, 7])  # entries that the backward pass gathers at once
def test_additive_attention_and_its_gradient_are_those_of_the_masked_softmax(
    looped, monkeypatch, dropped, block
):
    monkeypatch.setattr(module, "_ENTRIES", block)
    pattern, mask = looped
    a, b, v = inputs((30, 2), (30, 2), (30, 2, 4))
    (upstream,) = inputs((30, 2, 4), seed=1)
    kept, whole = None, torch.ones(2, 30, 30, dtype=torch.float64)
    if dropped:
        draws = torch.Generator().manual_seed(2)
        drawn = torch.rand(len(pattern.rows), 2, generator=draws, dtype=torch.float64)
        kept = (drawn > 0.3).double() / 0.7
        whole[:, pattern.rows, pattern.columns] = kept.T
    scores = torch.nn.functional.leaky_relu(a.T[:, :, None] + b.T[:, None, :], 0.2)
    weight = scores.masked_fill(~mask, -torch.inf).softmax(2) * whole
    plain = torch.einsum("hij,jhd->ihd", weight, v)
    expected = torch.autograd.grad(plain, (a, b, v), upstream)
    ours = additive_attention(a, b, v, pattern, kept)
    torch.testing.assert_close(ours, plain)
    for found, wanted in zip(torch.autograd.grad(ours, (a, b, v), upstream), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_additive_attention_stands_large_scores(looped):
    pattern, _ = looped
    a, b, v = inputs((30, 1), (30, 1), (30, 1, 2))
    assert bool(additive_attention(1e4 * a, b, v, pattern).isfinite().all())
