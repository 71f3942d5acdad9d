import math

import numpy as np
import pytest

from graphcl.errors import GraphError
from graphcl.evaluation.unsupervised import (
    effective_rank,
    mean_cosine,
    silhouette,
)


def blobs(n=90, centres=3, seed=0):
    random = np.random.default_rng(seed)
    y = np.arange(n) % centres
    return random.normal(size=(n, 8)) * 0.1 + np.eye(centres, 8)[y] * 2, y


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
    assert effective_rank(z, seed=seed, sample=60) > 1


def test_effective_rank_and_mean_cosine_are_their_definitions():
    z = np.random.default_rng(0).normal(size=(14, 5)) + 0.5
    for table in (z, z.T):
        p = np.linalg.svd(table, compute_uv=False)
        p /= p.sum()
        assert effective_rank(table) == pytest.approx(math.exp(-sum(p * np.log(p))))
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
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
