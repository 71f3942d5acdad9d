"""Neighbours are drawn uniformly, and equally on every path."""

import numpy as np
import pytest
import scipy.stats
import torch

from graphcl.graphs.graph import Graph
from graphcl.kernels.counter import stream_key
from graphcl.kernels.neighbours import sample_neighbours, sample_neighbours_reference


def csr(graph):
    return torch.tensor(graph.indptr), torch.tensor(graph.indices)


def star(leaves, *, others=3):
    """Node 0 with `leaves` neighbours, and nodes without any."""
    edges = np.stack([np.zeros(leaves, int), np.arange(1, leaves + 1)])
    return Graph.from_edge_index(edges, np.zeros((leaves + 1 + others, 1)))


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("fan_out", [1, 3, 10, 40])
def test_fused_is_the_reference(graph, fan_out, replace):
    nodes = torch.randint(graph.num_nodes, (500,), generator=torch.Generator().manual_seed(0))
    options = {"fan_out": fan_out, "replace": replace, "key": stream_key(1, "x")}
    ours = sample_neighbours(*csr(graph), nodes, **options)
    assert torch.equal(ours, sample_neighbours_reference(*csr(graph), nodes, **options))
    matrix = np.zeros((graph.num_nodes, graph.num_nodes), dtype=bool)
    matrix[tuple(graph.edge_index())] = True
    parents = nodes.repeat_interleave(fan_out)
    assert (matrix[parents, ours] | (parents == ours).numpy()).all()


@pytest.mark.parametrize("replace", [True, False])
def test_uniform_over_neighbours(replace):
    leaves, rounds = 23, 20_000
    nodes = torch.zeros(rounds, dtype=torch.int64)
    found = sample_neighbours(
        *csr(star(leaves)), nodes, fan_out=5, replace=replace, key=stream_key(7, "x")
    )
    counts = np.bincount(found, minlength=leaves + 1)[1:]
    assert counts.sum() == rounds * 5
    # Without replacement the counts vary less than a multinomial's: the test is then stricter
    # from below, and still fails where one neighbour is favoured.
    assert scipy.stats.chisquare(counts).pvalue > 1e-4
    if replace:
        pairs = found.view(-1, 5)[:, :2] - 1
        table = np.bincount(pairs[:, 0] * leaves + pairs[:, 1], minlength=leaves**2)
        assert scipy.stats.chisquare(table).pvalue > 1e-4


@pytest.mark.parametrize("leaves", [2, 5, 6, 30])
def test_without_replacement_nothing_comes_twice(leaves):
    nodes = torch.zeros(300, dtype=torch.int64)
    found = sample_neighbours(
        *csr(star(leaves)), nodes, fan_out=5, replace=False, key=stream_key(0, "x")
    ).view(-1, 5)
    for row in found.tolist():
        drawn = [node for node in row if node != 0]  # 0 itself fills empty slots
        assert len(drawn) == len(set(drawn)) == min(leaves, 5)


@pytest.mark.parametrize("replace", [True, False])
def test_isolated_nodes_fall_back_to_themselves(replace):
    graph = star(4)
    nodes = torch.tensor([5, 6, 0, 7])
    options = {"fan_out": 3, "replace": replace, "key": stream_key(0, "x")}
    found = sample_neighbours(*csr(graph), nodes, **options).view(-1, 3)
    for row in (0, 1, 3):
        assert found[row].tolist() == [int(nodes[row])] * 3
    empty = torch.zeros(6, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    alone = sample_neighbours_reference(*empty, torch.arange(5), **options)
    assert alone.tolist() == torch.arange(5).repeat_interleave(3).tolist()
