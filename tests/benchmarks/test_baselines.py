import sys

import pytest

from benchmarks import baselines, rows
from tests.conftest import random_graph

METHODS = ["raw", "random-encoder"]


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setattr(baselines, "load_dataset", lambda _: random_graph())
    out = tmp_path / "rows.jsonl"

    def call(*options: str):
        fixed = ["--out", str(out), "--datasets", "random", "--device", "cpu", "--methods"]
        monkeypatch.setattr(sys, "argv", ["baselines", *fixed, *METHODS, *options])
        baselines.main()
        return rows.read(out) if out.exists() else []

    return call


def test_rows_are_written_once_and_go_on_where_they_stopped(run, capsys):
    assert run("--budget", "-1") == []
    assert "2 runs are left" in run_output(capsys, run, "--runs", "1", "--budget", "-1")
    first = run("--runs", "2")
    assert sorted(baselines.key_of(row) for row in first) == [
        ("random-encoder", "random", 0),
        ("random-encoder", "random", 1),
        ("raw", "random", 0),
    ]
    again = run("--runs", "3")
    assert again[:3] == first
    assert baselines.key_of(again[3]) == ("random-encoder", "random", 2)
    assert [row.get("runs_identical", False) for row in again] == [True, False, False, False]
    assert all({"accuracy", "settings", "commit", "versions"} <= row.keys() for row in again)
    assert "3 runs, 0 failed" in capsys.readouterr().out


def run_output(capsys, run, *options):
    capsys.readouterr()
    run(*options)
    return capsys.readouterr().out
