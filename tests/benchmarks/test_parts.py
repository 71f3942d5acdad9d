"""The numbers in docs/research/scaling.md are those of the committed rows; the script runs."""

import json
import sys
from pathlib import Path

import numpy as np

from benchmarks import parts
from benchmarks.rows import read

ROOT = Path(__file__).parents[2]


def found(case, order=None):
    rows = read(ROOT / "benchmarks/results/parts.jsonl")
    return next(row for row in rows if row["case"] == case and row.get("order") == order)


def test_the_page_has_the_numbers_of_the_rows():
    page = (ROOT / "docs/research/scaling.md").read_text()
    for order in parts.ORDERS:
        divided, embedded = found("partition", order), found("embed, in parts", order)
        line = (
            f"| `{order}` | {100 * divided['cut_share']:.0f} % "
            f"| {divided['peak_bytes'] / 1e9:.2f} GB | {embedded['boundary_rows']:,} "
            f"| {embedded['peak_bytes'] / 1e9:.2f} GB | {embedded['difference']:.0e} |"
        )
        assert line in page
    assert f"in one process takes {found('embed, whole')['peak_bytes'] / 1e9:.2f} GB." in page


def test_memory_of_a_process_and_its_children_is_seen(monkeypatch):
    """A process that starts another, which holds 200 MB for a moment."""
    inner = "import time; held = bytearray(b'x') * 200_000_000; time.sleep(1.5)"
    outer = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}]); print('{{}}')"
    )
    monkeypatch.setattr(parts.subprocess, "Popen", _instead(parts.subprocess.Popen, outer))
    measured = parts.measure([])
    assert json.loads("{}") == measured["said"]
    assert 2e8 <= measured["peak_bytes"] < 4e8
    assert np.isfinite(measured["seconds"])


def _instead(popen, program):
    return lambda command, **options: popen([sys.executable, "-c", program], **options)
