"""Placing nodes into parts, against the same rule written as plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcl.kernels.placing import (
    NOWHERE,
    number_distinct,
    place_by_hash,
    place_by_neighbours,
)
from tests.conftest import FUZZ, random_graph


def by_loops(graph, parts, capacity, passes):
    placed, sizes = [NOWHERE] * graph.num_nodes, [0] * parts
    for number in range(passes):
        for node in range(graph.num_nodes):
            before = placed[node]
            if before != NOWHERE:
                sizes[before] -= 1
            around = [placed[v] for v in graph.indices[graph.indptr[node] : graph.indptr[node + 1]]]
            best, most = before, around.count(before) if before != NOWHERE else 0
            for part in around:
                if part == NOWHERE or sizes[part] >= capacity:
                    continue
                score = around.count(part) * (1 if number else 1 - sizes[part] / capacity)
                if score > most:
                    best, most = part, score
            best = sizes.index(min(sizes)) if best == NOWHERE else best
            placed[node] = best
            sizes[best] += 1
    return placed, sizes


@pytest.mark.parametrize("passes", [1, 4])
def test_neighbours_are_placed_by_the_rule(passes):
    graph, parts, capacity = random_graph(num_nodes=70), 3, 26
    placed, sizes = np.full(70, NOWHERE, np.int32), np.zeros(parts, np.int64)
    for number in range(passes):
        for start, stop in ((0, 31), (31, 70)):  # blocks change nothing
            pointers = graph.indptr[start : stop + 1]
            entries = graph.indices[pointers[0] : pointers[-1]]
            place_by_neighbours(
                pointers - pointers[0],
                entries,
                placed,
                sizes,
                first=start,
                capacity=capacity,
                again=number > 0,
            )
    expected, counts = by_loops(graph, parts, capacity, passes)
    assert placed.tolist() == expected
    assert sizes.tolist() == counts == np.bincount(placed, minlength=parts).tolist()
    assert sizes.max() <= capacity


def test_a_hash_is_even_and_the_same_every_time():
    placed, again = np.empty((2, 20_000), np.int32)
    placed, again = placed.astype(np.int32), again.astype(np.int32)
    place_by_hash(placed, 7)
    place_by_hash(again, 7)
    np.testing.assert_array_equal(placed, again)
    counts = np.bincount(placed, minlength=7)
    mean, deviation = 20_000 / 7, np.sqrt(20_000 / 7 * 6 / 7)
    assert (np.abs(counts - mean) < 5 * deviation).all()
    neighbours = (placed[1:] == placed[:-1]).mean()  # nothing follows from the number before
    assert abs(neighbours - 1 / 7) < 5 * np.sqrt(6 / 49 / 20_000)


NUMBERS = st.one_of(st.integers(0, 20), st.integers(0, 2**62))


@FUZZ
@given(st.lists(NUMBERS, max_size=200))
def test_values_are_numbered_as_they_come(values):
    expected = list(dict.fromkeys(values))
    found, places = number_distinct(np.array(values, dtype=np.int64))
    assert found.tolist() == expected
    assert places.tolist() == [expected.index(value) for value in values]
