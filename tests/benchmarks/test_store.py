import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_small_store_goes_through_every_stage(tmp_path):
    command = [sys.executable, "-m", "benchmarks.store", "--nodes", "30000", "--limit-gb", "3"]
    command += ["--folder", str(tmp_path), "--out", str(tmp_path / "rows.jsonl")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["what"] for row in rows] == ["build", "open", "train", "embed"]
    assert not [row["failed"] for row in rows if "failed" in row]
    assert rows[2]["steps"] == 200
    assert rows[3]["embedded"] == 3000
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
