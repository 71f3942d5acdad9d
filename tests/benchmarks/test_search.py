"""The search's probe against scikit-learn's, and its ranking."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import search
from benchmarks.batched_probe import accuracies
from graphcl.recipes import load_recipe


def test_the_batched_probe_is_scikit_learns():
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 240)
    centres = draw.normal(size=(3, 20))
    z = np.stack([centres[y] + draw.normal(scale=s, size=(240, 20)) for s in (2.0, 4.0)])
    splits = np.stack([draw.choice(240, 60, replace=False) for _ in range(3)])
    strengths = [1e-4, 1e-2, 1.0]
    tensors = (torch.tensor(z).float(), torch.tensor(y), torch.tensor(splits))
    ours = accuracies(*tensors, torch.tensor(strengths).float()).numpy()
    for e, rows in enumerate(z):
        for s, train in enumerate(splits):
            rest = np.setdiff1d(np.arange(240), train)
            for c, strength in enumerate(strengths):
                probe = make_pipeline(
                    StandardScaler(), LogisticRegression(C=strength, max_iter=1000)
                ).fit(rows[train], y[train])
                theirs = (probe.predict(rows[rest]) == y[rest]).mean()
                assert ours[e, s, c] == pytest.approx(theirs, abs=1.5 / len(rest))


def row(score, **values):
    recipe = load_recipe("cora").replace(**values)
    return {"recipe": vars(recipe), "val_accuracy": score + 0.01, "cv_accuracy": score - 0.01}


def test_every_temperature_and_scaling_sends_its_best():
    found = [
        row(0.80, temperature=0.5, feature_scaling="none", edge_drop=0.1, epochs=100),
        row(0.82, temperature=0.5, feature_scaling="none", edge_drop=0.2, epochs=100),
        row(0.81, temperature=0.5, feature_scaling="none", edge_drop=0.3, epochs=100),
        row(0.70, temperature=1.0, feature_scaling="row", edge_drop=0.4, epochs=100),
    ]
    assert search.score(found[0]) == pytest.approx(0.80)
    ranked = search.configurations(found)
    assert [recipe.edge_drop for _, recipe in ranked] == [0.2, 0.3, 0.1, 0.4]
    finalists = search.best_of_each(ranked, 1)
    assert [recipe.edge_drop for recipe in finalists] == [0.2, 0.4]
    assert {recipe.epochs for recipe in finalists} == {max(search.EPOCHS)}
