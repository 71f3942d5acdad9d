from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from graphcl.errors import GraphError, RunError, StoreError
from graphcl.estimator import GraphCL
from graphcl.evaluation.splits import compare_probe
from graphcl.recipes import load_recipe
from graphcl.research import rows, tuning
from graphcl.research import tuning as tune
from graphcl.research.tuning import (
    RECIPE,
    TRIALS,
    ClusterStability,
    Search,
    ValidationScore,
    cluster_stability,
)
from tests.conftest import random_collection

CPU = torch.device("cpu")
TRIAL = ("number", "params", "state", "score", "epochs", "scores")


def search_of(data, folder, *, unsupervised=False, fixed=("epochs",), **changed):
    base = load_recipe("default").with_values(dim=8, epochs=2, batch_nodes=0)
    return Search(
        objective=ClusterStability.of(data, seed=0)
        if unsupervised
        else ValidationScore.of(data, device=CPU, steps=5),
        base=base.with_values(**changed),
        fixed=fixed,
        folder=folder,
        seed=0,
        device=CPU,
    )


def trials(folder):
    return [{key: row[key] for key in TRIAL} for row in rows.read(folder / TRIALS)]


def test_a_resumed_search_is_the_uninterrupted_one(graph, tmp_path, monkeypatch):
    monkeypatch.setattr(tune, "STARTUP", 2)  # so that the sampler learns from earlier trials
    tune.tune(search_of(graph, tmp_path / "whole"), 5)
    tune.tune(search_of(graph, tmp_path / "parts"), 3)
    path = tmp_path / "parts" / TRIALS
    path.write_bytes(path.read_bytes()[:-40])  # killed while it wrote the third
    told = []
    tune.tune(search_of(graph, tmp_path / "parts"), 5, on_trial=lambda n, *_: told.append(n))
    assert told == [3, 4, 5]
    assert trials(tmp_path / "parts") == trials(tmp_path / "whole")
    recipes = [(tmp_path / name / RECIPE).read_text() for name in ("whole", "parts")]
    assert recipes[0] == recipes[1]


def test_the_recipe_is_that_of_the_best_trial_and_loads(graph, tmp_path):
    best = tune.tune(search_of(graph, tmp_path), 3)
    found = rows.read(tmp_path / TRIALS)
    assert best["score"] == max(row["score"] for row in found)
    recipe = load_recipe(tmp_path / RECIPE)
    assert recipe.dim == 8
    assert {key: getattr(recipe, key) for key in best["params"]} == best["params"]
    for row in found:
        assert 0.05 <= row["params"]["edge_drop"] <= 0.75
        assert 0.2 <= row["params"]["feature_drop"] <= 0.8
        assert row["params"]["temperature"] in (0.1, 0.5, 0.8, 1.0)


def test_test_labels_are_never_read(graph, tmp_path):
    scrambled = graph.y.copy()
    scrambled[graph.test_mask] = np.random.default_rng(0).permutation(3)[graph.y[graph.test_mask]]
    assert not np.array_equal(scrambled, graph.y)
    tune.tune(search_of(graph, tmp_path / "true"), 3)
    tune.tune(search_of(graph.replace(y=scrambled), tmp_path / "scrambled"), 3)
    assert trials(tmp_path / "true") == trials(tmp_path / "scrambled")
    # Nor could they be: what the search holds has no label of a test node.
    objective = ValidationScore.of(graph, device="cpu")
    assert objective.data.y is None
    assert not graph.test_mask[objective.nodes].any()
    assert len(objective.y) == len(objective.nodes)


def test_test_labels_of_many_graphs_are_never_read(tmp_path):
    collection = random_collection()
    last = collection.test[0]
    other = replace(collection, test=(last.replace(y=1 - last.y),))
    for name, data in (("true", collection), ("flipped", other)):
        tune.tune(search_of(data, tmp_path / name), 2)
    assert trials(tmp_path / "true") == trials(tmp_path / "flipped")
    assert 0 < trials(tmp_path / "true")[0]["score"] <= 1


def test_without_labels_stable_clusters_decide(graph, tmp_path):
    bare = graph.replace(y=None)
    best = tune.tune(search_of(bare, tmp_path / "bare", unsupervised=True), 2)
    search = search_of(bare, tmp_path / "bare", unsupervised=True)
    model = GraphCL(tune.recipe_of(search, best), seed=0, device="cpu").fit(bare)
    assert best["score"] == pytest.approx(search.objective(model.transform))
    assert best["about"]["objective"] == "cluster stability"
    tune.tune(search_of(graph, tmp_path / "asked", unsupervised=True), 2)
    assert trials(tmp_path / "bare") == trials(tmp_path / "asked")


def test_a_training_is_scored_at_each_epoch_count_and_pruned(graph, tmp_path, monkeypatch):
    monkeypatch.setattr(tune, "EPOCHS", (1, 2, 4))
    monkeypatch.setattr(tune, "STARTUP", 2)
    scores = iter([0.9, 0.8, 0.7] * 2 + [0.1] * 9)
    monkeypatch.setattr(ValidationScore, "__call__", lambda *_: next(scores))
    best = tune.tune(search_of(graph, tmp_path, fixed=()), 3)
    first, _, third = rows.read(tmp_path / TRIALS)
    assert first["scores"] == {"1": 0.9, "2": 0.8, "4": 0.7}
    assert (first["epochs"], best["epochs"]) == (1, 1)
    assert third["state"] == "pruned"
    assert third["scores"] == {"1": 0.1}
    assert load_recipe(tmp_path / RECIPE).epochs == 1


def test_a_folder_of_another_search_is_refused(graph, tmp_path):
    tune.tune(search_of(graph, tmp_path), 1)
    before = (tmp_path / TRIALS).read_bytes()
    with pytest.raises(RunError, match="another graph, recipe, seed or objective"):
        tune.tune(search_of(graph, tmp_path, dim=4), 2)
    assert (tmp_path / TRIALS).read_bytes() == before


def test_stability_is_that_of_two_versions_of_the_graph(graph):
    objective = ClusterStability.of(graph, seed=0)
    assert objective.data.y is None
    whole = set(map(tuple, graph.edge_index().T.tolist()))
    first, second = (set(map(tuple, v.edge_index().T.tolist())) for v in objective.versions)
    for kept in (first, second):
        assert kept < whole
        assert abs(len(kept) / len(whole) - 0.8) < 0.1
    assert first != second
    lost = [(version.x != graph.x).mean() for version in objective.versions]
    assert lost == pytest.approx([0.5, 0.5], abs=0.1)
    groups = np.eye(8)[np.arange(graph.num_nodes) % 8]
    assert objective(lambda version: groups) == 1
    random = np.random.default_rng(0)
    assert objective(lambda version: random.normal(size=(graph.num_nodes, 8))) < 0.3


def test_a_damaged_store_is_refused_before_it_is_read(graph, tmp_path):
    graph.save(tmp_path / "store")
    indices = np.load(tmp_path / "store/part-00000/relation-0/indices.npy", mmap_mode="r+")
    indices[0] = 10**9
    indices.flush()
    with pytest.raises(StoreError, match="indices holds 1000000000"):
        ClusterStability.of(graph.open(tmp_path / "store"), seed=0)


def test_few_nodes_have_no_clusters(graph):
    few = graph.from_edge_index([[0], [1]], np.eye(3))
    with pytest.raises(GraphError, match="3 nodes are too few to cluster; tuning needs labels"):
        ClusterStability.of(few, seed=0)


def test_several_labels_are_ranked_by_the_score_of_compare(graph):
    """One embedding tells of rare labels, below probability 0.5; the other of a frequent one."""
    random, cpu = np.random.default_rng(0), torch.device("cpu")
    n = 600
    y = (random.random((n, 4)) < [0.08, 0.08, 0.08, 0.5]).astype(np.int64)
    rare = np.hstack([y[:, :3] + random.normal(size=(n, 3)), random.normal(size=(n, 1))])
    frequent = np.hstack([random.normal(size=(n, 3)), y[:, 3:] + random.normal(size=(n, 1)) / 9])
    split = random.permutation(np.arange(n) % 3)
    masks = {f"{part}_mask": split == place for place, part in enumerate(("train", "val", "test"))}
    several = graph.from_edge_index([[0], [1]], np.ones((n, 1)), y, **masks)
    objective = ValidationScore.of(several, device=cpu, steps=300)
    assert objective.name == "validation mean label AUC"
    tuned, compared = (
        [score(z) for z in (rare, frequent)]
        for score in (
            lambda z: objective(lambda _: z),
            lambda z: compare_probe(z, several, device=cpu).val_score,
        )
    )
    assert tuned == pytest.approx(compared, abs=0.02)
    assert tuned[0] > tuned[1] + 0.05


def test_stability_is_the_agreement_of_scikit_learns_clusters(monkeypatch):
    monkeypatch.setattr(tuning, "CLUSTERS", 4)
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
    monkeypatch.setattr(tuning, "SAMPLE", 100)
    random = np.random.default_rng(0)
    z = np.repeat(np.eye(8), 50, axis=0) + random.normal(scale=1e-3, size=(400, 8))
    assert cluster_stability(z, z) == 1
    assert cluster_stability(z, z[random.permutation(400)]) < 0.5  # of the same nodes
