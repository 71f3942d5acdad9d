import numpy as np
import pytest
import torch

from graphcl.kernels.adjacency import (
    Adjacency,
    csr_matmul,
    mean_pool,
    mean_pool_elu,
    mean_pool_rows,
)
from graphcl.kernels.features import product
from tests.conftest import dense_adjacency

CPU = torch.device("cpu")


@pytest.fixture
def adjacency(graph):
    whole = Adjacency.from_csr(graph.indptr, graph.indices, device=CPU, dtype=torch.float64)
    keep = torch.rand(whole.num_edges, generator=torch.Generator().manual_seed(1)) > 0.3
    return whole.with_weight(keep[whole.edge_ids].double())


def normalised(adjacency):
    """Â = D⁻¹(A + I), entry by entry."""
    dense = torch.eye(adjacency.num_nodes, dtype=torch.float64)
    for row in range(adjacency.num_nodes):
        for entry in range(int(adjacency.indptr[row]), int(adjacency.indptr[row + 1])):
            dense[row, adjacency.indices[entry]] = adjacency.weight[entry]
    return dense / dense.sum(1, keepdim=True)


def test_edge_ids_number_each_undirected_edge_once(graph):
    adjacency = Adjacency.from_csr(graph.indptr, graph.indices, device=CPU)
    pairs = {}
    for (u, v), number in zip(
        graph.edge_index().T.tolist(), adjacency.edge_ids.tolist(), strict=True
    ):
        pairs.setdefault(number, set()).add(frozenset((u, v)))
    assert sorted(pairs) == list(range(graph.num_edges))
    assert all(len(ends) == 1 for ends in pairs.values())


def test_mean_pool_is_the_dense_product_value_and_gradient(adjacency, generator):
    h = torch.randn(adjacency.num_nodes, 5, dtype=torch.float64, generator=generator)
    weight = torch.randn_like(h)
    ours, dense = h.clone().requires_grad_(), h.clone().requires_grad_()
    pooled, expected = mean_pool(ours, adjacency), normalised(adjacency) @ dense
    torch.testing.assert_close(pooled, expected)
    (pooled * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(ours.grad, dense.grad)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rows", [[3, 0, 59], [], [7], list(range(60)), [5, 5, 2]])
def test_rows_of_the_mean_are_those_of_the_dense_product(graph, generator, rows, weighted):
    weights = None
    if weighted:
        random = np.random.default_rng(0).random((60, 60)) + 0.1
        weights = (random + random.T)[tuple(graph.edge_index())]
    whole = Adjacency.from_csr(
        graph.indptr, graph.indices, weights, device=CPU, dtype=torch.float64
    )
    keep = torch.rand(whole.num_edges, generator=generator) > 0.4
    adjacency = whole.with_weight(whole.weight * keep[whole.edge_ids])
    chosen = torch.tensor(rows, dtype=torch.int64)
    h = torch.randn(adjacency.num_nodes, 5, dtype=torch.float64, generator=generator)
    weight = torch.randn(len(rows), 5, dtype=torch.float64, generator=generator)
    ours, all_of_them = h.clone().requires_grad_(), h.clone().requires_grad_()
    found = mean_pool_rows(ours, adjacency, chosen)
    expected = mean_pool(all_of_them, adjacency)[chosen]
    torch.testing.assert_close(found, expected)
    if not weighted:
        torch.testing.assert_close(found.detach(), (normalised(adjacency) @ h)[chosen])
    (found * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(ours.grad, all_of_them.grad)


def test_edge_index_leaves_dropped_edges_out(adjacency):
    dense = torch.zeros(adjacency.num_nodes, adjacency.num_nodes, dtype=torch.float64)
    targets, sources = adjacency.edge_index()
    dense[targets, sources] = 1
    assert torch.equal(dense, dense.T)
    assert torch.equal((normalised(adjacency) > 0) ^ torch.eye(len(dense)).bool(), dense.bool())


def test_adjacency_of_a_whole_graph(graph):
    adjacency = Adjacency.from_csr(graph.indptr, graph.indices, device=CPU)
    matrix = dense_adjacency(graph) + np.eye(graph.num_nodes)
    np.testing.assert_allclose(adjacency.inverse_degree[:, 0], 1 / matrix.sum(1), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_are_those_without_mkl(monkeypatch, dtype):
    """A row without entries is zero, whatever the memory held before."""
    indptr, indices = torch.tensor([0, 0, 2, 2, 3]), torch.tensor([0, 2, 1])
    values, dense = torch.rand(3, dtype=dtype), torch.rand(3, 600, dtype=dtype)
    held = [torch.full((4, 600), torch.nan, dtype=dtype) for _ in range(8)]
    del held  # what is allocated next may lie where these lay
    found = csr_matmul(indptr, indices, values, dense)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    plain = csr_matmul(indptr, indices, values, dense)
    assert torch.allclose(found, plain)
    assert not found[[0, 2]].any()


def test_pooling_with_elu_and_products_are_the_plain_operations(adjacency):
    draws = torch.Generator().manual_seed(2)
    h = torch.randn(adjacency.num_nodes, 6, generator=draws, dtype=torch.float64)
    weight = torch.randn(6, 3, generator=draws, dtype=torch.float64)
    inputs = (h.requires_grad_(), weight.requires_grad_())

    def ours(h, weight):
        return product(mean_pool_elu(h, adjacency), weight)

    plain = torch.nn.functional.elu(mean_pool(h, adjacency)) @ weight
    assert torch.allclose(ours(*inputs), plain)
    assert torch.autograd.gradcheck(ours, inputs)
