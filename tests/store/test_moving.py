"""Every order numbers each node once; blocks of rows cover all rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcl.store import partition
from graphcl.store.header import ORDERS
from graphcl.store.partition import SLACK, order_types, row_blocks
from tests.conftest import FUZZ, random_graph


@FUZZ
@given(st.integers(1, 9), st.integers(9, 60), st.sampled_from(ORDERS), st.integers(0, 3))
def test_every_node_has_one_number_and_no_part_is_empty(tmp_path, parts, nodes, order, seed):
    graph = random_graph(seed, num_nodes=nodes)
    (found,) = order_types([nodes], lambda: vars(graph.only_relation), parts, order, tmp_path)
    numbers = found.of_rows(slice(0, nodes))
    assert sorted(numbers.tolist()) == list(range(nodes))
    sizes = np.diff(found.starts)
    assert (len(sizes), sizes.sum(), found.starts[0]) == (parts, nodes, 0)
    assert sizes.min() >= 1
    owners = found.owners(numbers)
    for part in range(parts):  # within a part, nodes keep their order
        assert (np.diff(numbers[owners == part]) > 0).all()
    if order == "as-is":
        assert numbers.tolist() == list(range(nodes))
        assert sizes.max() - sizes.min() <= 1
    if order == "neighbours":
        assert sizes.max() <= max(nodes / parts * (1 + SLACK), -(-nodes // parts) + 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("entries", [1, 7, 1000])
def test_blocks_cover_all_rows_and_are_small(monkeypatch, entries):
    monkeypatch.setattr(partition, "BLOCK_BYTES", 8 * entries)
    indptr = random_graph(1).indptr
    blocks = list(row_blocks(indptr))
    assert [row for block in blocks for row in range(block.start, block.stop)] == list(range(60))
    for block in blocks:
        held = indptr[block.stop] - indptr[block.start]
        assert held <= entries or block.stop == block.start + 1
