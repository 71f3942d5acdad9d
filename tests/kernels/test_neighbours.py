"""Neighbours are drawn uniformly, and equally on every path."""

import numpy as np
import pytest
import scipy.stats
import torch

from graphcl.graphs.graph import Graph
from graphcl.kernels.counter import stream_key
from graphcl.kernels.neighbours import (
    DAMAGED,
    EdgeWeights,
    draw_neighbours,
    draw_neighbours_reference,
    sample_levels,
    thresholds,
)
from graphcl.sampling import sample_tree
from tests.conftest import plain_topology

CPU = torch.device("cpu")


def csr(graph):
    return torch.tensor(graph.indptr), torch.tensor(graph.indices)


def star(leaves, *, others=3):
    """Node 0 with `leaves` neighbours, and nodes without any."""
    edges = np.stack([np.zeros(leaves, int), np.arange(1, leaves + 1)])
    return Graph.from_edge_index(edges, np.zeros((leaves + 1 + others, 1)))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("fan_out", [1, 3, 10, 40])
def test_fused_is_the_reference(graph, fan_out, replace, weighted):
    random = torch.Generator().manual_seed(0)
    nodes = torch.randint(graph.num_nodes, (500,), generator=random)
    options = {"fan_out": fan_out, "replace": replace, "key": stream_key(1, "x")}
    if weighted:
        options["limits"] = thresholds(graph.indptr, symmetric_weights(graph)) if replace else None
    ours = draw_neighbours(*csr(graph), nodes, **options)
    for part, expected in zip(
        ours, draw_neighbours_reference(*csr(graph), nodes, **options), strict=True
    ):
        assert torch.equal(part, expected)
    matrix = np.zeros((graph.num_nodes, graph.num_nodes), dtype=bool)
    matrix[tuple(graph.edge_index())] = True
    parents = nodes.repeat_interleave(fan_out)
    assert (matrix[parents, ours.nodes] | (parents == ours.nodes).numpy()).all()
    filled = ours.entries >= 0
    assert torch.equal(ours.nodes[filled], csr(graph)[1][ours.entries[filled]])
    assert torch.equal(ours.degree, torch.tensor(np.diff(graph.indptr))[nodes])
    assert bool((~filled).any()) == (not replace and fan_out > 1)


@pytest.mark.parametrize("replace", [True, False])
def test_uniform_over_neighbours(replace):
    leaves, rounds = 23, 20_000
    nodes = torch.zeros(rounds, dtype=torch.int64)
    options = {"fan_out": 5, "replace": replace, "key": stream_key(7, "x")}
    found = draw_neighbours(*csr(star(leaves)), nodes, **options).nodes
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
    options = {"fan_out": 5, "replace": False, "key": stream_key(0, "x")}
    found = draw_neighbours(*csr(star(leaves)), nodes, **options).nodes.view(-1, 5)
    for row in found.tolist():
        drawn = [node for node in row if node != 0]  # 0 itself fills empty slots
        assert len(drawn) == len(set(drawn)) == min(leaves, 5)


@pytest.mark.parametrize("draw", [draw_neighbours, draw_neighbours_reference])
@pytest.mark.parametrize("replace", [True, False])
def test_isolated_nodes_fall_back_to_themselves_or_to_0(draw, replace):
    graph = star(4)
    nodes = torch.tensor([5, 6, 0, 7])
    options = {"fan_out": 3, "replace": replace, "key": stream_key(0, "x")}
    limits = thresholds(graph.indptr, np.ones(8, np.float32)) if replace else None
    for within, weighted in ((True, None), (False, None), (True, limits)):
        found = draw(*csr(graph), nodes, **options, within=within, limits=weighted)
        for row in (0, 1, 3):
            assert found.nodes.view(-1, 3)[row].tolist() == [int(nodes[row]) * within] * 3
            assert found.entries.view(-1, 3)[row].tolist() == [-1] * 3
    empty = torch.zeros(6, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    alone = draw(*empty, torch.arange(5), **options).nodes
    assert alone.tolist() == torch.arange(5).repeat_interleave(3).tolist()


def symmetric_weights(graph, seed=0):
    """A weight per entry, equal in both directions."""
    low, high = np.sort(graph.edge_index(), axis=0)
    table = np.random.default_rng(seed).uniform(0.1, 5, (graph.num_nodes, graph.num_nodes))
    return table[low, high].astype(np.float32)


def test_equal_weights_draw_what_no_weights_draw(graph):
    nodes = torch.arange(graph.num_nodes).repeat(50)
    options = {"fan_out": 4, "key": stream_key(3, "x")}
    plain = draw_neighbours(*csr(graph), nodes, **options).nodes
    for weight in (1.0, 0.3):
        limits = thresholds(graph.indptr, np.full(len(graph.indices), weight, np.float32))
        drawn = draw_neighbours(*csr(graph), nodes, limits=limits, **options).nodes
        differing = int((drawn != plain).sum())
        assert differing == 0 if weight == 1 else differing < 3  # 0.3 · 7 is not exact


def test_neighbours_come_in_proportion_to_their_weights(graph):
    weight = symmetric_weights(graph)
    limits = thresholds(graph.indptr, weight)
    node = int(np.argmax(np.diff(graph.indptr)))
    row = slice(graph.indptr[node], graph.indptr[node + 1])
    draws = 40_000
    drawn = draw_neighbours(
        *csr(graph), torch.full((draws,), node), fan_out=1, key=stream_key(0, "x"), limits=limits
    ).nodes
    shares = np.bincount(drawn, minlength=graph.num_nodes)[graph.indices[row]] / draws
    expected = weight[row] / weight[row].sum()
    assert np.abs(shares - expected).max() < 5 * np.sqrt(0.25 / draws)


def exact_means(graph, weight, x):
    """The weighted mean over each node and its neighbours, in plain loops."""
    means = np.zeros_like(x)
    for node in range(graph.num_nodes):
        row = range(graph.indptr[node], graph.indptr[node + 1])
        own = float(np.mean([weight[entry] for entry in row])) if len(row) else 1.0
        total, sums = own, own * x[node]
        for entry in row:
            total += weight[entry]
            sums = sums + weight[entry] * x[graph.indices[entry]]
        means[node] = sums / total
    return means


def tree_means(tree, x, count):
    (table,) = tree[0].values()
    (children,) = table.children
    weight = children.weight.double().numpy().reshape(len(table.nodes), -1)
    around = x[children.nodes.numpy()].reshape(len(table.nodes), -1, x.shape[1])
    sums = x[table.nodes.numpy()] + (weight[:, :, None] * around).sum(1)
    means = sums / (1 + weight.sum(1))[:, None]
    return means.reshape(count, -1, x.shape[1]).mean(0)


@pytest.mark.parametrize("replace", [True, False])
def test_the_sampled_mean_is_the_weighted_mean_in_expectation(graph, replace):
    weight = symmetric_weights(graph)
    x = graph.x.astype(np.float64)
    count, fan_out = 3000, (3 if replace else 40)  # without replacement: all neighbours
    weights = EdgeWeights.of(graph.indptr, weight, replace=replace, device=CPU)
    given = plain_topology(graph, fan_out, replace=replace, weights=weights)
    nodes = torch.arange(graph.num_nodes).repeat(count)
    tree = sample_tree(given, {"node": nodes}, layers=1, seed=0)
    error = np.abs(tree_means(tree, x, count) - exact_means(graph, weight, x)).max()
    assert error < (0.15 if replace else 1e-5)


def test_without_replacement_weights_of_one_change_nothing(graph):
    ones = np.ones(len(graph.indices), np.float32)
    weights = EdgeWeights.of(graph.indptr, ones, replace=False, device=CPU)
    seeds = {"node": torch.arange(graph.num_nodes)}
    plain, weighted = (
        sample_tree(plain_topology(graph, 3, replace=False, weights=one), seeds, layers=2, seed=4)
        for one in (None, weights)
    )
    for level, other in zip(plain, weighted, strict=True):
        (one,), (two,) = level["node"].children, other["node"].children
        assert torch.equal(one.nodes, two.nodes)
        assert torch.equal(one.weight, two.weight)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_some_rows_draw_what_they_draw_in_the_whole_level(graph, replace, weighted):
    """In any order, and with the pointers of a range of nodes alone."""
    indptr, indices = csr(graph)
    random = torch.Generator().manual_seed(0)
    nodes = torch.randint(graph.num_nodes, (300,), generator=random)
    options = {"fan_out": 4, "key": stream_key(5, "x"), "replace": replace}
    if weighted and replace:
        weight = torch.rand(len(indices), generator=random) + 0.1
        options["limits"] = thresholds(graph.indptr, weight.numpy())
    whole = draw_neighbours(indptr, indices, nodes, **options)
    some = torch.randperm(300, generator=random)[:70]
    found = draw_neighbours(indptr, indices, nodes[some], some, **options)
    assert torch.equal(found.nodes.view(-1, 4), whole.nodes.view(-1, 4)[some])
    assert bool((found.entries < 0).any()) != replace  # nodes with fewer than four neighbours
    later = some[nodes[some] >= 20]
    rest = draw_neighbours(indptr[20:], indices, nodes[later], later, first=20, **options)
    assert torch.equal(rest.nodes.view(-1, 4), whole.nodes.view(-1, 4)[later])


def test_damaged_pointers_are_marked_and_not_followed():
    indptr = torch.tensor([0, 3, 2, 900, 2**60, -4])
    found = draw_neighbours(indptr, torch.arange(10), torch.arange(5), fan_out=2, key=(1, 2))
    entries = found.entries.view(-1, 2)
    assert (entries[1:] == DAMAGED).all()
    assert ((entries[0] >= 0) & (entries[0] < 3)).all()


def test_levels_are_drawn_hop_by_hop(graph):
    levels = sample_levels(*csr(graph), torch.arange(5), fan_outs=(4, 2), seed=3)
    assert [len(level) for level in levels] == [5, 20, 40]
    key = stream_key(3, "neighbours", 1)
    assert torch.equal(levels[2], draw_neighbours(*csr(graph), levels[1], fan_out=2, key=key).nodes)
