import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphcl.arrays import blocks, sized_blocks


def test_blocks_cover_all_rows_once():
    assert list(blocks(7, 3)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(blocks(0, 3)) == []


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 40), st.integers(0, 5))
def test_sized_blocks_cover_all_rows_once_and_hold_no_more_than_is_said(sizes, most, first):
    found = list(sized_blocks(np.array(sizes, np.int32), first, most))
    rows = [row for some in found for row in range(some.start, some.stop)]
    assert rows == list(range(first, first + len(sizes)))
    for some in found:
        held = [sizes[row - first] + 1 for row in range(some.start, some.stop)]
        assert sum(held) - max(held) <= most
