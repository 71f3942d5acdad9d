"""The benchmark of updates on small graphs, and the page that is made from its rows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.update import PAGE, RESULTS
from benchmarks.update_page import page
from graphcl.research.rows import read

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("arguments", "what", "count"),
    [
        (["speed", "--nodes", "5000", "--anywhere", "0", "1"], "speed", 4),
        (["aligned", "--graphs", "wisconsin", "--seeds", "1", "--more", "0.02"], "aligned", 1),
    ],
)
def test_a_small_measurement(tmp_path, arguments, what, count, monkeypatch):
    if what == "aligned" and not _has_gallery():
        pytest.skip("GRAPHCL_DATA has no gallery")
    command = [sys.executable, "-m", "benchmarks.update", *arguments]
    command += ["--folder", str(tmp_path), "--out", str(tmp_path / "rows.jsonl")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["what"] for row in rows] == [what] * count
    for row in rows:
        assert row.get("largest_difference", 0) == 0
    if what == "speed":
        assert [row["second"] for row in rows] == [False, True, False, True]
        assert rows[0]["embedded"] < rows[2]["embedded"] <= 5050


def _has_gallery():
    from graphcl.datasets import data_folders, gallery_files

    return "wisconsin" in gallery_files(data_folders())


def test_the_page_is_made_from_the_rows():
    assert page(PAGE.read_text(), read(RESULTS)) == PAGE.read_text()
