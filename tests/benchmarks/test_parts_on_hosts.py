"""The numbers in docs/research/scaling.md are those of the rows; the script runs on two hosts."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.namespaces import why_not
from benchmarks.parts_on_hosts import host_table, main
from benchmarks.rows import read

ROOT = Path(__file__).parents[2]
WHY = why_not()


def test_the_page_has_the_numbers_of_the_rows():
    page = (ROOT / "docs/research/scaling.md").read_text()
    rows = list(read(ROOT / "benchmarks/results/parts_on_hosts.jsonl"))
    assert "\n".join(host_table(rows)) in page, "print it with --table"


@pytest.mark.skipif(bool(WHY), reason=f"hosts cannot be made here: {WHY}")
def test_two_hosts_embed_two_parts(tmp_path, monkeypatch, forked):
    words = ["parts_on_hosts", "--nodes", "2000", "--parts", "2"]
    words += ["--orders", "hash", "--rates", "1gbit", "--folder", str(tmp_path), "--out"]
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'src'}")  # of the hosts
    monkeypatch.chdir(ROOT)
    rows = tmp_path / "rows.jsonl"
    for more in (["--memory", "1G"], ["--phases"]):
        monkeypatch.setattr(sys, "argv", [*words, str(rows), *more])
        main()
    embedded, timed = (json.loads(line) for line in rows.read_text().splitlines())
    assert (embedded["failed"], embedded["code"]) == ([], [0, 0])
    assert embedded["memory_limit"] == 2**30 >= max(embedded["group_bytes"])
    shards = [np.load(tmp_path / f"shards/part-{number:05d}.npy") for number in range(2)]
    assert sum(map(len, shards)) == 2000
    # Each row of the boundary travels before each layer, and little else: 64 features, then 32
    # columns of the first layer and 16 that are smoothed.
    payload = embedded["boundary_rows"] * (64 + 32 + 16) * 4
    assert payload < sum(embedded["sent_bytes"]) < 1.2 * payload
    assert timed["case"] == "phases"
    for number in range(2):
        spent = timed["compute_seconds"][number] + timed["exchange_seconds"][number]
        assert 0 < spent <= timed["total_seconds"][number]
