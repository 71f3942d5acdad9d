import math

import numpy as np
import pytest

from graphcl.errors import GraphError
from graphcl.evaluation.nearest import nearest
from graphcl.evaluation.unsupervised import (
    alignment,
    effective_rank,
    mean_cosine,
    neighbour_agreement,
    silhouette,
    uniformity,
)
from tests.conftest import dense_adjacency, random_graph


def blobs(n=90, centres=3, seed=0):
    random = np.random.default_rng(seed)
    y = np.arange(n) % centres
    return random.normal(size=(n, 8)) * 0.1 + np.eye(centres, 8)[y] * 2, y


def normalised(row):
    length = math.sqrt(sum(value * value for value in row))
    return [value / length for value in row]


def squared_distance(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def test_alignment_and_uniformity_are_their_definitions():
    random = np.random.default_rng(0)
    h_1, h_2 = random.normal(size=(2, 12, 4))
    first, second = [normalised(r) for r in h_1], [normalised(r) for r in h_2]
    expected = sum(map(squared_distance, first, second)) / 12
    assert alignment(h_1, h_2) == pytest.approx(expected, rel=1e-5)
    total = 0.0
    for u in range(12):
        for v in range(12):
            if u != v:
                total += math.exp(-2 * squared_distance(first[u], first[v]))
    assert uniformity(h_1) == pytest.approx(math.log(total / (12 * 11)), rel=1e-5)


def test_extreme_alignment_and_uniformity():
    z, _ = blobs()
    assert alignment(z, z) == 0
    assert uniformity(np.ones((5, 3))) == pytest.approx(0, abs=1e-5)
    spread = np.random.default_rng(0).normal(size=(500, 300))
    assert uniformity(spread) == pytest.approx(-4, abs=0.1)
    assert alignment(spread, spread[::-1]) == pytest.approx(2, abs=0.05)
    with pytest.raises(GraphError, match="views of shapes"):
        alignment(z, z[:5])
    with pytest.raises(GraphError, match="at least 2"):
        uniformity(z[:1])


def test_a_sample_approximates_all_rows():
    z = np.random.default_rng(0).normal(size=(3000, 6))
    assert uniformity(z, sample=1000) == pytest.approx(uniformity(z), abs=0.05)
    assert uniformity(z, sample=1000, seed=1) != uniformity(z, sample=1000)


def test_neighbour_agreement_against_loops():
    graph, k = random_graph(), 6
    z = np.random.default_rng(0).normal(size=(graph.num_nodes, 5))
    near, _ = nearest(z, k)
    adjacency = dense_adjacency(graph)
    shares, chances = [], []
    for u in range(graph.num_nodes):
        neighbours = set(np.flatnonzero(adjacency[u]))
        if neighbours:
            most = min(k, len(neighbours))
            shares.append(len(neighbours & set(near[u])) / most)
            chances.append(k * len(neighbours) / (graph.num_nodes - 1) / most)
    found = neighbour_agreement(near, graph.indptr, graph.indices)
    assert found.share == pytest.approx(np.mean(shares))
    assert found.chance == pytest.approx(np.mean(chances))
    assert (found.k, found.nodes) == (k, len(shares))
    # Random embeddings agree by chance; the graph's own adjacency, smoothed, far beyond it.
    assert found.share == pytest.approx(found.chance, abs=0.06)
    smooth = np.linalg.matrix_power(adjacency + np.eye(60), 2)
    assert neighbour_agreement(nearest(smooth, k)[0], graph.indptr, graph.indices).share > 0.4


def test_agreement_needs_edges_of_the_same_nodes():
    near, _ = nearest(np.eye(4), 2)
    with pytest.raises(GraphError, match="no edge"):
        neighbour_agreement(near, np.zeros(5, int), np.zeros(0, int))
    with pytest.raises(GraphError, match="4 embeddings for 6 nodes"):
        neighbour_agreement(near, np.zeros(7, int), np.zeros(0, int))


def test_silhouette_is_its_definition():
    z, y = blobs(30)
    values = []
    for u in range(30):
        mean = {
            c: np.mean([np.linalg.norm(z[u] - z[v]) for v in range(30) if y[v] == c and v != u])
            for c in range(3)
        }
        a, b = mean[y[u]], min(mean[c] for c in range(3) if c != y[u])
        values.append((b - a) / max(a, b))
    assert silhouette(z, y) == pytest.approx(np.mean(values))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_any_seed_will_do(seed):
    z = blobs()[0]
    assert uniformity(z, seed=seed, sample=60) < 0


def test_effective_rank_and_mean_cosine_are_their_definitions():
    z = np.random.default_rng(0).normal(size=(14, 5)) + 0.5
    for table in (z, z.T):
        p = np.linalg.svd(table, compute_uv=False)
        p /= p.sum()
        assert effective_rank(table) == pytest.approx(math.exp(-sum(p * np.log(p))))
    unit = [normalised(row) for row in z]
    cosines = [np.dot(unit[u], unit[v]) for u in range(14) for v in range(14) if u != v]
    assert mean_cosine(z) == pytest.approx(np.mean(cosines))


def test_effective_rank_and_mean_cosine_at_their_ends():
    assert effective_rank(np.eye(6)) == pytest.approx(6)
    assert effective_rank(np.outer(np.arange(1, 9), [1, 2, 3])) == pytest.approx(1, abs=1e-5)
    assert effective_rank(np.zeros((4, 3))) == 0
    assert effective_rank(1e38 * np.eye(3, dtype=np.float32)) == pytest.approx(3)
    assert mean_cosine(np.ones((5, 2)) * [[1], [2], [3], [4], [5]]) == pytest.approx(1)
    assert mean_cosine([[1.0, 0], [-1, 0]]) == -1
    assert mean_cosine(np.zeros((4, 3))) == 0
    assert mean_cosine(1e38 * np.ones((3, 2), np.float32)) == pytest.approx(1)
    with pytest.raises(GraphError, match="at least 2"):
        mean_cosine(np.ones((1, 3)))


def test_the_seed_decides_the_rows_that_are_measured():
    z = np.random.default_rng(0).normal(size=(200, 5))
    for measure in (effective_rank, mean_cosine):
        assert measure(z, seed=3, sample=20) == measure(z, seed=3, sample=20)
        assert measure(z, seed=3, sample=20) != measure(z, seed=4, sample=20)
