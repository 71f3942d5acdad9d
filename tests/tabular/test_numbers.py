"""Columns of numbers against plain loops, in blocks of every size."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcl.tabular import node_table
from graphcl.tabular.cells import NO_VALUE
from graphcl.tabular.duck import Duck
from graphcl.tabular.node_table import NodeTable
from graphcl.tabular.numbers import Numbers
from graphcl.tabular.sources import open_source
from tests.conftest import FUZZ
from tests.tabular.conftest import write

CELL = st.one_of(
    st.sampled_from(["0", "0", "0", "1", "-2.5", "", "NA", " ? ", "True", "false", "x", "1e39"]),
    st.floats(-1e6, 1e6).map(repr),
)


def as_number(cell):
    """What a cell of a CSV says: a number, NaN for nothing, None for anything else."""
    word = cell.strip(" ").lower()
    if word in NO_VALUE:
        return math.nan
    if word in ("true", "false"):
        return float(word == "true")
    try:
        return float(word)
    except ValueError:
        return None


@FUZZ
@given(st.data(), st.integers(1, 5), st.integers(1, 12))
def test_facts_and_values_are_those_of_plain_loops(data, width, rows):
    cells = [[data.draw(CELL) for _ in range(width)] for _ in range(rows)]
    training = np.array(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    names = [f"c{place}" for place in range(width)]
    lines = [",".join(["id", *names]), *(f"r{n}," + ",".join(row) for n, row in enumerate(cells))]
    write("n.csv", "\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch, Duck() as duck:
        patch.setattr(node_table, "TEXT_COLUMNS", data.draw(st.integers(1, 6)))
        patch.setattr(node_table, "_LEAST_ROWS", data.draw(st.integers(1, 6)))
        patch.setattr(node_table, "BLOCK_VALUES", 1)
        source = open_source(duck, "n.csv", role="nodes", names=frozenset())
        numbers = Numbers(NodeTable(duck, source), names, duck.folder / "n", training=training)
        facts, filling = numbers.facts, np.arange(1.0, 1 + len(numbers.facts.total))
        dense = np.full((rows, len(filling)), np.nan)
        listed = np.zeros((rows, len(filling)))
        for piece in numbers.pieces():
            columns = slice(piece.column, piece.column + piece.columns)
            dense[piece.first : piece.first + piece.rows, columns] = piece.dense(filling)
            row, column, values = piece.entries(filling)
            assert (np.diff(row) >= 0).all()
            listed[row, column] = values
    assert facts.rows == rows
    for place, name in enumerate(names):
        read = [as_number(row[place]) for row in cells]
        at = numbers.place(name)
        assert facts.wrong[at] == sum(one is None for one in read)
        assert facts.absent[at] == sum(one is not None and math.isnan(one) for one in read)
        holes = [n for n, one in enumerate(read) if one is not None and math.isnan(one)]
        assert facts.first_absent[at] == (holes[0] if holes else -1)
        large = [n for n, one in enumerate(read) if one is not None and abs(one) > 3.5e38]
        assert facts.unfit[at] == (large[0] if large else -1)
        there = [one for one in read if one is not None and not math.isnan(one)]
        assert facts.filled[at] == sum(one != 0 for one in there)
        seen = [
            one
            for one, used in zip(read, training, strict=True)
            if used and one is not None and not math.isnan(one)
        ]
        assert facts.known[at] == len(seen)
        if seen:
            assert math.isclose(facts.mean[at], math.fsum(seen) / len(seen), abs_tol=1e-9)
            assert (facts.low[at], facts.high[at]) == (min(seen), max(seen))
        with np.errstate(over="ignore"):
            expected = [
                np.float32(filling[at] if one is None or math.isnan(one) else one) for one in read
            ]
        assert np.array_equal(dense[:, at], expected)
        assert np.array_equal(listed[:, at], expected)
