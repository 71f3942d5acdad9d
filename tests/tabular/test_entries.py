import numpy as np
import pyarrow
import pyarrow.parquet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphcl.graphs.graph import Graph
from graphcl.tabular.build import load_tables, read_tables
from graphcl.tabular.options import TableOptions
from tests.tabular.conftest import STRUCTURAL, write


def test_merged_rows_self_loops_and_isolated_nodes_are_counted():
    write("e.csv", "source,target\na,b\na,b\nb,a\nc,c\nd,e\n")
    write("n.csv", "id,f\na,1\nb,2\nc,3\nd,4\n")
    options = TableOptions(nodes="n.csv", unknown_edges="add")
    graph, report = load_tables("e.csv", options)
    counts = report.counts
    assert (counts.rows, counts.edges, counts.self_loops) == (5, 2, 1)
    assert (counts.repeated, counts.both_directions, counts.dangling) == (1, 1, 1)
    assert report.added_nodes == 1
    assert report.first[0] == "warning: 1 of 5 nodes has no edge"
    assert graph.node_ids.tolist() == ["a", "b", "c", "d", "e"]
    assert graph.x[:, 0].tolist() == [1, 2, 3, 4, 0]
    assert graph.self_loops_removed == 1


def test_weights_of_one_edge_are_added():
    rows = [("a", "b", 1), ("a", "b", 2), ("b", "c", 5), ("c", "b", 4), ("c", "c", 9)]
    write("e.csv", "s,t,w\n" + "".join(f"{s},{t},{w}\n" for s, t, w in rows))
    graph = read_tables("e.csv", weight="w", **STRUCTURAL)
    assert graph.edge_weight.tolist() == [3, 3, 9, 9]
    write("both.csv", "s,t,w\na,b,2\nb,a,2\nb,c,3\nc,b,3\n")
    assert read_tables("both.csv", weight="w", **STRUCTURAL).edge_weight.tolist() == [2, 2, 3, 3]


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from([0.5, 1.0, 2.0, 3.25])),
        min_size=1,
        max_size=60,
    ),
    st.booleans(),
)
def test_any_list_of_edges_gives_the_same_graph_as_from_edge_index(rows, as_text):
    sources, targets, weights = (list(column) for column in zip(*rows, strict=True))
    name = "node {:02d}".format if as_text else (lambda node: 3 * node - 4)
    table = {
        "source": [name(node) for node in sources],
        "target": [name(node) for node in targets],
        "w": weights,
    }
    pyarrow.parquet.write_table(pyarrow.table(table), "any.parquet")
    ids = [name(node) for node in range(10)]
    pyarrow.parquet.write_table(pyarrow.table({"id": ids, "f": list(range(10))}), "ids.parquet")
    ours = read_tables("any.parquet", "ids.parquet", weight="w")
    theirs = Graph.from_edge_index([sources, targets], np.ones((10, 1)), edge_weight=weights)
    assert np.array_equal(ours.indptr, theirs.indptr)
    assert np.array_equal(ours.indices, theirs.indices)
    assert np.array_equal(ours.edge_weight, theirs.edge_weight)
    assert ours.node_ids.tolist() == ids
    assert ours.self_loops_removed == theirs.self_loops_removed
