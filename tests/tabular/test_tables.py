"""Malformed inputs: each gives one line that says what to do, and nothing is written."""

import gzip
import sqlite3
from pathlib import Path

import duckdb
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import scipy.sparse

from graphcl.cli.main import run
from graphcl.errors import ParameterError, TableError
from graphcl.tabular.build import load_tables, read_tables
from graphcl.tabular.options import TableOptions
from tests.tabular.conftest import edges_of, write

EDGES = "source,target\n1,2\n2,3\n"
NODES = "id,f\n1,0.5\n2,0.25\n3,1\n"

BOMB = (
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
    '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph id="&b;"/></graphml>'
)


def parquet(name, **columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), name)


def database(name, *statements):
    connect = sqlite3.connect if name.endswith(".sqlite") else duckdb.connect
    connection = connect(name)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    """Every input of the table below; text files by their name, the rest by what writes them."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "e.csv": EDGES,
        "n.csv": NODES,
        "empty.csv": "",
        "header.csv": "source,target\n",
        "one.csv": "source\n1\n2\n",
        "ragged.csv": "source,target\n1,2\n3\n",
        "wide.csv": "source,target\n1,2\n3,4,5\n",
        "quote.csv": 'source,target\n1,"2\n3,4\n',
        "hole.csv": "source,target\n1,2\n3,\n",
        "twice.csv": "source,source\n1,2\n",
        "unknown.csv": "source,target\n1,2\n2,9\n9,8\n",
        "weights.csv": "source,target,w\n1,2,1\n2,3,0\n",
        "words.csv": "source,target,w\n1,2,heavy\n2,3,light\n",
        "text.csv": "id,colour\n1,red\n2,blue\n3,red\n",
        "typo.csv": "id,f\n1,0.5\n2,o.25\n3,1\n",
        "gap.csv": "id,f\n1,0.5\n2,\n3,1\n",
        "void.csv": "id,f,g\n1,0.5,\n2,1,\n3,1,\n",
        "same.csv": "id,f\n1,0.5\n2,1\n1,1\n",
        "noid.csv": "id,f\n1,0.5\n,1\n3,1\n",
        "infinite.csv": "id,f\n1,0.5\n2,inf\n3,1\n",
        "label.csv": "id,f,label\n1,0.5,a\n2,1,b\n3,1,b\n",
        "split.csv": "id,f,part\n1,0.5,train\n2,1,tset\n3,1,test\n",
        "bomb.graphml": BOMB,
        "broken.graphml": "<graphml><graph>",
        "broken.gml": "graph [ node [ id 0",
        "notes.docx": "edges",
        "fake.csv.gz": EDGES,
        "fake.parquet": "not parquet",
        "fake.duckdb": "not a database",
    }.items():
        Path(name).write_text(text)
    Path("latin.csv").write_bytes("source,target\n1,é\n".encode("latin1"))
    Path("binary.csv").write_bytes(b"source,target\n1,\x00\x01\n")
    whole = gzip.compress(("source,target\n" + "1,2\n" * 9999).encode())
    Path("cut.csv.gz").write_bytes(whole[: len(whole) // 2])
    parquet("float.parquet", source=[1.5, 2.5], target=[2.5, 3.5])
    parquet("list.parquet", id=[1, 2, 3], f=[[1, 2], [3], [5, 6]])
    database("two.sqlite", "CREATE TABLE a (u, v)", "CREATE TABLE b (u, v)")
    database("blob.sqlite", "CREATE TABLE a (u, v)", "INSERT INTO a VALUES (x'00', 1)")
    database("t.duckdb", "CREATE TABLE links (u INT, v INT)")
    Path("nothing").mkdir()
    np.save("flat.npy", np.ones(3))
    np.save("short.npy", np.ones((2, 2)))
    np.savez("pickled.npz", x=np.array([{}], dtype=object))
    scipy.sparse.save_npz("oblong.npz", scipy.sparse.csr_array(np.ones((2, 3))))


# input → message
MALFORMED = [
    ("--edges absent.csv", "absent.csv: no such file"),
    ("--edges .", "File 'fake.parquet' too small to be a Parquet file"),
    (
        "--edges nothing",
        "nothing: is a directory; --edges takes a file or an SQL query, or a folder",
    ),
    ("--edges notes.docx", "notes.docx: unknown kind of file; known: .csv, .tsv"),
    ("--edges empty.csv", "empty.csv: is empty"),
    ("--edges header.csv", "header.csv: has no rows"),
    ("--edges one.csv", "one.csv: has one column ('source'); an edge needs two ends"),
    ("--edges ragged.csv", "ragged.csv: line 3 has 1 field; the first line has 2"),
    ("--edges wide.csv", "wide.csv: line 3 has 3 fields; the first line has 2"),
    ("--edges quote.csv", "quote.csv: line 2 has a quote that is not closed"),
    ("--edges hole.csv", "hole.csv: row 2: column 'target' is empty; every row needs an id"),
    ("--edges twice.csv", "twice.csv: the header names column 'source' twice"),
    ("--edges latin.csv", "latin.csv: line 2 is not UTF-8; convert it: iconv"),
    ("--edges binary.csv", "binary.csv: is not a text file; .csv and .tsv files must be"),
    ("--edges fake.csv.gz", "fake.csv.gz: is named .gz but is not gzipped"),
    ("--edges cut.csv.gz", "cut.csv.gz: damaged gzip"),
    ("--edges fake.parquet", "fake.parquet: is not a Parquet file"),
    ("--edges fake.duckdb", "fake.duckdb: is neither a DuckDB nor an SQLite"),
    ("--edges float.parquet", "column 'source' is DOUBLE; ids are integers or strings"),
    ("--edges t.duckdb:lnks", "has no table 'lnks'; it has links; did you mean 'links'?"),
    ("--edges two.sqlite", "has several tables (a, b); name one: two.sqlite:a"),
    ("--edges blob.sqlite", "blob.sqlite: column 'u' of table 'a' contains blobs"),
    ("--edges bomb.graphml", "bomb.graphml: declares a DOCTYPE"),
    ("--edges broken.graphml", "broken.graphml: not a readable .graphml file"),
    ("--edges broken.gml", "broken.gml: not a readable .gml file"),
    ("--edges oblong.npz", "oblong.npz: the adjacency must be square; got (2, 3)"),
    ("--edges e.csv --source-column sorce", "no column 'sorce'; it has 'source', 'target'; did"),
    (
        "--edges e.csv --source-column target --target-column target",
        "column 'target' cannot be both ends",
    ),
    ("--edges e.csv --weight w", "e.csv: --weight: no column 'w'"),
    ("--edges weights.csv --weight w", "row 2: the weight in column 'w' is '0'; weights are pos"),
    ("--edges words.csv --weight w", "row 1: the weight in column 'w' is 'heavy'"),
    ("--edges e.csv", "the graph has no features (no node table): pass --nodes"),
    ("--edges e.csv --label y", "--label: there is no node table; pass --nodes"),
    ("--edges e.csv --features clever", "--features must be columns or structural or both"),
    (
        "--edges e.csv --nodes n.csv --missing drop",
        "--missing must be auto or refuse or zero or mean",
    ),
    ("--edges e.csv --nodes absent.npy", "absent.npy: no such file"),
    ("--edges e.csv --nodes flat.npy", "flat.npy: x: expected a table"),
    ("--edges e.csv --nodes pickled.npz", "holds pickled objects, which are never read"),
    ("--edges e.csv --nodes short.npy", "2 edges name 2 unknown nodes, first '2' in row 1"),
    ("--edges unknown.csv --nodes n.csv", "2 edges name 2 unknown nodes, first '9' in row 2"),
    (
        "--edges e.csv --nodes text.csv --strict",
        "column 'colour' is text (row 1: 'red'); features are",
    ),
    ("--edges e.csv --nodes list.parquet", "column 'f' has vectors of 1 to 2 numbers"),
    ("--edges e.csv --nodes typo.csv", "row 2, column 'f': 'o.25' is not a number"),
    ("--edges e.csv --nodes gap.csv", "row 2, column 'f' is missing; missing values: 'f' 1"),
    ("--edges e.csv --nodes void.csv --strict", "column 'g' has no values; leave the column out"),
    ("--edges e.csv --nodes same.csv", "rows 1 and 3 have the same id '1' in column 'id'"),
    ("--edges e.csv --nodes noid.csv", "noid.csv: row 2: column 'id' is empty"),
    ("--edges e.csv --nodes infinite.csv", "row 2, column 'f': inf does not fit"),
    ("--edges e.csv --nodes label.csv", "column 'label' would become a feature, but is named"),
    (
        "--edges e.csv --nodes split.csv --split part",
        "row 2, column 'part': 'tset' is not a split; known: train, val, test",
    ),
    ("--edges e.csv --nodes n.csv --label topic", "--label: no column 'topic'; it has 'id', 'f'"),
    ("--edges e.csv --nodes n.csv --one-hot id", "--one-hot: column 'id' is already used"),
]


@pytest.mark.parametrize(("arguments", "message"), MALFORMED, ids=[text for text, _ in MALFORMED])
def test_malformed_input(arguments, message, capsys, tmp_path):
    before = sorted(path.name for path in tmp_path.iterdir())
    assert run(["build", *arguments.split(), "--out", "store"]) == 2
    answer = capsys.readouterr()
    said = answer.err.splitlines()
    lines = [line for line in said if " s  " not in line and not line.startswith("guessed:")]
    assert sum(message in line for line in lines) == 1
    assert lines[0].startswith("graphcl: ")
    assert len(lines) == 1 or " problems:" in lines[0]
    assert answer.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT source FROM", "--edges query: "),
        ("SELECT a, b FROM 'absent.parquet'", "absent.parquet"),
        ("FROM nowhere", "nowhere"),
        ("SELECT 1 AS a, 2 AS b; DROP TABLE x", "must be one SELECT"),
        ("WITH a AS (SELECT 1) INSERT INTO b FROM a", "must be one SELECT"),
        ("SELECT 1 AS only", "has one column"),
        ("SELECT * FROM read_csv('https://example.org/x.csv')", "--edges query: "),
    ],
)
def test_malformed_queries(query, message, capsys, tmp_path):
    before = sorted(path.name for path in tmp_path.iterdir())
    assert run(["build", "--edges", query, "--features", "structural", "--out", "store"]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_an_existing_store_is_kept_without_overwrite(capsys):
    arguments = ["build", "--edges", "e.csv", "--nodes", "n.csv", "--out", "store"]
    assert run(arguments) == 0
    assert run(arguments) == 2
    assert "already holds a store" in capsys.readouterr().err.splitlines()[-1]
    assert run([*arguments, "--overwrite"]) == 0
    assert run([*arguments[:-1], "e.csv"]) == 2
    assert "is a file; a store is a directory" in capsys.readouterr().err.splitlines()[-1]


def test_one_problem_hides_no_other():
    write("odd.csv", "source,target,w\n1,2,1\n2,9,-1\n,3,2\n3,1,1\n")
    write("twice.csv", "id,f,g\n1,1,2\n2,x,3\n2,3,1e39\n3,4,5\n4,5,6\n")
    found = [
        "row 3: column 'source' is empty",
        "row 2: the weight in column 'w' is '-1'",
        "rows 2 and 3 have the same id '2' in column 'id'; each node has one row: keep one with",
        "row 3, column 'g': 1e+39 does not fit",
        "row 2, column 'f': 'x' is not a number",
        "'9' in row 2; add the missing rows",
    ]
    typed = ({"to": "odd.csv"}, {"thing": "twice.csv"}, {"thing": "id"})
    for edges, nodes, ids in (("odd.csv", "twice.csv", "id"), typed):
        with pytest.raises(TableError) as caught:
            read_tables(edges, nodes, weight="w", id_column=ids)
        assert len(caught.value.problems) == len(found)
        for message in found:
            assert sum(message in line for line in caught.value.problems) == 1
        assert "1 edge names 1 unknown node" in str(caught.value)


@pytest.mark.parametrize(("keep", "first"), [("first", 1), ("last", 3)])
def test_one_row_of_several_with_an_id_is_kept(keep, first):
    write("same.csv", "id,f,y\n1,1,a\n2,2,b\n1,3,c\n3,4,a\n")
    graph, report = load_tables(
        "e.csv", TableOptions(nodes="same.csv", label="y", duplicates=keep, unknown_edges="drop")
    )
    names = graph.node_ids.tolist()
    assert sorted(names) == [1, 2, 3]
    assert graph.x[names.index(1), 0] == first
    assert graph.class_names[graph.y[names.index(1)]] == {"first": "a", "last": "c"}[keep]
    assert any(f"1 row repeats an id: the {keep} of each is kept" in one for one in report.notes)
    typed = read_tables({"to": "e.csv"}, {"thing": "same.csv"}, label="y", duplicates=keep)
    assert typed.nodes["thing"].num_nodes == 3
    query = "SELECT * FROM 'same.csv'"  # which is kept in the session, and then once more
    again = read_tables("e.csv", query, label="y", duplicates=keep, unknown_edges="drop")
    assert again.x[again.node_ids.tolist().index(1), 0] == first


def test_edges_that_name_unknown_nodes_are_dropped_or_their_nodes_added():
    write("far.csv", "source,target,amount\n1,2,5\n2,9,6\n3,1,7\n8,9,8\n")
    write("n3.csv", "id,f\n1,5\n2,6\n3,7\n")
    options = TableOptions(nodes="n3.csv", unknown_edges="drop")
    graph, report = load_tables("far.csv", options)
    assert edges_of(graph) == {(1, 2), (1, 3)}
    assert any("2 edges name 2 unknown nodes: left out" in note for note in report.notes)
    added = read_tables("far.csv", "n3.csv", unknown_edges="add")
    assert (added.num_nodes, added.num_edges) == (5, 4)
    typed = read_tables({"to": "far.csv"}, {"thing": "n3.csv"}, unknown_edges="drop")
    (relation,) = typed.relations.values()
    assert relation.num_edges == 2
    assert sorted(relation.edge_features[:, 0].tolist()) == [5, 7]
    write("none.csv", "source,target\n8,9\n")
    with pytest.raises(TableError, match="no edge would be left"):
        load_tables("none.csv", options)
    with pytest.raises(ParameterError, match="duplicates must be first or last or refuse"):
        TableOptions(duplicates="both")
