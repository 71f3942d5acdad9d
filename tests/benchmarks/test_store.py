import json
import sys
from pathlib import Path

import pytest

from benchmarks import store

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("forked")
def test_a_small_store_goes_through_every_stage(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # from which each stage starts its own process
    options = ["--folder", str(tmp_path), "--out", str(tmp_path / "rows.jsonl")]
    monkeypatch.setattr(sys, "argv", ["store", "--nodes", "3000", "--limit-gb", "3", *options])
    store.main()
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["what"] for row in rows] == ["build", "open", "train", "embed"]
    assert not [row["failed"] for row in rows if "failed" in row]
    assert rows[2]["steps"] == 200
    assert rows[3]["embedded"] == 300
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
