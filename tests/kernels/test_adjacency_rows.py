import numpy as np
import pytest
import torch

from graphcl.graphs.graph import Graph
from graphcl.kernels import adjacency_rows
from graphcl.kernels.adjacency import Adjacency, mean_pool, mean_pool_elu
from graphcl.kernels.adjacency_rows import AdjacencyRows, edge_numbers
from graphcl.training.full_graph import Division
from tests.conftest import random_graph
from tests.groups import together

CPU = torch.device("cpu")
DIM = 40


def with_weights(graph):
    weight = np.random.default_rng(3).uniform(0.2, 9, graph.num_edges)
    sources, targets = graph.edge_index()
    upper = graph.edge_index()[:, sources < targets]
    return Graph.from_edge_index(upper, graph.x, edge_weight=weight)


GRAPHS = {
    "plain": random_graph(),
    "weighted": with_weights(random_graph(1)),
    "lonely": Graph.from_edge_index([[1, 1, 5, 2], [4, 2, 7, 7]], np.eye(9)),
    "edgeless": Graph.from_edge_index(np.zeros((2, 0), int), np.eye(4)),
}


def both(table, rows):
    """Rows of both copies."""
    return table.view(2, len(table) // 2, -1)[:, rows].flatten(0, 1)


@pytest.mark.parametrize("name", GRAPHS)
def test_edges_have_the_numbers_of_the_whole_graph(name):
    graph = GRAPHS[name]
    whole = Adjacency.from_csr(graph.indptr, graph.indices, device=CPU)
    third, half = graph.num_nodes // 3, graph.num_nodes // 2
    parts = (slice(0, third), slice(third, half), slice(half, half), slice(half, graph.num_nodes))
    for dtype in (np.int32, np.int64):
        indices = graph.indices.astype(dtype)
        numbers = [edge_numbers(graph.indptr, indices, rows) for rows in parts]
        assert np.array_equal(np.concatenate(numbers), whole.edge_ids)


@pytest.mark.parametrize("pool", [mean_pool, mean_pool_elu])
@pytest.mark.parametrize("slab", [1, 1 << 21])
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_own_rows_are_pooled_as_in_the_whole_graph(world, name, slab, pool, monkeypatch, generator):
    """Value and gradient, of a view with dropped edges; in slabs of columns, or at once."""
    monkeypatch.setattr(adjacency_rows, "SLAB_ELEMENTS", slab)
    graph = GRAPHS[name]
    csr = (graph.indptr, graph.indices, graph.edge_weight)
    whole = Adjacency.from_csr(*csr, device=CPU).twice()
    keep = (torch.rand(whole.num_edges, generator=generator) > 0.3).float()
    whole = whole.with_weight(whole.weight * keep[whole.edge_ids])
    h = torch.randn(whole.num_nodes, DIM, generator=generator)
    weight = torch.randn(h.shape, generator=generator)

    def value_and_gradient(adjacency, h, weight):
        h = h.clone().requires_grad_()
        pooled = pool(h, adjacency)
        (pooled * weight).sum().backward()
        return pooled.detach(), h.grad

    def own_part(share):
        division = Division(graph.num_nodes, share)
        rows = division.own
        own = AdjacencyRows.two_copies(*csr, rows=rows, gathering=division, device=CPU)
        assert own.num_edges == whole.num_edges
        assert len(own.indices) == 2 * (graph.indptr[rows.stop] - graph.indptr[rows.start])
        own = own.with_weight(own.weight * keep[own.edge_ids])
        return rows, value_and_gradient(own, both(h, rows), both(weight, rows))

    expected = value_and_gradient(whole, h, weight)
    for rows, found in together(world, own_part):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, both(theirs, rows), rtol=1e-6, atol=1e-6)
