import json
import sys

import numpy as np

from graphcl.cli.main import run
from graphcl.recipes import load_recipe


def test_tune_writes_a_recipe_that_train_takes(here, graph, capsys):
    np.savez(
        "mine.npz",
        edge_index=graph.edge_index(),
        x=graph.x,
        y=graph.y,
        train_mask=graph.train_mask,
        val_mask=graph.val_mask,
        test_mask=graph.test_mask,
    )
    command = ["tune", "mine.npz", "--trials", "2", "--set", "epochs=1", "--set", "dim=4"]
    assert run(command) == 0
    captured = capsys.readouterr()
    assert "validation accuracy" in captured.out
    assert "trial 2/2" in captured.err
    recipe = load_recipe(here / "tuning/mine/recipe.toml")
    assert (recipe.epochs, recipe.dim) == (1, 4)
    assert run([*command, "--json"]) == 0
    captured = capsys.readouterr()
    assert "2 of 2 trials found" in captured.err
    assert json.loads(captured.out)["recipe"] == vars(recipe)
    assert run(["train", "mine.npz", "--recipe", "tuning/mine/recipe.toml"]) == 0
    assert run([*command, "--seed", "1"]) == 2
    assert "another graph, recipe, seed or objective" in capsys.readouterr().err


def test_tune_needs_labels(here, graph, capsys):
    np.savez("bare.npz", edge_index=graph.edge_index(), x=graph.x)
    assert run(["tune", "bare.npz"]) == 2
    said = "bare: has no labels to tune by; give some, or train the recipe default"
    assert capsys.readouterr().err == f"graphcl: {said}\n"
    assert not (here / "tuning").exists()


def test_tune_takes_tables(here, capsys):
    (here / "e.csv").write_text(
        "source,target\n" + "".join(f"{n},{(n + 1) % 60}\n" for n in range(60))
    )
    (here / "n.csv").write_text(
        "id,f,kind\n" + "".join(f"{n},{n % 5},{n % 3}\n" for n in range(60))
    )
    (here / "t.csv").write_text("id,tag\n" + "".join(f"{n},t{n % 2}\n" for n in range(60)))
    command = ["tune", "e.csv", "--nodes", "n.csv", "--tags", "t.csv", "--trials", "1"]
    command += ["--label", "kind"]
    command += ["--set", "epochs=1"]
    assert run([*command, "--set", "dim=4"]) == 0
    assert "3 dense features" in capsys.readouterr().err


def test_a_missing_extra_is_named(here, graph, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert run(["tune", "cora", "--trials", "1"]) == 2
    assert "pip install 'graphcl[tune]'" in capsys.readouterr().err
