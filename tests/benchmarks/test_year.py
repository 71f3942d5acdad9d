"""The page that shows a year of a service, and its rows."""

from benchmarks.year import PAGE, RESULTS, page
from graphcl.research.rows import read


def test_the_page_shows_the_rows():
    text = PAGE.read_text()
    assert page(text, read(RESULTS)) == text


def test_other_rows_make_another_page():
    found = read(RESULTS)
    assert "| wrong | 0 |" in PAGE.read_text()
    changed = [row | {"wrong": 7} if row["what"] == "year" else row for row in found]
    assert "| wrong | 7 |" in page(PAGE.read_text(), changed)
