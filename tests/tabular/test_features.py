"""Wide tables, sparse where mostly zero, and columns of numbers against plain loops."""

import math

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from graphcl.graphs.graph import Graph
from graphcl.tabular import features
from graphcl.tabular.build import build_store, load_tables
from graphcl.tabular.cells import NO_VALUE
from graphcl.tabular.duck import Duck
from graphcl.tabular.features import InMemory, Numbers, fill_sparse
from graphcl.tabular.options import TableOptions
from graphcl.tabular.sources import open_source
from tests.conftest import FUZZ
from tests.tabular.conftest import write


@pytest.fixture
def wide(monkeypatch):
    """A table of 30 columns, mostly zeros, with a category in their midst."""
    monkeypatch.setattr(features, "SPARSE_WIDTH", 16)
    monkeypatch.setattr(features, "BLOCK_COLUMNS", 7)
    random = np.random.default_rng(0)
    x = np.where(random.random((50, 30)) < 0.04, random.integers(1, 9, (50, 30)), 0)
    columns = {"id": np.arange(50)} | {f"w{place}": x[:, place] for place in range(30)}
    listed = list(columns.items())
    listed.insert(12, ("town", [("a", "b", "c")[place % 3] for place in range(50)]))
    table = pyarrow.table(dict(listed))
    pyarrow.parquet.write_table(table, "n.parquet")
    pyarrow.csv.write_csv(table, "n.csv")
    write("e.csv", "source,target\n0,1\n1,2\n")
    town = np.eye(3)[np.arange(50) % 3]
    return np.concatenate([x[:, :11], town, x[:, 11:]], axis=1)


@pytest.mark.parametrize("nodes", ["n.parquet", "n.csv", "SELECT * FROM 'n.parquet'"])
def test_a_table_of_mostly_zeros_is_sparse(wide, nodes, tmp_path):
    graph, report = load_tables("e.csv", TableOptions(nodes=nodes))
    assert scipy.sparse.issparse(graph.x)
    assert graph.x.has_canonical_format
    assert np.array_equal(graph.x.toarray(), wide)
    assert report.preparation.sparse
    build_store("e.csv", TableOptions(nodes=nodes), out=tmp_path / "store")
    stored = Graph.open(tmp_path / "store", verify=True)
    assert np.array_equal(stored.x.toarray(), wide)


def test_a_filled_table_is_dense(wide):
    table = pyarrow.parquet.read_table("n.parquet")
    names = [name for name in table.column_names if name.startswith("w")]
    full = {name: np.arange(50) + 1.5 for name in names}
    pyarrow.parquet.write_table(pyarrow.table({"id": np.arange(50)} | full), "f.parquet")
    graph, _ = load_tables("e.csv", TableOptions(nodes="f.parquet"))
    assert isinstance(graph.x, np.ndarray)
    assert np.array_equal(graph.x, np.tile(np.arange(50)[:, None] + 1.5, 30))


def test_the_arrays_of_a_sparse_matrix_are_those_of_scipy(monkeypatch):
    monkeypatch.setattr(features, "_SORTED", 5)
    random = np.random.default_rng(1)
    dense = np.where(random.random((9, 8)) < 0.4, random.normal(size=(9, 8)), 0)
    dense = dense.astype(np.float32)

    def entries():
        for columns in ([4, 5, 6, 7], [0, 1, 2, 3]):  # out of order, as other columns come
            for first in (0, 4):
                block = np.zeros_like(dense)
                part = (slice(first, first + 4 if first == 0 else 9), columns)
                block[part] = dense[part]
                rows, found = np.nonzero(block)
                yield rows, found, block[rows, found]

    into = InMemory()
    fill_sparse(into, entries, 9)
    expected = scipy.sparse.csr_array(dense)
    for name in ("indptr", "indices", "data"):
        assert np.array_equal(into.arrays[f"x_{name}"], getattr(expected, name)), name


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
        patch.setattr(features, "TEXT_COLUMNS", data.draw(st.integers(1, 6)))
        patch.setattr(features, "_LEAST_ROWS", data.draw(st.integers(1, 6)))
        patch.setattr(features, "BLOCK_VALUES", 1)
        source = open_source(duck, "n.csv", role="nodes", options=TableOptions())
        numbers = Numbers(duck, source, names, duck.folder / "n", training=training)
        facts, filling = numbers.facts, np.arange(1.0, 1 + len(numbers.facts.total))
        dense = np.full((rows, len(filling)), np.nan)
        for first, column, block in numbers.blocks(filling):
            dense[first : first + len(block), column : column + block.shape[1]] = block
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
