"""The criteria that are compared with those that `graphcl tune` uses."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, roc_auc_score

from benchmarks import criteria
from benchmarks.criteria import agreement, consensus, lidar, link_recovery, shared_neighbours
from graphcl.research.evidence import linear_cka
from tests.research.test_evidence import rows


def test_links_are_told_from_other_pairs():
    random = np.random.default_rng(0)
    group = np.arange(60) % 3
    z = np.eye(3)[group] + 0.05 * random.normal(size=(60, 3))
    pairs = np.argwhere(np.triu(group[:, None] == group, 1)).T
    assert link_recovery(z, pairs[:, ::4], known=pairs) == 1
    assert abs(link_recovery(random.normal(size=(60, 8)), pairs, known=pairs) - 0.5) < 0.08
    assert link_recovery(z, pairs[:, :0], known=pairs) == 0.5
    assert link_recovery(np.ones((60, 3)), pairs, known=pairs) == 0.5


def test_link_recovery_is_the_auc_of_cosines():
    random = np.random.default_rng(0)
    z, links = random.normal(size=(40, 3)), np.array([[0, 1, 2, 3], [4, 5, 6, 7]])
    draw = np.random.default_rng(0).integers(0, 40, (2, 32))
    taken = {(0, 4), (1, 5), (2, 6), (3, 7)}
    others = [(min(p), max(p)) for p in draw.T.tolist() if p[0] != p[1]]
    others = [pair for pair in others if pair not in taken][:4]
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    cosines = [unit[u] @ unit[v] for u, v in [*links.T.tolist(), *others]]
    assert link_recovery(z, links, known=links) == pytest.approx(
        roc_auc_score([1] * 4 + [0] * 4, cosines)
    )


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


def test_stability_is_the_agreement_of_scikit_learns_clusters(monkeypatch):
    monkeypatch.setattr(criteria, "CLUSTERS", 4)
    random = np.random.default_rng(0)
    kinds = random.integers(0, 4, 120)
    centres = random.normal(size=(4, 6))
    z_1, z_2 = (centres[kinds] + random.normal(scale=0.5, size=(120, 6)) for _ in range(2))
    parts = []
    for seed, z in enumerate((z_1, z_2)):
        z = (z - z.mean(0)) / z.std(0)
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        parts.append(KMeans(4, n_init=3, random_state=seed).fit_predict(z))
    found = agreement(z_1, z_2)
    assert found == pytest.approx(adjusted_rand_score(*parts))
    assert 0.5 < found < 1
    assert agreement(z_1, z_2) == found


def test_a_collapsed_encoder_is_not_stable():
    same = np.ones((200, 3))
    assert agreement(same, 0 * same) == 0
    outlier = same.copy()
    outlier[7] = (5, -3, 1)
    assert agreement(outlier, outlier) == 0
    halves = np.repeat(np.eye(3)[:2], 100, axis=0)
    assert agreement(halves, halves) == 1
    assert agreement(halves, same) == 0
