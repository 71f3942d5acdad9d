from pathlib import Path

from benchmarks import estimate

ROOT = Path(__file__).parents[2]


def test_the_estimate_in_scaling_md_is_that_of_the_rows():
    page = (ROOT / "docs/research/scaling.md").read_text()
    assert estimate.text() in page, "python -m benchmarks.estimate --write"
