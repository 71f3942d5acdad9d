import math

import numpy as np
import pytest

from graphcl.errors import GraphError, ParameterError
from graphcl.evaluation.unsupervised import (
    drop_self,
    effective_rank,
    mean_cosine,
    nearest,
    silhouette,
    unit_rows,
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


def brute_force(z, k):
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    order = np.argsort(-cosines, axis=1)[:, :k]
    return order, np.take_along_axis(cosines, order, axis=1)


def test_exact_neighbours_are_those_of_brute_force(monkeypatch):
    monkeypatch.setattr("graphcl.evaluation.unsupervised.BLOCK_PAIRS", 700)  # several blocks
    z = np.random.default_rng(0).normal(size=(150, 9)).astype(np.float32)
    numbers, cosines = nearest(z, 7)
    expected_numbers, expected_cosines = brute_force(z, 7)
    assert np.array_equal(numbers, expected_numbers)
    np.testing.assert_allclose(cosines, expected_cosines, atol=1e-5)


def test_the_index_finds_nearly_all_of_them_and_the_same_every_time():
    z = np.random.default_rng(1).normal(size=(800, 12)).astype(np.float32)
    numbers, cosines = nearest(z, 10, exact_rows=0)
    expected, _ = brute_force(z, 10)
    found = [len(set(row) & set(truth)) for row, truth in zip(numbers, expected, strict=True)]
    assert sum(found) > 0.97 * expected.size
    assert not (numbers == np.arange(800)[:, None]).any()
    assert (np.diff(cosines, axis=1) <= 1e-3).all()
    assert np.array_equal(nearest(z, 10, exact_rows=0)[0], numbers)


def test_few_rows_and_zero_rows():
    numbers, _ = nearest(np.eye(3), 10)
    assert numbers.shape == (3, 2)
    assert nearest(np.ones((1, 4)), 5)[0].shape == (1, 0)
    assert np.isfinite(nearest(np.zeros((4, 2)), 2)[1]).all()
    assert np.array_equal(unit_rows([[0.0, 0.0], [3.0, 4.0]]), np.float32([[0, 0], [0.6, 0.8]]))
    with pytest.raises(ParameterError, match="k must be at least 1"):
        nearest(np.eye(3), 0)


def test_a_row_that_does_not_find_itself_loses_its_last():
    numbers, cosines = drop_self(
        np.array([[0, 2, 1], [0, 2, 1], [1, 0, 3]]), np.float32([[3, 2, 1]] * 3)
    )
    assert numbers.tolist() == [[2, 1], [0, 2], [1, 0]]
    assert cosines.tolist() == [[2, 1], [3, 2], [3, 2]]
