"""Wide tables: sparse where mostly zero, the same values as dense, whatever the blocks."""

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.sparse

from graphcl.graphs.graph import Graph
from graphcl.tabular import features, node_table
from graphcl.tabular.build import build_store, load_tables
from graphcl.tabular.features import fill_sparse
from graphcl.tabular.options import TableOptions
from graphcl.tabular.tables import InMemory
from tests.tabular.conftest import write


@pytest.fixture
def wide(monkeypatch):
    """A table of 30 columns, mostly zeros, with a category in their midst."""
    monkeypatch.setattr(features, "SPARSE_WIDTH", 16)
    monkeypatch.setattr(node_table, "BLOCK_COLUMNS", 7)
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
