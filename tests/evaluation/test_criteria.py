import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score, roc_auc_score

from graphcl.errors import GraphError
from graphcl.evaluation import criteria as validation
from graphcl.evaluation.criteria import cluster_stability, validation_score
from graphcl.evaluation.probe import STRENGTHS, standardiser
from graphcl.evaluation.splits import metric_of


def test_one_split_is_the_probes_own(graph):
    from graphcl import linear_probe

    known = graph.train_mask | graph.val_mask
    z, y, train = graph.x[known], graph.y[known], graph.train_mask[known]
    found = validation_score(z, y, train, splits=1)
    # The probe tries weaker penalties too, and takes one that is good on other splits: near.
    assert abs(found - linear_probe(graph.x, graph).val_accuracy) <= 0.1
    assert 0 <= validation_score(z, y, train) <= 1
    assert validation_score(z, y, train) == validation_score(z, y, train)


def test_errors_name_what_is_missing(graph):
    with pytest.raises(GraphError, match="fewer than two"):
        validation_score(graph.x, np.zeros(graph.num_nodes), graph.train_mask)
    with pytest.raises(GraphError, match="no labelled validation"):
        validation_score(graph.x, graph.y, np.ones(graph.num_nodes, dtype=bool))


def test_stability_is_the_agreement_of_scikit_learns_clusters(monkeypatch):
    monkeypatch.setattr(validation, "CLUSTERS", 4)
    random = np.random.default_rng(0)
    kinds = random.integers(0, 4, 120)
    centres = random.normal(size=(4, 6))
    z_1, z_2 = (centres[kinds] + random.normal(scale=0.5, size=(120, 6)) for _ in range(2))
    parts = []
    for seed, z in enumerate((z_1, z_2)):
        z = (z - z.mean(0)) / z.std(0)
        z /= np.linalg.norm(z, axis=1, keepdims=True)
        parts.append(KMeans(4, n_init=3, random_state=seed).fit_predict(z))
    found = cluster_stability(z_1, z_2)
    assert found == pytest.approx(adjusted_rand_score(*parts))
    assert 0.5 < found < 1
    assert cluster_stability(z_1, z_2) == found


def test_embeddings_without_clusters_are_not_stable():
    random = np.random.default_rng(0)
    noise, other = (random.normal(size=(500, 40)) for _ in range(2))
    assert abs(cluster_stability(noise, other)) < 0.05
    tight = np.repeat(np.eye(8), 50, axis=0) + random.normal(scale=1e-3, size=(400, 8))
    assert cluster_stability(tight, tight[:, ::-1]) == 1


def test_a_collapsed_encoder_is_not_stable():
    same = np.ones((200, 3))
    assert cluster_stability(same, 0 * same) == 0
    outlier = same.copy()
    outlier[7] = (5, -3, 1)
    assert cluster_stability(outlier, outlier) == 0
    halves = np.repeat(np.eye(3)[:2], 100, axis=0)
    assert cluster_stability(halves, halves) == 1
    assert cluster_stability(halves, same) == 0


def test_of_many_nodes_a_sample_is_clustered(monkeypatch):
    monkeypatch.setattr(validation, "SAMPLE", 100)
    random = np.random.default_rng(0)
    z = np.repeat(np.eye(8), 50, axis=0) + random.normal(scale=1e-3, size=(400, 8))
    assert cluster_stability(z, z) == 1
    assert cluster_stability(z, z[random.permutation(400)]) < 0.5  # of the same nodes


def test_two_classes_are_ranked_by_the_area_and_more_by_accuracy():
    random = np.random.default_rng(0)
    y = (np.arange(200) % 10 == 0).astype(int)  # a rare class: accuracy tells nothing of it
    z = random.normal(size=(200, 2)) + 1.5 * y[:, None]
    train = np.arange(200) % 2 == 0
    train[np.flatnonzero(y)[::2]] = False
    found = validation_score(z, y, train, splits=1)
    areas, strengths = [], [one for one in STRENGTHS if one <= 1]
    rows = standardiser(z[train])(z)
    for strength in strengths:
        probe = LogisticRegression(C=strength, max_iter=300).fit(rows[train], y[train])
        areas.append(roc_auc_score(y[~train], probe.decision_function(rows[~train])))
    assert found == pytest.approx(max(areas), abs=1e-3)
    assert metric_of(y) == "roc_auc"
    assert metric_of(np.arange(9) % 3) == "accuracy"
    assert metric_of(np.eye(3)) == "label_auc"
