import pytest

from benchmarks import rows, search_baselines
from tests.conftest import random_graph

GRID = ["margin=1,5", "epochs=2", "dim=4"]


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.setattr(search_baselines, "load_dataset", lambda name: random_graph())
    out = tmp_path / "rows.jsonl"

    def run(*arguments):
        options = ["--out", str(out), "--datasets", "cora", "--device", "cpu", *arguments]
        search_baselines.main(["ep-b", *options, "--grid", *GRID])
        return rows.read(out)

    return run


def test_every_point_is_scored_on_validation_alone(command, capsys):
    found = command("--seeds", "1")
    assert [row["settings"]["margin"] for row in found] == [1, 5]
    for row in found:
        assert 0 <= row["val_accuracy"] <= 1
        assert {"accuracy", "micro_f1", "macro_f1"}.isdisjoint(row)
        assert row["seed"] == 1000
        assert row["settings"]["dim"] == 4
    assert "over 1" in capsys.readouterr().out
    again = command("--seeds", "2")
    assert again[:2] == found  # not computed again
    assert [row["seed"] for row in again] == [1000, 1000, 1001, 1001]


def test_the_best_mean_comes_first():
    found = [
        {"graph": graph, "settings": {"margin": margin}, "val_accuracy": score}
        for graph, margin, score in (
            ("cora", 1, 0.6), ("cora", 1, 0.8), ("cora", 5, 0.9), ("cora", 5, 0.9), ("b", 1, 0.1),
        )
    ]  # fmt: skip
    found.append({"graph": "cora", "settings": {"margin": 9}, "failed": "nan"})
    ranked = search_baselines.ranking(found)
    assert [(graph, runs, settings["margin"]) for graph, _, runs, settings in ranked] == [
        ("b", 1, 1),
        ("cora", 2, 5),
        ("cora", 2, 1),
    ]
    assert [mean for _, mean, *_ in ranked] == pytest.approx([0.1, 0.9, 0.7])
