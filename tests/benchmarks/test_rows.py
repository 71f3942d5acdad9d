"""What is made from rows stands between its marks on a page, and nothing else of it changes."""

import pytest

from benchmarks.rows import placed


def test_what_stands_between_the_marks_is_replaced():
    page = "a <end> <begin>\nold\n<end> b <begin>\nkept\n<end>"
    assert placed(page, "<begin>\n", "new\n", "<end>") == (
        "a <end> <begin>\nnew\n<end> b <begin>\nkept\n<end>"
    )


@pytest.mark.parametrize(("page", "lacks"), [("a <end>", "<begin>"), ("<begin>\na", "<end>")])
def test_a_page_without_a_mark_is_no_page(page, lacks):
    with pytest.raises(ValueError, match=lacks):
        placed(page, "<begin>\n", "new", "<end>")
