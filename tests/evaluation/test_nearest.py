import numpy as np
import pytest

from graphcl.errors import ParameterError
from graphcl.evaluation.nearest import drop_self, nearest, unit_rows


def brute_force(z, k):
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    order = np.argsort(-cosines, axis=1)[:, :k]
    return order, np.take_along_axis(cosines, order, axis=1)


def test_exact_neighbours_are_those_of_brute_force(monkeypatch):
    monkeypatch.setattr("graphcl.evaluation.nearest.BLOCK_PAIRS", 700)  # several blocks
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
