import numpy as np
import pyarrow
import pyarrow.parquet

from graphcl.graphs.graph import Graph
from graphcl.tabular.build import read_tables
from tests.tabular.conftest import STRUCTURAL


def test_batches_that_cut_an_entry_in_two(monkeypatch):
    monkeypatch.setattr("graphcl.tabular.duck.BATCH_ROWS", 2048)
    random = np.random.default_rng(0)
    edges = random.integers(0, 40, (2, 30_000))
    weights = random.integers(1, 5, 30_000).astype(float)
    table = {"source": edges[0], "target": edges[1], "w": weights}
    pyarrow.parquet.write_table(pyarrow.table(table), "many.parquet")
    ours = read_tables("many.parquet", weight="w", **STRUCTURAL)
    theirs = Graph.from_edge_index(edges, np.ones((40, 1)), edge_weight=weights)
    assert np.array_equal(ours.indices, theirs.indices)
    assert np.array_equal(ours.edge_weight, theirs.edge_weight)
