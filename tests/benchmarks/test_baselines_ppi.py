import numpy as np
import pytest

from benchmarks import baselines_ppi, rows
from graphcl.errors import ParameterError, TrainingError
from tests.conftest import random_collection

QUICK = [
    "--probe-steps", "20", "--device", "cpu", "--set",
    "graphsage-mean.epochs=1", "graphsage-mean.dim=4", "graphsage-mean.samples_1=2",
    "gaan.epochs=1", "gaan.dim=8",
]  # fmt: skip
SCORES = {"micro_f1", "macro_f1", "val_micro_f1", "accuracy"}
COST = {"seconds", "train_seconds", "peak_memory_bytes"}


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.setattr(baselines_ppi, "load_dataset", lambda name: random_collection())
    out = tmp_path / "rows.jsonl"

    def run(*arguments):
        baselines_ppi.main(["--out", str(out), *arguments, *QUICK])
        return rows.read(out) if out.exists() else []

    return run


def test_rows_come_seed_by_seed_and_are_not_repeated(command, capsys):
    methods = ("--methods", "graphsage-mean", "gaan")
    found = command(*methods, "--runs", "1")
    assert [row["method"] for row in found] == ["graphsage-mean", "gaan"]
    more = command(*methods, "--runs", "2")
    assert more[:2] == found
    assert [(row["method"], row["seed"]) for row in more[2:]] == [
        ("graphsage-mean", 1),
        ("gaan", 1),
    ]
    for row in more:
        assert row.keys() >= SCORES | COST | {"note", "commit", "device", "versions", "tf32"}
        assert 0 <= row["micro_f1"] <= 1
    unsupervised, supervised = more[:2]
    assert unsupervised["steps"] == 20
    assert unsupervised["settings"]["samples_1"] == 2
    assert "steps" not in supervised  # no probe
    assert "micro-F1" in capsys.readouterr().out


def test_what_no_seed_changes_runs_once(command):
    (row,) = command("--methods", "propagation", "--runs", "3")
    assert row["runs_identical"]
    assert row["seed"] == 0


def test_no_run_starts_beyond_the_budget(command, capsys):
    assert command("--methods", "gaan", "--runs", "3", "--budget", "-1") == []
    assert "3 runs did not fit" in capsys.readouterr().out


def test_a_failed_run_leaves_a_row(command, monkeypatch):
    def fail(*_arguments, **_keywords):
        raise TrainingError("the loss is not finite")

    monkeypatch.setattr("graphcl.research.systems.gaan.Gaan.fit_predict", fail)
    (row,) = command("--methods", "gaan", "--runs", "1")
    assert row["failed"] == "the loss is not finite"
    assert "micro_f1" not in row


def test_supervised_scores_are_those_of_the_definition():
    collection = random_collection()
    random = np.random.default_rng(0)
    predicted = random.integers(0, 2, collection.y.shape)
    found = baselines_ppi.scores(predicted, collection)
    test = collection.split_nodes[2]
    truth, given = collection.y[-test:], predicted[-test:]
    hits = (truth * given).sum()
    assert found["micro_f1"] == pytest.approx(2 * hits / (truth.sum() + given.sum()))
    assert found["accuracy"] == pytest.approx((truth == given).mean())


def test_a_setting_names_its_system():
    assert baselines_ppi.settings_of(["gaan.epochs=3"]) == {"gaan": {"epochs": 3}}
    with pytest.raises(ParameterError, match="write METHOD"):
        baselines_ppi.settings_of(["epochs=3"])
