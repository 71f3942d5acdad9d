import pytest
import torch

from graphcl.trials.methods import repeat_method, summarise

CPU = torch.device("cpu")


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


def test_one_graph_keeps_its_scores(graph, recipe):
    rows = repeat_method("graphcl", graph, settings=vars(recipe), seeds=[0], device=CPU)
    summary = summarise(rows)
    assert set(summary) == {
        "split",
        "failed",
        "accuracy",
        "micro_f1",
        "macro_f1",
        "val_accuracy",
    }
