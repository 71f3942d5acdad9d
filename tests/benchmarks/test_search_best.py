import random
from dataclasses import replace

import pytest

from benchmarks import rows, search, search_best
from benchmarks.search_best import CHOICES, PLAIN, RATES, Configurations
from graphcl.recipes import load_recipe
from tests.conftest import random_graph


def test_every_draw_is_a_recipe():
    draw = random.Random(0)
    settings, recipe = search_best.random_settings(draw), load_recipe("cora")
    for _ in range(200):
        settings = search_best.changed(settings, draw)
        recipe.replace(**settings)
        assert settings.keys() == CHOICES.keys() | RATES.keys()
        assert all(low <= settings[key] <= high for key, (low, high) in RATES.items())
        if settings["encoder"] == "gcn":
            assert settings.items() >= PLAIN.items()


def test_few_seeds_are_believed_less():
    known = Configurations()
    known.add({"a": 1}, 0.84)
    for value in (0.83, 0.83, 0.83, 0.83):
        known.add({"a": 2}, value)
    known.add({"a": 3}, 0.7)
    # Mean of all 0.81: (0.84 + 1.62) / 3 is below (3.32 + 1.62) / 6.
    assert known.best(2) == [{"a": 2}, {"a": 1}]
    assert known.fewest(known.best(2)) == {"a": 1}


@pytest.fixture
def graph(monkeypatch):
    plain = random_graph()
    graph = replace(plain, name="cora")
    monkeypatch.setattr(search, "load_dataset", lambda _: graph)
    return graph


def test_test_labels_change_nothing(graph, monkeypatch, tmp_path):
    settings = {"dim": 8, "epochs": 2, "layers": 1}

    def row():
        cpu = search.resolve_device("cpu")
        return search_best.trained_row(search.Search("cora", cpu, tmp_path), settings, seed=3)

    def relabelled(nodes):
        y = graph.y.copy()
        y[nodes] = (y[nodes] + 1) % 3
        monkeypatch.setattr(search, "load_dataset", lambda _: graph.replace(y=y))
        return row()

    before = row()
    assert relabelled(~(graph.train_mask | graph.val_mask)) == before
    assert relabelled(graph.val_mask) != before  # these are what it goes by


def test_a_search_goes_on_from_its_rows(graph, tmp_path, monkeypatch):
    small = {"dim": (8,), "epochs": (1,), "layers": (1,), "encoder": ("mean",)}
    monkeypatch.setattr(search_best, "CHOICES", CHOICES | small)
    out, best = tmp_path / "rows.jsonl", tmp_path / "best.toml"
    options = ["--out", str(out), "--device", "cpu", "--random", "3", "--recipe", str(best)]
    monkeypatch.setattr("sys.argv", ["search_best", "cora", *options, "--budget", "1"])
    search_best.main()
    found = rows.read(out)
    assert found
    assert {"accuracy", "micro_f1"}.isdisjoint(*found)
    assert all(0 <= row["val_accuracy"] <= 1 for row in found if "failed" not in row)
    assert load_recipe(best).feature_drop in {row["settings"]["feature_drop"] for row in found}
    search_best.main()
    again = rows.read(out)
    assert again[: len(found)] == found
    keys = [(str(row["settings"]), row["seed"]) for row in again]
    assert len(keys) == len(set(keys)), "a seed of a configuration was trained twice"
