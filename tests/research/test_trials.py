import numpy as np
import pytest
import torch

from graphcl.errors import ParameterError
from graphcl.graphs.graph import Graph
from graphcl.recipes import load_recipe
from graphcl.research.systems import SYSTEMS
from graphcl.research.trials import repeat_method, summarise

CPU = torch.device("cpu")
SCORES = {"accuracy", "micro_f1", "macro_f1", "val_accuracy"}


@pytest.mark.parametrize("name", ["raw", "gcn", "graphcl"])
def test_a_row_has_scores_costs_and_settings(name, graph):
    settings = {"raw": {}, "gcn": {"epochs": 2}, "graphcl": {"epochs": 2, "dim": 8}}[name]
    (row,) = repeat_method(name, graph, seeds=[3], device=CPU, settings=settings)
    assert row.keys() >= SCORES | {"train_seconds", "peak_memory_bytes", "settings"}
    assert (row["method"], row["graph"], row["seed"]) == (name, "random", 3)
    assert row["settings"].items() >= settings.items()
    assert "failed" not in row
    assert row.get("runs_identical", False) == (name == "raw")


def test_a_dataset_chooses_settings_and_recipe(graph):
    quick = {"epochs": 1, "dim": 8}
    (row,) = repeat_method("graphcl", graph, "cora", seeds=[0], device=CPU, settings=quick)
    assert row["settings"]["edge_drop"] == load_recipe("cora").edge_drop
    (row,) = repeat_method(
        "random-encoder", graph, "citeseer", seeds=[0], device=CPU, settings={"dim": 8}
    )
    assert row["settings"]["layers"] == SYSTEMS["random-encoder"].settings["citeseer"]["layers"]


def test_several_labels_per_node(collection):
    (row,) = repeat_method("raw", collection, seeds=[0], device=CPU, probe_steps=10)
    assert {"micro_f1", "val_micro_f1"} <= row.keys()
    assert row["steps"] == 10


def test_a_failed_training_is_a_row_without_scores(graph):
    rows = repeat_method(
        "gat", graph, seeds=[0], device=CPU, settings={"learning_rate": 1e30, "epochs": 3}
    )
    assert "not finite" in rows[0]["failed"]
    assert not SCORES & rows[0].keys()


def test_a_deterministic_system_runs_once(graph, monkeypatch, capsys):
    rows = repeat_method("raw", graph, seeds=[4, 5, 6], device=CPU, verbose=True)
    assert [row["seed"] for row in rows] == [4, 5, 6]
    assert len({row["train_seconds"] for row in rows}) == 1
    assert summarise(rows)["accuracy"]["std"] == 0
    assert "run 3/3: seed 6  accuracy" in capsys.readouterr().err


def test_an_unknown_method_is_refused_with_the_nearest(graph):
    with pytest.raises(ParameterError, match=r"known: graphcl, raw.*did you mean 'dgi'\?"):
        repeat_method("dgii", graph, seeds=[0], device=CPU)
    assert next(iter(SYSTEMS)) == "graphcl"


def test_many_graphs_are_scored_by_micro_f1(collection, recipe):
    rows = repeat_method(
        "graphcl",
        collection,
        settings=vars(recipe),
        seeds=[0, 1],
        device=CPU,
        probe_steps=15,
    )
    assert [row["seed"] for row in rows] == [0, 1]
    assert all(row["graph"] == "tissues" and row["steps"] == 15 for row in rows)
    summary = summarise(rows)
    scores = {name for name, value in summary.items() if isinstance(value, dict)}
    assert scores == {"accuracy", "micro_f1", "macro_f1", "val_micro_f1"}
    mean = (rows[0]["micro_f1"] + rows[1]["micro_f1"]) / 2
    assert summary["micro_f1"]["mean"] == pytest.approx(mean)
    assert (summary["steps"], summary["split"], summary["failed"]) == (15, "given", 0)


def test_the_summary_of_one_run_has_numbers(graph, recipe):
    rows = repeat_method("graphcl", graph, settings=vars(recipe), seeds=[0], device=CPU)
    summary = summarise(rows)
    assert set(summary) == {
        "split",
        "nodes",
        "majority",
        "failed",
        "accuracy",
        "micro_f1",
        "macro_f1",
        "val_accuracy",
    }


def test_several_splits_are_scored_by_their_mean(graph):
    masks = {
        name: np.stack([getattr(graph, name), np.roll(getattr(graph, name), 1)], 1)
        for name in ("train_mask", "val_mask", "test_mask")
    }
    several = Graph.from_edge_index(graph.edge_index(), graph.x, graph.y, **masks)
    (row,) = repeat_method("raw", several, seeds=[0], device=CPU)
    each = [
        repeat_method("raw", several.split(number), seeds=[0], device=CPU)[0]["accuracy"]
        for number in range(2)
    ]
    assert each[0] != each[1]
    assert row["accuracy"] == pytest.approx(sum(each) / 2)
    assert summarise([row])["splits"] == 2
