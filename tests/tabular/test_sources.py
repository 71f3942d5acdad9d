"""Every kind of source gives the same graph; damaged ones give an error in one line."""

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import duckdb
import networkx
import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from graphcl.errors import GraphError
from graphcl.graphs.structural import FEATURE_NAMES
from graphcl.tabular.build import read_tables
from tests.conftest import FUZZ
from tests.tabular.conftest import STRUCTURAL, edges_of, graph_or_one_line, write

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
    assert graph.x.shape == (3, len(FEATURE_NAMES))


def test_a_star_in_a_name_is_not_a_pattern():
    write("e*.csv", "source,target\n1,2\n")
    write("e2.csv", "source,target\n3,4\n")
    assert read_tables("e*.csv", **STRUCTURAL).num_nodes == 2


def _valid(kind):
    """Returns the bytes of a small valid file, to be damaged."""
    graph = networkx.path_graph(4)
    networkx.set_node_attributes(graph, {node: float(node) for node in graph}, "f")
    name = f"valid.{kind}"
    if kind == "graphml":
        networkx.write_graphml(graph, name)
    elif kind == "gml":
        networkx.write_gml(graph, name)
    elif kind == "edgelist":
        networkx.write_edgelist(graph, name)
    elif kind == "npz":
        scipy.sparse.save_npz(name, scipy.sparse.csr_array(networkx.to_numpy_array(graph)))
    elif kind == "parquet":
        table = pyarrow.table({"source": [1, 2], "target": [2, 3]})
        pyarrow.parquet.write_table(table, name)
    elif kind == "sqlite":
        connection = sqlite3.connect(name)
        connection.execute("CREATE TABLE a (u INT, v INT)")
        connection.execute("INSERT INTO a VALUES (1, 2)")
        connection.commit()
        connection.close()
    data = Path(name).read_bytes()
    Path(name).unlink()
    return data


@pytest.mark.parametrize("kind", ["graphml", "gml", "edgelist", "npz", "parquet", "sqlite"])
def test_damaged_files(kind):
    whole = _valid(kind)

    @FUZZ
    @given(st.data())
    def damaged(data):
        content = bytearray(whole)
        for _ in range(data.draw(st.integers(0, 4))):
            place = data.draw(st.integers(0, len(content) - 1))
            content[place] = data.draw(st.integers(0, 255))
        cut = data.draw(st.one_of(st.none(), st.integers(0, len(content))))
        Path(f"any.{kind}").write_bytes(bytes(content[:cut]))
        graph_or_one_line(f"any.{kind}", features="structural")

    damaged()


@FUZZ
@given(st.text(max_size=40))
def test_any_text_as_a_query(text):
    graph_or_one_line(f"SELECT {text}", features="structural")
    graph_or_one_line("SELECT 1 AS a, 2 AS b", nodes=f"SELECT {text}", features="both")


def test_a_folder_and_a_pattern_of_parquet_files_are_one_table():
    Path("parts/year=2020").mkdir(parents=True)
    for place, name in enumerate(("b", "a", "year=2020/c")):
        table = pyarrow.table({"id": [2 * place, 2 * place + 1], "f": [1.0 * place, 0.5]})
        pyarrow.parquet.write_table(table, f"parts/{name}.parquet")
    Path("parts/_temporary.parquet").write_text("unfinished")
    write("e.csv", "source,target\n0,1\n2,3\n")
    graph = read_tables("e.csv", "parts")
    assert graph.node_ids.tolist() == [2, 3, 0, 1, 4, 5]  # files in the order of their names
    assert graph.x[:, 0].tolist() == [1, 0.5, 0, 0.5, 2, 0.5]
    assert read_tables("e.csv", "parts/*.parquet").node_ids.tolist() == [2, 3, 0, 1]
    with pytest.raises(GraphError, match="no such file"):
        read_tables("e.csv", "parts/z*.parquet")


def _frames():
    edges = {"source": ["a", "b", "c"], "target": ["b", "c", "d"]}
    nodes = {"id": ["a", "b", "c", "d"], "age": [1, 2, None, 4], "town": ["x", "y", "x", "y"]}
    return edges, nodes


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "duckdb", "dictionary", "index"])
def test_tables_in_memory_are_read_as_files_are(kind):
    edges, nodes = _frames()
    pandas.DataFrame(edges).to_csv("e.csv", index=False)
    pandas.DataFrame(nodes).to_csv("n.csv", index=False)
    make = {
        "pandas": lambda one: pandas.DataFrame(one).astype({list(one)[-1]: "category"}),
        "polars": polars.DataFrame,
        "arrow": pyarrow.table,
        "duckdb": lambda one: duckdb.from_arrow(pyarrow.table(one)),
        "dictionary": dict,
        "index": lambda one: pandas.DataFrame(one).set_index(next(iter(one))),
    }[kind]
    options = {"missing": "mean"}
    expected = read_tables("e.csv", "n.csv", **options)
    graph = read_tables(make(edges), make(nodes), **options)
    assert np.array_equal(graph.x, expected.x)
    assert graph.node_ids.tolist() == expected.node_ids.tolist() == list("abcd")
    assert np.array_equal(graph.indices, expected.indices)
    tagged = read_tables(make(edges), tags=make({"id": ["a", "d"], "tag": ["k", "l"]}))
    assert tagged.x.tolist() == [[1, 0], [0, 0], [0, 0], [0, 1]]


def test_an_index_without_a_name_has_the_ids_if_no_column_may():
    edges, nodes = _frames()
    frame = pandas.DataFrame(nodes)
    expected, bare = read_tables(edges, frame, missing="mean"), frame.set_index("id")
    graph = read_tables(edges, bare.rename_axis(None), missing="mean")
    assert graph.node_ids.tolist() == list("abcd")
    assert np.array_equal(graph.x, expected.x)
    for index in ([2, 5, 6, 7], list("wxyz")):  # what a filter left; a column has the ids
        odd = frame.rename(columns={"id": "name"}).set_axis(index)
        again = read_tables(edges, odd, missing="mean")
        assert np.array_equal(again.x, expected.x)


@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array, scipy.sparse.coo_matrix])
def test_a_matrix_in_memory_has_ids(make):
    edges, _ = _frames()
    x = np.arange(8).reshape(4, 2) % 3
    graph = read_tables(pyarrow.table(edges), make(x), node_ids=list("dcba"))
    assert graph.node_ids.tolist() == list("dcba")
    assert scipy.sparse.issparse(graph.x) == (make is not np.asarray)
    found = graph.x.toarray() if scipy.sparse.issparse(graph.x) else graph.x
    assert np.array_equal(found, x)
    assert graph.indices[graph.indptr[3] : graph.indptr[4]].tolist() == [2]  # a knows b
    vectors = np.eye(4)
    both = read_tables(pyarrow.table(edges), make(x), node_ids=list("dcba"), vectors=vectors)
    found = both.x.toarray() if scipy.sparse.issparse(both.x) else both.x
    assert np.array_equal(found, np.concatenate([x, vectors], axis=1))
    assert scipy.sparse.issparse(both.x) == scipy.sparse.issparse(graph.x)
    with pytest.raises(GraphError, match="node_ids: 1 names for 4 nodes"):
        read_tables(pyarrow.table(edges), make(x), node_ids=["a"])


TWICE = pyarrow.Table.from_arrays([pyarrow.array([1])] * 2, names=["a", "a"])
TWICE_IN_PANDAS = pandas.DataFrame([[1, 2]], columns=["a", "a"])


@pytest.mark.parametrize(
    ("edges", "nodes", "options", "message"),
    [
        (np.zeros((2, 3)), None, STRUCTURAL, "edges: a ndarray is not a table of columns"),
        ({"source": [2**70], "target": [1]}, None, STRUCTURAL, "edges: a dict is not a table of"),
        (_frames()[0], 3, {}, "nodes: a int is not a table"),
        (TWICE, None, STRUCTURAL, "two columns have the same name"),
        (TWICE_IN_PANDAS, None, STRUCTURAL, "a DataFrame is not a table .*Duplicate column names"),
        (*_frames(), {"node_ids": [1, 2, 3, 4]}, "a table has a column of ids"),
    ],
)
def test_what_is_no_table_is_refused(edges, nodes, options, message):
    with pytest.raises(GraphError, match=message):
        read_tables(edges, nodes, **options)


def test_a_file_of_a_folder_that_lacks_a_column_is_named(tmp_path):
    for name, columns in (("a", ("source", "target")), ("b", ("source",))):
        table = pyarrow.table({column: [0] for column in columns})
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet")
    with pytest.raises(GraphError, match=r'b\.parquet".*: column "target" was read'):
        read_tables(str(tmp_path), features="structural")


def test_views_of_a_database_are_not_run():
    write("secret.txt", "the secret")
    with duckdb.connect("v.duckdb") as database:
        database.execute(
            "CREATE VIEW v AS SELECT content AS source, '1' AS target FROM read_text('secret.txt')"
        )
        database.execute("CREATE TABLE t AS SELECT 1 AS source, 2 AS target")
    with closing(sqlite3.connect("v.db")) as database:
        database.execute(
            "CREATE VIEW v AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
            "SELECT x AS source, x AS target FROM c"
        )
    for view in ("v.duckdb:v", "v.db", "v.db:v"):
        with pytest.raises(GraphError, match="'v' is a view, a query that the file brings along"):
            read_tables(view, **STRUCTURAL)
    assert read_tables("v.duckdb", **STRUCTURAL).num_nodes == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("w.parquet", gzip.compress(b"x", mtime=0), "is gzipped; unpack it: gunzip < w.parquet"),
        ("w.db", gzip.compress(b"x", mtime=0), "is gzipped"),
        ("w.csv", "source,target\n1,2\n".encode("utf-16"), "is UTF-16; convert it: iconv"),
        ("w.csv", "source,target\n1,2\n".encode("utf-16-be"), "is UTF-16; convert it: iconv"),
        ("w.csv", b"a,b\n" + b"1,2\n" * 300_000 + b"\xdf,2\n", "line 300002 is not UTF-8"),
        ("w.csv", b"a,b\n" + b"1,2\n" * 300_000 + b"\0,2\n", "row 300001, .* contains a NUL"),
    ],
)
def test_what_a_file_is_not_is_said_in_our_words(name, content, message):
    Path(name).write_bytes(content)
    with pytest.raises(GraphError, match=message):
        read_tables(name, **STRUCTURAL)


def test_a_list_with_spaces_may_begin_with_names_of_its_columns():
    lines = {
        "a.txt": "# made by hand\n\nsource target weight\na b 1\nb\tc   2\nc a 3\n",
        "b.edges": "From\tTo\na\tb\nb\tc\nc\ta\n",
        "c.el": "src,dst\na,b\nb,c\nc,a\n",
        "d.txt": "a b\nb c\nc a\n",
    }
    for name, text in lines.items():
        write(name, text)
        assert edges_of(read_tables(name, **STRUCTURAL)) == TRIANGLE
    weighted = read_tables("a.txt", weight="weight", **STRUCTURAL)
    assert sorted(weighted.relations[("node", "edge", "node")].edge_weight) == [1, 1, 2, 2, 3, 3]
    write("words.txt", "to from\nfrom a\na to\n")
    assert edges_of(read_tables("words.txt", **STRUCTURAL)) == {
        ("from", "to"),
        ("a", "from"),
        ("a", "to"),
    }


def test_headers_are_guessed_or_given():
    write("plain.csv", "1,2\n2,3\n")
    assert edges_of(read_tables("plain.csv", **STRUCTURAL)) == {(1, 2), (2, 3)}
    write("names.csv", "ann,bob\nbob,eve\n")
    assert read_tables("names.csv", **STRUCTURAL).num_edges == 1
    assert read_tables("names.csv", header=False, **STRUCTURAL).num_edges == 2
    write("again.csv", "ann,bob\nbob,eve\neve,ann\n")  # both names are those of nodes
    assert read_tables("again.csv", **STRUCTURAL).num_edges == 3
    assert read_tables("again.csv", header=True, **STRUCTURAL).num_edges == 2
    write("blank.csv", "\n \nfrom,to\n\nx,y\n")
    assert edges_of(read_tables("blank.csv", **STRUCTURAL)) == {("x", "y")}
    write("bom.csv", "\ufefffrom,to\nx,y\n")
    assert edges_of(read_tables("bom.csv", **STRUCTURAL)) == {("x", "y")}


@FUZZ
@given(st.binary(max_size=200), st.sampled_from(["a.csv", "a.tsv", "a.txt", "a.csv.gz"]))
def test_bytes_as_delimited_text(data, name):
    Path(name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    graph_or_one_line(name, features="structural")
