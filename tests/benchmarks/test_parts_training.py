"""The numbers in docs/research/scaling.md are those of the rows; the script runs on two hosts."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.namespaces import why_not
from benchmarks.parts_training import RESULTS, main, table
from benchmarks.rows import read

ROOT = Path(__file__).parents[2]
WHY = why_not()


def test_the_page_has_the_numbers_of_the_rows():
    rows = list(read(RESULTS))
    assert "\n".join(table(rows)) in (ROOT / "docs/research/scaling.md").read_text(), (
        "print it with --table"
    )


def test_hosts_of_a_third_of_the_store_train_as_one_process_does():
    rows = [row for row in read(RESULTS) if row["memory_limit"]]
    cases = {(row["order"], bool(row["cache_bytes"])) for row in rows}
    assert cases == {(order, cache) for order in ("neighbours", "hash") for cache in (False, True)}
    for row in rows:
        assert (row["nodes"], row["edges"], row["parts"]) == (10**7, 10**8, 4)
        assert row["memory_limit"] == row["store_bytes"] // 3 >= max(row["group_bytes"])
        assert (row["failed"], row["steps"]) == ([], 200)
        assert row["loss_difference"] <= 1e-5


@pytest.mark.skipif(bool(WHY), reason=f"hosts cannot be made here: {WHY}")
def test_two_hosts_train_two_parts(tmp_path, monkeypatch, forked):
    words = ["parts_training", "--nodes", "2000", "--parts", "2"]
    words += ["--orders", "hash", "--rates", "1gbit", "--memory", "1G", "--caches", "100000"]
    words += ["--steps", "4", "--dim", "16", "--batch-nodes", "64", "--folder", str(tmp_path)]
    rows = tmp_path / "rows.jsonl"
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'src'}")  # of the hosts
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(rows)])
    main()
    (row,) = (json.loads(line) for line in rows.read_text().splitlines())
    assert row["loss_difference"] <= 1e-5
    assert row["sent_bytes"] < row["wire_bytes"]  # losses and gradients travel, too
    assert row["sent_bytes"] <= row["all_sent_bytes"] <= 2 * row["sent_bytes"]
    assert 0 < row["cache_hits"] <= 1
    assert 0 < row["fill_bytes"] < row["all_sent_bytes"]
    assert len(table([row])) == 3
