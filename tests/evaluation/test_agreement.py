import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.errors import GraphError
from graphcl.evaluation.agreement import consensus, lidar, linear_cka, shared_neighbours


def rows(seed, n=30, dim=5):
    return np.random.default_rng(seed).normal(size=(n, dim))


def test_cka_is_its_formula_in_loops():
    z_1, z_2 = rows(0, 9, 3), rows(1, 9, 4)

    def kernel(z):
        mean = [sum(z[:, c]) / len(z) for c in range(z.shape[1])]
        c = [[z[u, j] - mean[j] for j in range(len(mean))] for u in range(len(z))]
        return [[sum(a * b for a, b in zip(u, v, strict=True)) for v in c] for u in c]

    def inner(k, m):
        return sum(k[i][j] * m[i][j] for i in range(9) for j in range(9))

    k, m = kernel(z_1), kernel(z_2)
    expected = inner(k, m) / (inner(k, k) * inner(m, m)) ** 0.5
    assert linear_cka(z_1, z_2) == pytest.approx(expected)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.floats(0.01, 1e6))
def test_rotation_and_scale_change_nothing(seed, factor):
    z = rows(seed)
    turned = factor * z @ np.linalg.qr(rows(seed + 1, 5, 5))[0]
    assert linear_cka(z, turned) == pytest.approx(1)
    assert shared_neighbours(z, turned) > 0.99  # ties may fall otherwise in float32
    views = np.stack([z, z + 0.1 * rows(seed + 2)])
    spun = np.stack([view @ np.linalg.qr(rows(seed + 1, 5, 5))[0] for view in factor * views])
    assert lidar(spun) == pytest.approx(lidar(views), rel=1e-6)


def test_constant_embeddings_agree_with_nothing():
    assert linear_cka(np.ones((30, 4)), rows(0)) == 0
    assert lidar(np.ones((2, 30, 4))) == 0


def test_shared_neighbours_by_brute_force():
    z_1, z_2 = rows(0, 12), rows(1, 12)

    def top(z, u):
        unit = z / np.linalg.norm(z, axis=1, keepdims=True)
        cosines = {v: float(unit[u] @ unit[v]) for v in range(len(z)) if v != u}
        return set(sorted(cosines, key=cosines.get, reverse=True)[:3])

    same = [len(top(z_1, u) & top(z_2, u)) / 3 for u in range(12)]
    assert shared_neighbours(z_1, z_2, 3) == pytest.approx(np.mean(same))


def test_consensus_is_the_mean_over_the_others_and_an_outsider_has_least():
    z = rows(0, 60)
    each = [z, z + 0.1 * rows(1, 60), z + 0.1 * rows(2, 60), rows(3, 60)]
    found = consensus(each)
    assert found[0] == pytest.approx(np.mean([shared_neighbours(z, other) for other in each[1:]]))
    assert min(found) == found[3]
    assert found[3] < 0.5 * found[0]
    assert consensus([z]) == [0]
    assert consensus(each, linear_cka)[3] < consensus(each, linear_cka)[0]


def test_lidar_is_its_formula():
    views = np.stack([rows(0, 40, 3) @ np.diag([5, 1, 0.2])] * 3) + 0.3 * np.random.default_rng(
        1
    ).normal(size=(3, 40, 3))
    means = views.mean(axis=0)
    between = np.cov(means.T)
    within = sum(
        np.outer(views[q, u] - means[u], views[q, u] - means[u])
        for q in range(3)
        for u in range(40)
    )
    within = within / (40 * 2)
    within += 1e-4 * (np.trace(within) + np.trace(between)) / 3 * np.eye(3)
    values = np.linalg.eigvals(np.linalg.inv(within) @ between).real  # similar matrices
    p = values / values.sum()
    assert lidar(views) == pytest.approx(np.exp(-sum(q * np.log(q) for q in p)))


def test_what_does_not_fit_is_refused():
    with pytest.raises(GraphError, match="linear CKA: embeddings of shapes"):
        linear_cka(rows(0), rows(0, 29))
    with pytest.raises(GraphError, match="two views"):
        lidar(rows(0)[None])
