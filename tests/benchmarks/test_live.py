"""The benchmark of new nodes on a small graph, and the page that is made from its rows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.live import PAGE, RESULTS, page
from graphcl.research.rows import read

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["node", "--nodes", "2000", "--calls", "5", "--recipes", "cora"], ["one new node"]),
        (["vectors", "--nodes", "3000"], ["vectors"] * 3),
        (["load", "--nodes", "2000", "--clients", "3", "--seconds", "1"], ["load", "killed"]),
    ],
)
def test_a_small_measurement(tmp_path, arguments, what):
    command = [sys.executable, "-m", "benchmarks.live", *arguments]
    command += ["--folder", str(tmp_path), "--out", str(tmp_path / "rows.jsonl")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["what"] for row in rows] == what
    for row in rows:
        assert row.get("p50_ms", 0) <= row.get("p99_ms", 0)
        assert row.get("largest_difference", 0) == 0
        assert row.get("errors", 0) == row.get("wrong", 0) == 0
    if what == ["load", "killed"]:
        assert (rows[0]["refused"], rows[1]["refused"] > 0) == (0, True)


def test_the_page_is_made_from_the_rows():
    assert page(PAGE.read_text(), read(RESULTS)) == PAGE.read_text()
