import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.metrics import r2_score

from benchmarks.choosing import features_around, hidden_links, links_among
from benchmarks.criteria import lidar, shared_neighbours
from graphcl.errors import GraphError, StoreError
from graphcl.graphs.graph import Graph
from graphcl.research import evidence
from graphcl.research.evidence import (
    MEASURES,
    VERSIONS,
    Evidence,
    few_shot_recovery,
    linear_cka,
    measure,
    merits,
    principal_targets,
    sampled_nodes,
)
from tests.conftest import random_graph


def pairs(graph):
    return {(u, v) for u, v in graph.edge_index().T.tolist() if u < v}


def test_versions_lack_links_and_features_and_no_label_is_kept(graph):
    found = Evidence.of(graph, seed=0, versions=3)
    assert found.graph.y is None
    assert Evidence.of(graph, seed=0).count == 0
    whole, links = pairs(graph), links_among(graph, found.nodes)
    assert {tuple(link) for link in links.T.tolist()} == whole
    for number in range(found.count):
        version, hidden = found.version(number), hidden_links(found, number)
        assert version.y is None
        lost = {tuple(link) for link in links[:, hidden].T.tolist()}
        assert lost == whole - pairs(version)
        assert abs(len(lost) / len(whole) - evidence.HIDDEN) < 0.1
        changed = version.x != graph.x
        assert abs(changed.mean() - evidence.HIDDEN) < 0.05
        means = np.broadcast_to(graph.x.mean(axis=0), graph.x.shape)
        np.testing.assert_allclose(version.x[changed], means[changed], rtol=1e-5, atol=1e-6)
    assert not np.array_equal(hidden_links(found, 0), hidden_links(found, 1))


def test_the_seed_decides(graph):
    one, same, other = (Evidence.of(graph, seed=seed, versions=3) for seed in (0, 0, 1))
    assert np.array_equal(one.version(0).x, same.version(0).x)
    assert np.array_equal(hidden_links(one, 2), hidden_links(same, 2))
    assert not np.array_equal(one.version(0).x, other.version(0).x)
    assert not np.array_equal(one.version(0).x, one.version(1).x)


def test_it_shows_the_graph_and_its_versions(graph):
    found = Evidence.of(graph, seed=0, sample=20, versions=3)
    shown = found.observe(lambda one: np.asarray(one.x))
    assert shown.shape == (4, len(found.nodes), graph.num_features)
    np.testing.assert_array_equal(shown[0], graph.x[found.nodes])
    np.testing.assert_array_equal(shown[3], found.version(2).x[found.nodes])


def test_a_sample_has_links_among_its_nodes():
    graph = random_graph(num_nodes=400)
    nodes = sampled_nodes(graph, 40, np.random.default_rng(0))
    assert 20 < len(nodes) <= 40
    assert (np.diff(nodes) > 0).all()
    found = {tuple(nodes[list(link)].tolist()) for link in links_among(graph, nodes).T}
    chosen = set(nodes.tolist())
    assert found == {(u, v) for u, v in pairs(graph) if u in chosen and v in chosen}
    assert len(found) >= 15
    assert np.array_equal(sampled_nodes(graph, 400, np.random.default_rng(0)), np.arange(400))


@pytest.mark.parametrize("sparse", [False, True])
def test_features_of_nodes_and_around_them(sparse, monkeypatch):
    graph = random_graph()
    edges = graph.edge_index()[:, (graph.edge_index() != 5).all(axis=0)]  # 5 has no neighbour
    x = np.maximum(graph.x, 0)
    graph = Graph.from_edge_index(edges, scipy.sparse.csr_array(x) if sparse else x)
    found = Evidence.of(graph, seed=0)
    np.testing.assert_allclose(found.features(), x)
    around = features_around(found)
    for u in range(graph.num_nodes):
        others = [v for a, v in edges.T.tolist() if a == u]
        expected = np.mean([x[v] for v in others], axis=0) if others else np.zeros(x.shape[1])
        np.testing.assert_allclose(around[u], expected, rtol=1e-5)
    assert not around[5].any()
    np.testing.assert_array_equal(found.own, principal_targets(x))
    monkeypatch.setattr(evidence, "COLUMNS", 4)
    assert found.features().shape == features_around(found).shape == (60, 4)


def test_too_few_nodes_and_damaged_stores_are_refused(graph, tmp_path):
    with pytest.raises(GraphError, match="has 3 nodes; choosing without labels needs 20"):
        Evidence.of(graph.from_edge_index([[0], [1]], np.eye(3)), seed=0)
    graph.save(tmp_path / "store")
    indices = np.load(tmp_path / "store/part-00000/relation-0/indices.npy", mmap_mode="r+")
    indices[0] = 10**9
    indices.flush()
    with pytest.raises(StoreError, match="indices holds 1000000000"):
        Evidence.of(graph.open(tmp_path / "store"), seed=0)


def test_eight_bit_features_are_read(graph, tmp_path):
    graph.save(tmp_path / "store", features="int8")
    stored = Graph.open(tmp_path / "store")
    found = Evidence.of(stored, seed=0, versions=1)
    np.testing.assert_allclose(found.features(), graph.x, atol=0.1)
    assert found.version(0).x.shape == graph.x.shape
    assert stored.replace(y=None).y is None


def test_measures_are_those_of_the_evidence():
    evidence = Evidence.of(random_graph(num_nodes=200), seed=0, versions=VERSIONS)
    shown = evidence.observe(lambda graph: np.asarray(graph.x))
    found = measure(evidence, shown)
    assert set(found) == set(MEASURES)
    assert found["own"] == few_shot_recovery(shown[0], evidence.own)
    expected = np.mean([linear_cka(shown[0], version) for version in shown[1:]])
    assert found["stability"] == pytest.approx(expected)
    assert 1 < found["effective_rank"] <= 12


def test_merits_are_mean_ranks():
    low, high = dict.fromkeys(MEASURES, 0.1), dict.fromkeys(MEASURES, 0.9)
    mixed = {"effective_rank": 0.5, "own": 0.1, "stability": 0.95}
    # ranks: 1, 3, 2; 1.5, 3, 1.5; 1, 2, 3
    assert merits([low, high, mixed]) == pytest.approx([3.5 / 9, 8 / 9, 6.5 / 9])
    assert merits([low]) == [1.0]
    assert merits([low, low]) == [0.75, 0.75]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_ranks_are_those_of_scipy(values):
    assert merits([dict.fromkeys(MEASURES, one) for one in values]) == pytest.approx(
        rankdata(values) / len(values)
    )


def test_noise_copies_and_coarse_clusters_come_after_what_is_rich_and_knows_and_lasts():
    graph = random_graph(num_nodes=300)
    evidence = Evidence.of(graph, seed=0, versions=VERSIONS)
    random = np.random.default_rng(0)
    mix = random.normal(size=(graph.num_features, 24)).astype(np.float32)

    def good(one):  # features and what is around them
        links = np.zeros((one.num_nodes, one.num_nodes), np.float32)
        links[tuple(one.edge_index())] = 1
        mean = links @ one.x / np.maximum(links.sum(axis=1, keepdims=True), 1)
        return np.concatenate([one.x, mean], axis=1)

    def noise(one):  # another one each time
        return random.normal(size=(one.num_nodes, 24))

    def coarse(one):
        return np.concatenate([good(one)[:, :1]] * 24, axis=1)

    def scrambled(one):  # few directions of the features, and much else
        return np.tanh(20 * one.x @ mix + random.normal(size=24))

    found = merits(
        [measure(evidence, evidence.observe(e)) for e in (noise, good, coarse, scrambled)]
    )
    assert found[1] == max(found)


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
    witness = RidgeCV(evidence.STRENGTHS, scoring="neg_mean_squared_error", cv=40).fit(scaled, y)
    best = Ridge(witness.alpha_).fit(scaled, y)
    np.testing.assert_allclose(evidence._ridge(z, y, new), best.predict(there), rtol=1e-6)


def test_recovery_is_the_mean_r_squared_on_the_nodes_not_learned_from():
    random = np.random.default_rng(1)
    z = random.normal(size=(100, 4))
    targets = np.c_[z @ [1, 2, 0, 0], random.normal(size=100)]
    draw, scores = np.random.default_rng(0), []
    for _ in range(evidence.DRAWS):
        order = draw.permutation(100)
        few, rest = order[:10], order[10:]
        predicted = evidence._ridge(z[few], targets[few], z[rest])
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


def test_what_does_not_fit_is_refused():
    with pytest.raises(GraphError, match="linear CKA: embeddings of shapes"):
        linear_cka(rows(0), rows(0, 29))
    with pytest.raises(GraphError, match="two views"):
        lidar(rows(0)[None])
