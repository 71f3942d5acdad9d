import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.metrics import r2_score, roc_auc_score

from graphcl.errors import GraphError
from graphcl.evaluation import recovery
from graphcl.evaluation.recovery import few_shot_recovery, link_recovery, principal_targets


@pytest.mark.parametrize("shape", [(50, 8), (20, 60)])
def test_principal_targets_are_those_of_sklearn(shape):
    x = np.random.default_rng(0).normal(size=shape) @ np.diag(np.geomspace(1, 50, shape[1]))
    x[:, 3] = 7  # a constant column tells nothing
    found = principal_targets(x, 4)
    kept = np.delete(x, 3, axis=1)
    expected = PCA(4, whiten=True).fit_transform((kept - kept.mean(0)) / kept.std(0))
    expected /= expected.std(axis=0)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), rtol=1e-5, atol=1e-6)


def test_a_table_without_variance_has_no_targets():
    assert principal_targets(np.ones((30, 3))).shape == (30, 0)
    assert few_shot_recovery(np.eye(30), np.empty((30, 0))) == 0
    assert principal_targets(np.outer(np.arange(30), [1, 2, 3])).shape == (30, 1)


def test_the_regression_is_sklearn_s_ridge_with_the_best_penalty_by_leaving_one_out():
    random = np.random.default_rng(0)
    z = random.normal(size=(40, 6)) * np.geomspace(0.1, 10, 6) + 3
    y = z @ random.normal(size=(6, 2)) + random.normal(size=(40, 2))
    new = random.normal(size=(7, 6))
    scaled, there = (z - z.mean(0)) / z.std(0), (new - z.mean(0)) / z.std(0)
    witness = RidgeCV(recovery.STRENGTHS, scoring="neg_mean_squared_error", cv=40).fit(scaled, y)
    best = Ridge(witness.alpha_).fit(scaled, y)
    np.testing.assert_allclose(recovery._ridge(z, y, new), best.predict(there), rtol=1e-6)


def test_recovery_is_the_mean_r_squared_on_the_nodes_not_learned_from():
    random = np.random.default_rng(1)
    z = random.normal(size=(100, 4))
    targets = np.c_[z @ [1, 2, 0, 0], random.normal(size=100)]
    draw, scores = np.random.default_rng(0), []
    for _ in range(recovery.DRAWS):
        order = draw.permutation(100)
        few, rest = order[:10], order[10:]
        predicted = recovery._ridge(z[few], targets[few], z[rest])
        each = r2_score(targets[rest], predicted, multioutput="raw_values")
        scores.append(np.maximum(each, 0).mean())
    assert few_shot_recovery(z, targets) == pytest.approx(np.mean(scores))


def test_what_is_there_is_found_and_noise_is_not():
    random = np.random.default_rng(0)
    z = random.normal(size=(300, 5))
    assert few_shot_recovery(z, z[:, :2]) > 0.95
    assert few_shot_recovery(z, random.normal(size=(300, 2))) < 0.1
    assert few_shot_recovery(np.ones((300, 5)), z) == 0
    with pytest.raises(GraphError, match="recovery"):
        few_shot_recovery(z, z[:-1])


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
