import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl.errors import TrainingError
from graphcl.evaluation.probe import linear_probe
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.features import SparseFeatures
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.layers import (
    Convolutions,
    Symmetric,
    additive_attention,
    dense_layer,
    dot_attention,
    draw_view,
    mask_columns,
    neighbour_max,
)
from graphcl.research.systems.system import repeat_step
from tests.conftest import dense_adjacency, random_graph

CPU = torch.device("cpu")


def normalised(adjacency: np.ndarray) -> np.ndarray:
    looped = adjacency + np.eye(len(adjacency))
    degree = looped.sum(1)
    return looped / np.sqrt(degree[:, None] * degree[None, :])


def test_whole_columns_are_masked_and_the_rest_is_left_alone(generator):
    x = torch.arange(1.0, 2001.0).view(2, 1000)
    masked = mask_columns(x, 0.3, generator)
    gone = (masked == 0).all(0)
    assert torch.equal(masked[:, ~gone], x[:, ~gone])
    assert 0.25 < float(gone.float().mean()) < 0.35  # 3.4 standard deviations
    assert float(x.min()) == 1
    assert mask_columns(x, 0, generator) is x


def test_sparse_features_lose_the_same_columns():
    matrix = scipy.sparse.random_array((30, 40), density=0.2, rng=np.random.default_rng(0))
    sparse = SparseFeatures.from_csr(matrix.tocsr().astype(np.float32), device=CPU)
    one, other = (
        mask_columns(x, 0.5, torch.Generator().manual_seed(3)) for x in (sparse, sparse.to_dense())
    )
    assert torch.equal(one.to_dense(), other)


def test_a_views_degrees_are_those_of_the_edges_left(graph, generator):
    x, adjacency = graph_tensors(graph, device=CPU)
    _, kept = draw_view(x, adjacency, edge_drop=0.5, feature_drop=0, generator=generator)
    found = (Symmetric.normalised(kept) @ torch.eye(graph.num_nodes)).numpy()
    left = (found != 0) & ~np.eye(graph.num_nodes, dtype=bool)
    assert 0 < left.sum() < len(graph.indices)
    np.testing.assert_allclose(found, normalised(left.astype(float)), rtol=1e-5)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("normalise", [True, False])
def test_it_is_its_equation(graph, generator, last, normalise):
    network = Convolutions(
        (12, 6, 4), draw=generator, activation="prelu", last=last, normalise=normalise
    )
    with torch.no_grad():
        for bias in network.biases:
            bias.uniform_(-1, 1, generator=generator)
    x, adjacency = graph_tensors(graph, device=CPU)
    pool = normalised(dense_adjacency(graph))
    h = graph.x.astype(np.float64)
    for layer in range(2):
        weight, bias = (part[layer].detach().numpy() for part in (network.weights, network.biases))
        h = pool @ h @ weight + bias
        if normalise:
            h = (h - h.mean(0)) / np.sqrt(h.var(0) + 1e-5)
        if layer == 0 or last:
            h = np.where(h > 0, h, 0.25 * h)
    found = network(x, adjacency).detach().numpy()
    np.testing.assert_allclose(found, h, rtol=1e-3, atol=1e-4)


def test_sparse_features_give_the_same(graph):
    sparse = Graph.from_edge_index(graph.edge_index(), scipy.sparse.csr_array(graph.x))
    tables = []
    for one in (graph, sparse):
        x, adjacency = graph_tensors(one, device=CPU)
        network = Convolutions((12, 6, 4), draw=torch.Generator().manual_seed(0))
        tables.append(network(x, adjacency))
    torch.testing.assert_close(*tables)
    assert not torch.equal(tables[0], torch.zeros_like(tables[0]))


def test_a_dense_layer_has_the_usual_law_and_its_own_draws():
    layer = dense_layer(100, 50, draw=torch.Generator().manual_seed(0))
    weight, bias = layer.weight.detach(), layer.bias.detach()
    assert 0.099 < float(weight.abs().max()) <= 0.1001
    assert abs(float(weight.mean())) < 0.005
    assert 0.05 < float(bias.abs().max()) <= 0.1001
    again = dense_layer(100, 50, draw=torch.Generator().manual_seed(0))
    assert torch.equal(layer.weight, again.weight)
    assert dense_layer(4, 3, draw=torch.Generator(), bias=False).bias is None


def test_an_epochs_draws_depend_on_its_number_alone():
    def drawn(epochs):
        found = []
        repeat_step(
            lambda draws: found.append(torch.rand(3, generator=draws)) or torch.zeros(()),
            epochs=epochs,
            seed=1,
            owner="x",
            device=CPU,
            on_epoch=lambda *_: None,
        )
        return torch.stack(found)

    assert torch.equal(drawn(4)[:2], drawn(2))
    assert len(drawn(4).unique()) == 12


def test_a_loss_that_is_not_finite_is_an_error():
    with pytest.raises(TrainingError, match="x: the result is not finite"):
        repeat_step(
            lambda _: torch.tensor(torch.nan),
            epochs=2,
            seed=0,
            owner="x",
            device=CPU,
            on_epoch=lambda *_: None,
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("name", ["grace", "bgrl", "cca-ssg", "graphmae"])
def test_a_recorded_training_learns_and_repeats(name, graph):
    method = SYSTEMS[name].method("", dim=16, epochs=60, learning_rate=0.01, feature_scaling="none")
    one, other = (method.embed(graph, seed=0, device=torch.device("cuda")) for _ in range(2))
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)
    assert linear_probe(one, graph).accuracy > 0.7


@pytest.fixture
def looped():
    """A graph with an isolated node, as an adjacency and as a dense mask of A + I."""
    graph = random_graph(num_nodes=30)
    keep = (graph.edge_index() != 7).all(0)
    edges = graph.edge_index()[:, keep]
    graph = type(graph).from_edge_index(edges, graph.x)
    adjacency = Adjacency.from_csr(
        graph.indptr, graph.indices, device=torch.device("cpu"), dtype=torch.float64
    )
    mask = torch.tensor(dense_adjacency(graph) + np.eye(30)) > 0
    assert mask[7].sum() == 1
    return adjacency, mask


def inputs(*shapes, seed=0):
    draws = torch.Generator().manual_seed(seed)
    return [
        torch.randn(shape, generator=draws, dtype=torch.float64, requires_grad=True)
        for shape in shapes
    ]


def test_attention_and_its_gradient_are_those_of_the_masked_softmax(looped):
    adjacency, mask = looped
    q, k, v = inputs((30, 2, 3), (30, 2, 3), (30, 2, 4))
    (upstream,) = inputs((30, 2, 4), seed=1)
    scores = torch.einsum("ihd,jhd->hij", q, k).masked_fill(~mask, -torch.inf)
    plain = torch.einsum("hij,jhd->ihd", scores.softmax(2), v)
    expected = torch.autograd.grad(plain, (q, k, v), upstream)
    ours = dot_attention(q, k, v, adjacency)
    torch.testing.assert_close(ours, plain)
    for found, wanted in zip(torch.autograd.grad(ours, (q, k, v), upstream), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_attention_stands_large_scores(looped):
    adjacency, _ = looped
    q, k, v = inputs((30, 1, 3), (30, 1, 3), (30, 1, 2))
    assert bool(dot_attention(1e4 * q, k, v, adjacency).isfinite().all())


def test_maximum_and_its_gradient_are_those_of_the_dense_one_ties_shared(looped):
    adjacency, mask = looped
    (m,) = inputs((30, 5))
    m = m.detach().round().requires_grad_()  # many nodes are equal
    (upstream,) = inputs((30, 5), seed=1)
    plain = m[None].masked_fill(~mask[:, :, None], -torch.inf).amax(1)
    ours = neighbour_max(m, adjacency)
    torch.testing.assert_close(ours, plain)
    (expected,) = torch.autograd.grad(plain, m, upstream)
    (found,) = torch.autograd.grad(ours, m, upstream)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dropped", [False, True])
def test_additive_attention_and_its_gradient_are_those_of_the_masked_softmax(looped, dropped):
    adjacency, mask = looped
    a, b, v = inputs((30, 2), (30, 2), (30, 2, 4))
    (upstream,) = inputs((30, 2, 4), seed=1)
    kept, whole = None, torch.ones(2, 30, 30, dtype=torch.float64)
    if dropped:
        draws = torch.Generator().manual_seed(2)
        drawn = torch.rand(len(adjacency.looped.rows), 2, generator=draws, dtype=torch.float64)
        kept = (drawn > 0.3).double() / 0.7
        whole[:, adjacency.looped.rows, adjacency.looped.indices] = kept.T
    scores = torch.nn.functional.leaky_relu(a.T[:, :, None] + b.T[:, None, :], 0.2)
    weight = scores.masked_fill(~mask, -torch.inf).softmax(2) * whole
    plain = torch.einsum("hij,jhd->ihd", weight, v)
    expected = torch.autograd.grad(plain, (a, b, v), upstream)
    ours = additive_attention(a, b, v, adjacency, kept)
    torch.testing.assert_close(ours, plain)
    for found, wanted in zip(torch.autograd.grad(ours, (a, b, v), upstream), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_additive_attention_stands_large_scores(looped):
    adjacency, _ = looped
    a, b, v = inputs((30, 1), (30, 1), (30, 1, 2))
    assert bool(additive_attention(1e4 * a, b, v, adjacency).isfinite().all())
