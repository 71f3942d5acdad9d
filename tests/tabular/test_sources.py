"""Tables in, graphs out: every source, every kind of id, every count."""

import gzip
import sqlite3
from pathlib import Path

import duckdb
import networkx
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphcl.graphs.graph import Graph
from graphcl.graphs.structural import NAMES
from graphcl.tabular.build import build_store, load_tables, read_tables
from graphcl.tabular.options import TableOptions

STRUCTURAL = {"features": "structural"}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, text):
    Path(name).write_text(text, encoding="utf-8")


def edges_of(graph):
    """The undirected edges as pairs of ids."""
    names = range(graph.num_nodes) if graph.node_ids is None else graph.node_ids.tolist()
    return {tuple(sorted((names[u], names[v]))) for u, v in graph.edge_index().T.tolist()}


TRIANGLE = {("a", "b"), ("b", "c"), ("a", "c")}
PAIRS = [("a", "b"), ("b", "c"), ("c", "a")]


def as_csv(name="e.csv", delimiter=","):
    write(name, "\n".join(delimiter.join(pair) for pair in [("source", "target"), *PAIRS]) + "\n")
    return name


def as_gzip():
    with gzip.open("e.csv.gz", "wt") as file:
        file.write("source,target\n" + "\n".join(",".join(pair) for pair in PAIRS))
    return "e.csv.gz"


def as_parquet():
    sources, targets = zip(*PAIRS, strict=True)
    pyarrow.parquet.write_table(pyarrow.table({"source": sources, "target": targets}), "e.parquet")
    return "e.parquet"


def as_query():
    as_parquet()
    return "SELECT target AS x, source AS y FROM 'e.parquet'"


def as_duckdb():
    with duckdb.connect("e.duckdb") as connection:
        connection.execute("CREATE TABLE pairs (u VARCHAR, v VARCHAR)")
        connection.executemany("INSERT INTO pairs VALUES (?, ?)", PAIRS)
    return "e.duckdb:pairs"


def as_sqlite():
    connection = sqlite3.connect("e.sqlite")
    connection.execute("CREATE TABLE pairs (u TEXT, v TEXT)")
    connection.execute("CREATE TABLE other (z TEXT)")
    connection.executemany("INSERT INTO pairs VALUES (?, ?)", PAIRS)
    connection.commit()
    connection.close()
    return "e.sqlite:pairs"


def as_networkx(writer, name):
    graph = networkx.Graph()
    graph.add_edges_from(PAIRS)
    writer(graph, name)
    return name


def as_words():
    write("e.txt", "# a comment\n% another\na b\nb\tc\n  c   a  \n")
    return "e.txt"


SOURCES = {
    "csv": as_csv,
    "semicolons": lambda: as_csv("s.csv", ";"),
    "tsv": lambda: as_csv("e.tsv", "\t"),
    "gzip": as_gzip,
    "parquet": as_parquet,
    "query": as_query,
    "duckdb": as_duckdb,
    "sqlite": as_sqlite,
    "graphml": lambda: as_networkx(networkx.write_graphml, "e.graphml"),
    "gml": lambda: as_networkx(networkx.write_gml, "e.gml"),
    "edgelist": lambda: as_networkx(networkx.write_edgelist, "e.edgelist"),
    "words": as_words,
}


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_same_graph(source):
    graph = read_tables(SOURCES[source](), **STRUCTURAL)
    assert edges_of(graph) == TRIANGLE
    assert graph.x.shape == (3, len(NAMES))


def test_a_matrix_of_scipy_with_its_isolated_nodes_and_weights():
    matrix = scipy.sparse.coo_array(([2.0, 3.0], ([0, 1], [1, 2])), shape=(5, 5))
    scipy.sparse.save_npz("a.npz", matrix)
    graph, report = load_tables("a.npz", TableOptions(weight="value", features="structural"))
    assert (graph.num_nodes, report.isolated_nodes) == (5, 2)
    assert graph.edge_weight.tolist() == [2, 2, 3, 3]
    assert graph.node_ids is None


def test_attributes_of_a_graph_file_are_columns():
    there = networkx.path_graph(3)
    networkx.set_node_attributes(there, {0: 1.5, 1: 2.5, 2: 3.5}, "size")
    networkx.set_node_attributes(there, {0: "x", 1: "y", 2: "x"}, "kind")
    networkx.write_graphml(there, "g.graphml")
    graph = read_tables("g.graphml", label="kind")
    assert graph.x[:, 0].tolist() == [1.5, 2.5, 3.5]
    assert graph.y.tolist() == [0, 1, 0]
    assert graph.node_ids.tolist() == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (["5", "9", "7"], [5, 7, 9]),
        (["0", "1", "2"], None),
        (["007", "7", "08"], ["007", "08", "7"]),
        (["9223372036854775807", "0", "-3"], [-3, 0, 2**63 - 1]),
        (["9223372036854775808", "1", "2"], ["1", "2", "9223372036854775808"]),
        (["1e3", "1", "2"], ["1", "1e3", "2"]),
        ([" a", "a", "Ωß 漢"], [" a", "a", "Ωß 漢"]),
        (['q"q', "x,y", "NA"], ["NA", 'q"q', "x,y"]),
    ],
)
def test_ids_of_text_files_stay_as_they_are_written(written, expected):
    def cell(text):
        return '"' + text.replace('"', '""') + '"'

    a, b, c = map(cell, written)
    write("e.csv", f"source,target\n{a},{b}\n{b},{c}\n")
    graph = read_tables("e.csv", **STRUCTURAL)
    assert (graph.node_ids if expected is None else graph.node_ids.tolist()) == expected


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        ([2**63 + 5, 1, 2], pyarrow.uint64()),
        ([7, 5, 6], pyarrow.int16()),
        (["7", "007", "x y"], pyarrow.string()),
    ],
)
def test_ids_of_typed_files_keep_their_type_and_the_tables_order(ids, kind):
    column = pyarrow.array(ids, type=kind)
    pyarrow.parquet.write_table(pyarrow.table({"id": column, "f": [1.0, 2.0, 3.0]}), "n.parquet")
    ends = pyarrow.table({"source": column.take([0, 1]), "target": column.take([1, 2])})
    pyarrow.parquet.write_table(ends, "e.parquet")
    graph = read_tables("e.parquet", "n.parquet")
    assert graph.node_ids.tolist() == ids
    assert graph.x[:, 0].tolist() == [1, 2, 3]


def test_ids_that_are_numbers_here_and_text_there_meet():
    pyarrow.parquet.write_table(pyarrow.table({"id": ["1", "2"], "f": [1, 2]}), "n.parquet")
    write("e.csv", "source,target\n1,2\n")
    graph = read_tables("e.csv", "n.parquet")
    assert graph.node_ids.tolist() == ["1", "2"]
    assert graph.num_edges == 1


def test_headers_are_guessed_or_given():
    write("plain.csv", "1,2\n2,3\n")
    assert edges_of(read_tables("plain.csv", **STRUCTURAL)) == {(1, 2), (2, 3)}
    write("names.csv", "ann,bob\nbob,eve\n")
    assert read_tables("names.csv", **STRUCTURAL).num_edges == 1
    assert read_tables("names.csv", header=False, **STRUCTURAL).num_edges == 2
    write("bom.csv", "\ufefffrom,to\nx,y\n")
    assert edges_of(read_tables("bom.csv", **STRUCTURAL)) == {("x", "y")}


def test_a_name_with_a_star_is_no_pattern():
    write("e*.csv", "source,target\n1,2\n")
    write("e2.csv", "source,target\n3,4\n")
    assert read_tables("e*.csv", **STRUCTURAL).num_nodes == 2


def test_spaces_around_ids_are_kept_and_said():
    write("e.csv", "source, target\n1, 2\n2, 3\n")
    graph, report = load_tables("e.csv", TableOptions(features="structural"))
    assert graph.node_ids.tolist() == [" 2", " 3", "1", "2"]
    assert report.columns == {"source": "source", "target": " target"}
    assert "2 ids begin or end with a space, which is kept" in "\n".join(report.notes)


def test_columns_are_found_by_name_whatever_their_place():
    write("e.csv", "weight,TO,when,From\n2,b,x,a\n")
    graph, report = load_tables("e.csv", TableOptions(features="structural"))
    assert report.columns == {"source": "From", "target": "TO"}
    assert "--weight weight would use it" in "\n".join(report.notes)
    graph, report = load_tables(
        "e.csv", TableOptions(features="structural", weight="weight", source_column="when")
    )
    assert report.columns["source"] == "when"
    assert graph.edge_weight.tolist() == [2, 2]


def test_what_is_merged_left_out_and_alone_is_counted():
    write("e.csv", "source,target\na,b\na,b\nb,a\nc,c\nd,e\n")
    write("n.csv", "id,f\na,1\nb,2\nc,3\nd,4\n")
    options = TableOptions(nodes="n.csv", add_missing_nodes=True)
    graph, report = load_tables("e.csv", options)
    counts = report.counts
    assert (counts.rows, counts.edges, counts.self_loops) == (5, 2, 1)
    assert (counts.repeated, counts.both_directions, counts.dangling) == (1, 1, 1)
    assert (report.added_nodes, report.isolated_nodes) == (1, 1)
    assert graph.node_ids.tolist() == ["a", "b", "c", "d", "e"]
    assert graph.x[:, 0].tolist() == [1, 2, 3, 4, 0]
    assert graph.self_loops_removed == 1


def test_numbers_texts_and_missing_values():
    write("e.csv", "source,target\n1,2\n")
    write("n.csv", "id,a,flag,colour,b\n1,0.5,true,red,\n2,NA,FALSE,blue,3\n3,1.5,false,red,5\n")
    graph, report = load_tables(
        "e.csv", TableOptions(nodes="n.csv", one_hot=("colour",), missing="mean")
    )
    assert report.column_features == ["a", "flag", "colour=blue", "colour=red", "b"]
    expected = [[0.5, 1, 0, 1, 4], [1, 0, 1, 0, 3], [1.5, 0, 0, 1, 5]]
    assert graph.x.tolist() == expected
    assert report.filled_values == 2
    zeros, _ = load_tables("e.csv", TableOptions(nodes="n.csv", ignore=("colour",), missing="zero"))
    assert zeros.x.tolist() == [[0.5, 1, 0], [0, 0, 3], [1.5, 0, 5]]


def test_features_like_those_of_training():
    write("e.csv", "source,target\n1,2\n")
    write("n.csv", "id,extra,colour,a\n1,x,green,5\n2,y,red,6\n")
    options = TableOptions(
        nodes="n.csv", one_hot=("colour",), like=("a", "colour=blue", "colour=red")
    )
    graph, report = load_tables("e.csv", options)
    assert graph.x.tolist() == [[5, 0, 0], [6, 0, 1]]
    assert any("new to the model" in line for line in report.notes)


@pytest.mark.parametrize(
    ("column", "y", "classes"),
    [
        (["b", "a", "", "b"], [1, 0, -1, 1], ("a", "b")),
        (["0", "1", "-1", "1"], [0, 1, -1, 1], ()),
        (["10", "9", "", "2000"], [1, 0, -1, 2], ("9", "10", "2000")),
        (["0.5", "0.25", "", "0.5"], [1, 0, -1, 1], ("0.25", "0.5")),
    ],
)
def test_labels(column, y, classes):
    write("e.csv", "source,target\n1,2\n")
    rows = "".join(f"{row},{row},{value}\n" for row, value in enumerate(column))
    write("n.csv", f"id,f,topic\n{rows}")
    graph, report = load_tables("e.csv", TableOptions(nodes="n.csv", label="topic"))
    assert graph.y.tolist() == y
    assert report.class_names == classes


def test_splits():
    write("e.csv", "source,target\n1,2\n")
    write("n.csv", "id,f,part\n0,1,Train\n1,1,validation\n2,1,test\n3,1,\n")
    graph = read_tables("e.csv", "n.csv", split="part")
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    assert [np.flatnonzero(mask).tolist() for mask in masks] == [[0], [1], [2]]


def test_features_as_matrices():
    write("e.csv", "source,target\n0,1\n1,2\n")
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save("x.npy", x)
    assert np.array_equal(read_tables("e.csv", "x.npy").x, x)
    scipy.sparse.save_npz("x.npz", scipy.sparse.csr_array(x))
    sparse = read_tables("e.csv", "x.npz").x
    assert np.array_equal(sparse.toarray(), x)
    write("n.csv", "source,target\nu,v\nv,w\n")
    np.savez("named.npz", x=x, node_ids=["w", "v", "u"], y=[0, 1, 0], train_mask=[0])
    graph = read_tables("n.csv", "named.npz")
    assert graph.node_ids.tolist() == ["w", "v", "u"]
    assert graph.y.tolist() == [0, 1, 0]
    assert np.flatnonzero(graph.train_mask).tolist() == [0]
    assert edges_of(graph) == {("u", "v"), ("v", "w")}
    both = read_tables("e.csv", "x.npz", features="both")
    assert both.x.shape == (3, 2 + len(NAMES))


def test_weights_come_together_as_in_memory():
    rows = [("a", "b", 1), ("a", "b", 2), ("b", "c", 5), ("c", "b", 4), ("c", "c", 9)]
    write("e.csv", "s,t,w\n" + "".join(f"{s},{t},{w}\n" for s, t, w in rows))
    graph = read_tables("e.csv", weight="w", **STRUCTURAL)
    assert graph.edge_weight.tolist() == [3, 3, 9, 9]
    write("both.csv", "s,t,w\na,b,2\nb,a,2\nb,c,3\nc,b,3\n")
    assert read_tables("both.csv", weight="w", **STRUCTURAL).edge_weight.tolist() == [2, 2, 3, 3]


def test_a_store_is_the_graph(tmp_path):
    write("e.csv", "source,target,w\nä b,c,2\nc,d,1\nd,d,1\n")
    write("n.csv", "id,f,topic,part\nc,1,x,train\nä b,2,y,val\nd,3,x,test\n")
    options = TableOptions(nodes="n.csv", weight="w", label="topic", split="part")
    graph, _ = load_tables("e.csv", options)
    steps = []
    build_store("e.csv", options, out=tmp_path / "store", on_step=steps.append)
    stored = Graph.open(tmp_path / "store", verify=True)
    for name in ("indptr", "indices", "x", "y", "train_mask", "test_mask", "edge_weight"):
        assert np.array_equal(getattr(stored, name), getattr(graph, name)), name
    assert stored.node_ids.tolist() == graph.node_ids.tolist() == ["c", "ä b", "d"]
    assert (stored.self_loops_removed, stored.name) == (1, "e")
    assert steps[0] == "reading the edges"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.csv", "n.csv", "store"]


def test_sparse_features_go_to_a_store_sparse(tmp_path):
    write("e.csv", "source,target\n0,1\n1,2\n")
    scipy.sparse.save_npz("x.npz", scipy.sparse.csr_array(np.eye(3, 40, dtype=np.float32)))
    build_store("e.csv", TableOptions(nodes="x.npz"), out=tmp_path / "store")
    stored = Graph.open(tmp_path / "store", verify=True)
    assert np.array_equal(stored.x.toarray(), np.eye(3, 40))


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
def test_any_list_of_edges_is_what_from_edge_index_makes_of_it(rows, as_text):
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
