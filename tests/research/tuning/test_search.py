from dataclasses import replace

import numpy as np
import pytest
import torch

from graphcl.errors import RunError
from graphcl.estimator import GraphCL
from graphcl.recipes import load_recipe
from graphcl.research.trials import rows
from graphcl.research.tuning import search as tune
from graphcl.research.tuning.objective import ValidationScore, build_objective
from graphcl.research.tuning.search import RECIPE, TRIALS, Search
from tests.conftest import random_collection

CPU = torch.device("cpu")
TRIAL = ("number", "params", "state", "score", "epochs", "scores")


def search_of(data, folder, *, unsupervised=False, fixed=("epochs",), **changed):
    base = load_recipe("default").with_values(dim=8, epochs=2, batch_nodes=0)
    return Search(
        objective=build_objective(
            data, unsupervised=unsupervised, seed=0, device=CPU, probe_steps=5
        ),
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
    tune.tune(search_of(replace(graph, y=scrambled), tmp_path / "scrambled"), 3)
    assert trials(tmp_path / "true") == trials(tmp_path / "scrambled")
    # Nor could they be: what the search holds has no label of a test node.
    objective = ValidationScore.of(graph, device="cpu")
    assert objective.data.y is None
    assert not graph.test_mask[objective.nodes].any()
    assert len(objective.y) == len(objective.nodes)


def test_test_labels_of_many_graphs_are_never_read(tmp_path):
    collection = random_collection()
    last = collection.test[0]
    other = replace(collection, test=(replace(last, y=1 - last.y),))
    for name, data in (("true", collection), ("flipped", other)):
        tune.tune(search_of(data, tmp_path / name), 2)
    assert trials(tmp_path / "true") == trials(tmp_path / "flipped")
    assert 0 < trials(tmp_path / "true")[0]["score"] <= 1


def test_without_labels_stable_clusters_decide(graph, tmp_path):
    bare = replace(graph, y=None)
    best = tune.tune(search_of(bare, tmp_path / "bare"), 2)
    search = search_of(bare, tmp_path / "bare")
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
