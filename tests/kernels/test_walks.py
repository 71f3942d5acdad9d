from itertools import pairwise

import numpy as np

from graphcl.baselines.deepwalk import random_walks
from graphcl.graphs.graph import Graph


def test_every_step_is_an_edge_and_a_node_alone_stays(graph):
    edges = set(zip(*graph.edge_index().tolist(), strict=True))
    starts = np.repeat(np.arange(graph.num_nodes), 3)
    walks = random_walks(graph.indptr, graph.indices, starts, length=8, seed=1)
    assert np.array_equal(walks[:, 0], starts)
    degree = np.diff(graph.indptr)
    for walk in walks:
        for a, b in pairwise(walk):
            assert (a, b) in edges or (degree[a] == 0 and a == b)
    lonely = Graph.from_edge_index(np.array([[0], [1]]), np.ones((3, 1)))
    assert random_walks(
        lonely.indptr, lonely.indices, np.array([2]), length=4, seed=0
    ).tolist() == [[2, 2, 2, 2]]


def test_neighbours_are_equally_likely_and_a_seed_decides():
    star = Graph.from_edge_index(np.array([[0] * 5, [1, 2, 3, 4, 5]]), np.ones((6, 1)))
    starts = np.zeros(20_000, dtype=np.int64)
    walks = random_walks(star.indptr, star.indices, starts, length=4, seed=0)
    counts = np.bincount(walks[:, [1, 3]].ravel(), minlength=6)[1:]
    # Five standard deviations of a binomial count around its mean.
    assert np.abs(counts - 8000).max() < 5 * np.sqrt(40_000 * 0.2 * 0.8)
    # Step 3 does not repeat step 1.
    assert abs((walks[:, 1] == walks[:, 3]).mean() - 0.2) < 0.02
    again = random_walks(star.indptr, star.indices, starts, length=4, seed=0)
    assert np.array_equal(walks, again)
    other = random_walks(star.indptr, star.indices, starts, length=4, seed=1)
    assert not np.array_equal(walks, other)
