from graphcl.arrays import blocks


def test_blocks_cover_all_rows_once():
    assert list(blocks(7, 3)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(blocks(0, 3)) == []
