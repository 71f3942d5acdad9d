"""Features, labels and splits from the columns of a node table."""

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcl.tabular.build import load_tables, read_tables
from graphcl.tabular.options import TableOptions
from tests.conftest import FUZZ
from tests.tabular.conftest import graph_or_one_line, write

CELL = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["", "NA", "nan", "inf", "-1", "007", "1e400", "true", '"', "a,b", "\n", "é"]),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(str),
)


@FUZZ
@given(st.lists(st.lists(CELL, min_size=1, max_size=4), max_size=6), st.sampled_from(",;\t|"))
def test_cells_as_edges_and_nodes(rows, delimiter):
    text = "\n".join(delimiter.join(row) for row in rows)
    Path("e.csv").write_text("source,target\n1,2\n", encoding="utf-8")
    Path("n.csv").write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    graph_or_one_line("n.csv", features="structural")
    graph_or_one_line("e.csv", nodes="n.csv", unknown_edges="add", missing="mean")


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
    graph_or_one_line("e.csv", nodes="n.parquet", unknown_edges="add", **options)


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
