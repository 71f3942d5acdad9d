import gc
import weakref

import numpy as np
import pytest
import torch

from graphcl.kernels.adjacency import (
    Adjacency,
    csr_matmul,
    mean_pool,
    mean_pool_elu,
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
    found = adjacency.pool_rows(ours, chosen)
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


def relation(seed=0, *, within=False, weighted=True, undirected=False, vectors=3):
    """A relation in float64 with parallel edges, and its edges as a list."""
    random = np.random.default_rng(seed)
    targets, sources = (7, 7) if within else (7, 5)
    ends = random.integers(0, (sources, targets), (20, 2))
    ends = ends[ends[:, 0] != ends[:, 1]] if within else ends
    ids = None
    if undirected:
        ids = np.tile(np.arange(len(ends)), 2)
        ends = np.concatenate([ends, ends[:, ::-1]])
    order = np.lexsort((ends[:, 0], ends[:, 1]))
    weight = random.random(len(ends)) + 0.1
    if ids is not None:
        weight, ids = weight[ids], ids[order]
    ends, weight = ends[order], weight[order]
    features = random.normal(size=(len(ends), vectors))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(ends[:, 1], minlength=targets))])
    found = Adjacency.from_csr(
        indptr,
        ends[:, 0],
        weight if weighted else None,
        device=CPU,
        dtype=torch.float64,
        edge_ids=ids,
        senders=None if within else sources,
        directed=not undirected,
        edge_features=features,
    )
    return found, ends, weight if weighted else np.ones(len(ends)), features


def relation_mean(h, relation, *, backwards, rows=None):
    toward = relation.toward(backwards)
    return mean_pool(h, toward) if rows is None else toward.pool_rows(h, rows)


def loop_mean(table, ends, weight, receivers, *, backwards, within, vectors=False):
    """The module's mean, one receiver after the other."""
    to, of = (0, 1) if backwards else (1, 0)
    rows = []
    for u in range(receivers):
        mine = [e for e in range(len(ends)) if ends[e, to] == u]
        own = 0.0
        if within:
            own = sum(weight[e] for e in mine) / len(mine) if mine else 1.0
        total = own * (0 * table[0] if vectors else table[u]) if within else 0 * table[0]
        for e in mine:
            total = total + weight[e] * (table[e] if vectors else table[ends[e, of]])
        size = own + sum(weight[e] for e in mine)
        rows.append(total / size if size else total)
    return np.array(rows)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_means_of_rows_and_of_vectors_are_their_loops(backwards, within, weighted):
    found, ends, weight, features = relation(within=within, weighted=weighted)
    receivers, senders = (5, 7) if backwards else (7, 5)
    receivers, senders = (7, 7) if within else (receivers, senders)
    h = np.random.default_rng(1).normal(size=(senders, 4))
    options = {"backwards": backwards, "within": within}
    expected = loop_mean(h, ends, weight, receivers, **options)
    mean = relation_mean(torch.from_numpy(h), found, backwards=backwards)
    np.testing.assert_allclose(mean, expected, rtol=1e-12)
    vectors = loop_mean(features, ends, weight, receivers, **options, vectors=True)
    np.testing.assert_allclose(found.toward(backwards).edge_mean(), vectors, rtol=1e-12)
    rows = torch.tensor([3, 0, 3])
    some = relation_mean(torch.from_numpy(h), found, backwards=backwards, rows=rows)
    np.testing.assert_allclose(some, expected[rows], rtol=1e-12)
    np.testing.assert_allclose(found.toward(backwards).edge_mean(rows), vectors[rows], rtol=1e-12)


@pytest.mark.parametrize("rows", [None, torch.tensor([2, 0, 2])])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("within", "undirected"), [(False, False), (True, False), (True, True)])
def test_gradients(backwards, within, undirected, rows):
    found, *_ = relation(within=within, undirected=undirected)
    size = 7 if within or backwards else 5
    h = torch.randn(size, 3, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(
        lambda h: relation_mean(h, found, backwards=backwards, rows=rows), (h,)
    )


def test_an_absent_edge_counts_nowhere_and_nothing_is_left_of_a_node_without_edges():
    found, ends, weight, _ = relation()
    h = torch.randn(5, 3, dtype=torch.float64)
    gone = found.weight.clone()
    gone[ends[:, 1] == 2] = 0
    mean = relation_mean(h, found.with_weight(gone), backwards=False)
    assert not mean[2].any()
    kept = weight * (ends[:, 1] != 2)
    expected = loop_mean(h.numpy(), ends, kept, 7, backwards=False, within=False)
    np.testing.assert_allclose(mean, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("within", "undirected"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("weighted", [False, True])
def test_two_copies_are_pooled_as_one_after_the_other(within, undirected, weighted, backwards):
    found, *_ = relation(within=within, undirected=undirected, weighted=weighted)
    kept = torch.rand(len(found.weight), generator=torch.Generator().manual_seed(3)) > 0.3
    if found.edge_ids is not None:
        kept = kept[found.edge_ids]
    both, one = found.twice(), found.with_weight(found.weight * kept)
    both = both.with_weight(both.weight * torch.cat([kept, torch.ones_like(kept)]))
    size = 7 if within or backwards else 5
    h = torch.randn(2 * size, 3, dtype=torch.float64, requires_grad=True)
    ours = relation_mean(h, both, backwards=backwards)
    first = relation_mean(h[:size], one, backwards=backwards)
    second = relation_mean(h[size:], found, backwards=backwards)
    torch.testing.assert_close(ours, torch.cat([first, second]))
    torch.testing.assert_close(
        both.toward(backwards).edge_mean(),
        torch.cat([one.toward(backwards).edge_mean(), found.toward(backwards).edge_mean()]),
    )
    (grad,) = torch.autograd.grad(ours.square().sum(), h)
    (expected,) = torch.autograd.grad(torch.cat([first, second]).square().sum(), h)
    torch.testing.assert_close(grad, expected)


def test_a_view_is_freed_when_it_is_left(adjacency):
    """Every step draws one: one that held itself would stay until the collector comes."""
    gc.collect()
    gc.disable()
    try:
        view = adjacency.with_weight(adjacency.weight * 2)
        h = torch.rand(view.num_nodes, 3, dtype=torch.float64, requires_grad=True)
        mean_pool(h, view).sum().backward()
        assert view.transposed is view
        held = weakref.ref(view)
        del view
        assert held() is None
    finally:
        gc.enable()
