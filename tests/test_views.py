import math

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.errors import ParameterError
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.features import SparseFeatures
from graphcl.views import (
    Drop,
    PartOfDraws,
    drop_edges,
    drop_features,
)
from tests.conftest import random_graph

CPU = torch.device("cpu")


def adjacency_of(graph):
    return Adjacency.from_csr(graph.indptr, graph.indices, device=CPU)


def sparse_features(seed=0):
    matrix = scipy.sparse.random_array((80, 90), density=0.2, rng=np.random.default_rng(seed))
    return SparseFeatures.from_csr(matrix.astype(np.float32).tocsr(), device=CPU)


def within_binomial(successes, trials, probability):
    """Within five standard deviations: fails by chance once in two million."""
    return abs(successes - trials * probability) <= 5 * math.sqrt(
        trials * probability * (1 - probability)
    )


@settings(max_examples=25, deadline=None)
@given(st.floats(0.01, 0.95), st.integers(0, 1000))
def test_edges_drop_as_units_at_the_stated_rate(edge_drop, seed):
    graph = random_graph(num_nodes=150)
    view = drop_edges(adjacency_of(graph), edge_drop, torch.Generator().manual_seed(seed))
    kept = torch.zeros(graph.num_nodes, graph.num_nodes)
    kept[tuple(view.edge_index())] = 1
    assert torch.equal(kept, kept.T)
    assert within_binomial(int(kept.sum()) // 2, graph.num_edges, 1 - edge_drop)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.01, 0.95), st.integers(0, 1000))
def test_features_drop_at_the_stated_rate_and_are_scaled(feature_drop, seed):
    x = torch.rand(60, 50) + 1
    dropped = drop_features(x, feature_drop, torch.Generator().manual_seed(seed))
    kept = dropped != 0
    assert within_binomial(int(kept.sum()), x.numel(), 1 - feature_drop)
    torch.testing.assert_close(dropped[kept], x[kept] / (1 - feature_drop))


def test_sparse_features_lose_non_zeros_alone():
    x = sparse_features()
    dropped = drop_features(x, 0.4, torch.Generator().manual_seed(0))
    before, after = x.to_dense(), dropped.to_dense()
    assert (after[before == 0] == 0).all()
    kept = after != 0
    assert within_binomial(int(kept.sum()), len(x.values), 0.6)
    torch.testing.assert_close(after[kept], before[kept] / 0.6)


def test_dropout_keeps_the_mean():
    x = torch.rand(20, 10)
    generator = torch.Generator().manual_seed(0)
    mean = sum(drop_features(x, 0.5, generator) for _ in range(4000)) / 4000
    torch.testing.assert_close(mean, x, atol=0.1, rtol=0)


def test_probability_zero_is_the_identity(graph, generator):
    adjacency, x = adjacency_of(graph), torch.tensor(graph.x)
    assert torch.equal(drop_edges(adjacency, 0.0, generator).weight, adjacency.weight)
    assert torch.equal(drop_features(x, 0.0, generator), x)
    sparse = sparse_features()
    assert torch.equal(drop_features(sparse, 0.0, generator).values, sparse.values)


def test_nothing_about_the_input_changes(graph, generator):
    adjacency, x, sparse = adjacency_of(graph), torch.tensor(graph.x), sparse_features()
    before = adjacency.weight.clone(), x.clone(), sparse.values.clone()
    perturbation = Drop(0.5, 0.5)
    perturbation(x, adjacency, generator)
    perturbation(sparse, adjacency, generator)
    for old, new in zip(before, (adjacency.weight, x, sparse.values), strict=True):
        assert torch.equal(old, new)


def test_two_draws_differ_and_a_seed_repeats_them(graph):
    perturbation = Drop(0.5, 0.5)
    x, adjacency = torch.tensor(graph.x), adjacency_of(graph)

    def two(seed):
        generator = torch.Generator().manual_seed(seed)
        return [perturbation(x, adjacency, generator) for _ in range(2)]

    (x1, a1), (x2, a2) = two(3)
    (again, _), _ = two(3)
    assert not torch.equal(x1, x2)
    assert not torch.equal(a1.weight, a2.weight)
    assert torch.equal(x1, again)


@pytest.mark.parametrize("value", [1.2, 1.0, -0.1, float("nan")])
def test_bad_probabilities(value):
    with pytest.raises(ParameterError, match=r"Drop: edge_drop must be in \[0, 1\); got"):
        Drop(value, 0.1)
    with pytest.raises(ParameterError, match=r"Drop: feature_drop must be in \[0, 1\)"):
        Drop(0.1, value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk", [1, 7, 16, 100, 1 << 18])
def test_chunks_draw_what_one_call_draws(dtype, chunk, monkeypatch):
    """On a CPU; of any size, 16 or not."""
    x, adjacency = torch.ones(37, 13, dtype=dtype), adjacency_of(random_graph())
    expected = torch.empty(x.shape, dtype=dtype)
    expected.uniform_(generator=torch.Generator().manual_seed(4)).lt_(0.7)
    monkeypatch.setattr("graphcl.views.CPU_CHUNK", chunk)
    draws = torch.Generator().manual_seed(4)
    assert torch.equal(drop_features(x, 0.3, draws) != 0, expected != 0)
    again = torch.Generator().manual_seed(4)
    kept = (slice(0, 26), slice(40, 40), slice(130, 300), slice(470, 481))
    part = PartOfDraws(x.numel(), kept)
    own = torch.cat([x.view(-1)[one] for one in kept])
    found = drop_features(own, 0.3, again, part=part)
    assert torch.equal(found, torch.cat([expected.view(-1)[one] for one in kept]) / 0.7)
    # What is drawn next is the same, too.
    assert torch.equal(*(drop_edges(adjacency, 0.5, one).weight for one in (draws, again)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_part_of_the_draws_on_a_gpu_is_that_of_the_whole(monkeypatch):
    monkeypatch.setattr("graphcl.views.GPU_CHUNK", 1000)
    x = torch.ones(123, 37, device="cuda")
    whole = drop_features(x, 0.3, torch.Generator("cuda").manual_seed(4))
    kept = (slice(10 * 37, 40 * 37), slice(90 * 37, 123 * 37))
    own = torch.cat([x.view(-1)[one] for one in kept])
    part = PartOfDraws(x.numel(), kept)
    found = drop_features(own, 0.3, torch.Generator("cuda").manual_seed(4), part=part)
    assert torch.equal(found, torch.cat([whole.view(-1)[one] for one in kept]))


def test_typed_views_drop_per_relation_and_per_type():
    import numpy as np

    from graphcl.graphs.graph import Graph
    from graphcl.graphs.tensors import graph_tensors
    from graphcl.views import Drop

    random = np.random.default_rng(0)
    loves, knows = ("a", "loves", "b"), ("a", "knows", "a")
    graph = Graph.from_edges(
        {"a": np.ones((200, 20)), "b": np.ones((200, 30))},
        {
            loves: random.integers(0, 200, (2, 3000)),
            knows: {"edge_index": random.integers(0, 200, (2, 3000)), "undirected": True},
        },
    )
    x, relations = graph_tensors(graph, device=torch.device("cpu"))
    view = Drop(0.3, 0.2, {loves: 0.6}, {"b": 0.0})
    features, edges = view(x, relations, torch.Generator().manual_seed(0))
    assert abs(float((edges[loves].weight == 0).float().mean()) - 0.6) < 0.04
    assert abs(float((edges[knows].weight == 0).float().mean()) - 0.3) < 0.04
    by_edge = edges[knows].weight[edges[knows].edge_ids.argsort(stable=True)].view(-1, 2)
    assert torch.equal(by_edge[:, 0], by_edge[:, 1])
    assert abs(float((features["a"] == 0).float().mean()) - 0.2) < 0.04
    assert features["b"] is x["b"]
    assert float(relations[loves].weight.min()) == 1
    with pytest.raises(ParameterError, match="edge_drop must be"):
        Drop(0.1, 0.1, {loves: 1.0})
