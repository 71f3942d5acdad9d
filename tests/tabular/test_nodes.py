"""Whatever bytes a file holds, a reader returns a graph or says in one line what is wrong."""

import gzip
import sqlite3
from pathlib import Path

import networkx
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphcl.errors import GraphCLError
from graphcl.graphs.graph import Graph
from graphcl.graphs.graph_file import read_arrays
from graphcl.tabular.build import load_tables
from graphcl.tabular.options import TableOptions

FUZZ = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
CELL = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["", "NA", "nan", "inf", "-1", "007", "1e400", "true", '"', "a,b", "\n", "é"]),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(str),
)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def graph_or_one_line(edges, **options):
    """Reads tables; anything but a valid graph or an error of ours is a traceback to a user."""
    message = ""
    try:
        graph, _ = load_tables(edges, TableOptions(**options))
    except GraphCLError as error:
        message = str(error)
    if message:
        assert len(message) < 1500
        return
    assert graph.indptr[-1] == len(graph.indices)
    assert np.isfinite(graph.x if isinstance(graph.x, np.ndarray) else graph.x.data).all()
    assert graph.num_nodes == len(graph.indptr) - 1 == graph.x.shape[0]
    assert graph.node_ids is None or len(graph.node_ids) == graph.num_nodes


@FUZZ
@given(st.binary(max_size=200), st.sampled_from(["a.csv", "a.tsv", "a.txt", "a.csv.gz"]))
def test_bytes_as_delimited_text(data, name):
    Path(name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    graph_or_one_line(name, features="structural")


@FUZZ
@given(st.lists(st.lists(CELL, min_size=1, max_size=4), max_size=6), st.sampled_from(",;\t|"))
def test_cells_as_edges_and_nodes(rows, delimiter):
    text = "\n".join(delimiter.join(row) for row in rows)
    Path("e.csv").write_text("source,target\n1,2\n", encoding="utf-8")
    Path("n.csv").write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    graph_or_one_line("n.csv", features="structural")
    graph_or_one_line("e.csv", nodes="n.csv", add_missing_nodes=True, missing="mean")


@FUZZ
@given(
    st.lists(st.tuples(CELL, CELL, CELL), min_size=1, max_size=5),
    st.sampled_from([{}, {"label": "b"}, {"split": "b"}, {"one_hot": ("b",)}, {"ignore": ("a",)}]),
)
def test_typed_node_tables(rows, options):
    ids, a, b = (list(column) for column in zip(*rows, strict=True))
    clean = [
        [text.encode("utf-8", "replace").decode() for text in column] for column in (ids, a, b)
    ]
    table = pyarrow.table(dict(zip(("id", "a", "b"), clean, strict=True)))
    pyarrow.parquet.write_table(table, "n.parquet")
    Path("e.csv").write_text("source,target\n1,2\n")
    graph_or_one_line("e.csv", nodes="n.parquet", add_missing_nodes=True, **options)


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
@given(st.data(), st.sampled_from(["npy", "npz"]))
def test_damaged_feature_matrices(data, kind):
    name = f"x.{kind}"
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    if kind == "npy":
        np.save(name, x)
    else:
        np.savez(name, x=x, node_ids=np.arange(4))
    content = bytearray(Path(name).read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    Path(name).write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    Path("e.csv").write_text("source,target\n0,1\n")
    graph_or_one_line("e.csv", nodes=name)


@FUZZ
@given(st.data())
def test_damaged_graph_files(data):
    np.savez("g.npz", edge_index=[[0, 1], [1, 2]], x=np.ones((3, 2)), node_ids=["a", "b", "c"])
    content = bytearray(Path("g.npz").read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    Path("g.npz").write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    try:
        Graph.from_edge_index(**read_arrays(Path("g.npz")))
    except GraphCLError as error:
        said = str(error)
    else:
        said = "a graph"
    assert said


@FUZZ
@given(st.text(max_size=40))
def test_any_text_as_a_query(text):
    graph_or_one_line(f"SELECT {text}", features="structural")
    graph_or_one_line("SELECT 1 AS a, 2 AS b", nodes=f"SELECT {text}", features="both")
