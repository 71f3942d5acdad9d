from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("path", sorted((ROOT / "src/graphcl").rglob("*.py")), ids=lambda p: p.name)
def test_files_fit_in_the_head(path):
    assert len(path.read_text().splitlines()) <= 400
