import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch

from graphcl.errors import RunError
from graphcl.evaluation.splits import compare_probe
from graphcl.recipes import load_recipe
from graphcl.research import rows
from graphcl.research import tuning as tune
from graphcl.research.tuning import (
    RECIPE,
    TRIALS,
    Search,
    ValidationScore,
)
from tests.conftest import random_collection

CPU = torch.device("cpu")
TRIAL = ("number", "params", "state", "score", "epochs", "scores")


def search_of(data, folder, *, fixed=("epochs",), **changed):
    base = load_recipe("default").replace(dim=8, epochs=2, batch_nodes=0)
    return Search(
        objective=ValidationScore.of(data, device=CPU, steps=5),
        base=base.replace(**changed),
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
    relabelled = dataclasses.replace(graph.only_type, y=graph.y[::-1].copy())
    other = dataclasses.replace(graph, nodes={relabelled.name: relabelled})
    with pytest.raises(RunError, match="another graph, recipe, seed or objective"):
        tune.tune(search_of(other, tmp_path), 2)
    assert (tmp_path / TRIALS).read_bytes() == before


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
