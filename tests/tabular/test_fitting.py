"""Features, labels and splits from the columns of a node table."""

from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcl.errors import TableError
from graphcl.tabular.build import load_tables, read_tables
from graphcl.tabular.kinds import prepare_rows
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
    options = TableOptions(nodes="n.csv", label="topic", label_kind="classes")
    graph, report = load_tables("e.csv", options)
    assert graph.y.tolist() == y
    assert report.class_names == classes


def test_splits():
    write("e.csv", "source,target\n1,2\n")
    write("n.csv", "id,f,part\n0,1,Train\n1,1,validation\n2,1,test\n3,1,\n")
    graph = read_tables("e.csv", "n.csv", split="part")
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    assert [np.flatnonzero(mask).tolist() for mask in masks] == [[0], [1], [2]]


TRAINED = """id,age,day,town,bio,part
0,20,2020-01-06,a,walks by the sea,train
1,,2020-03-07,b,reads of the hills,train
2,40,2021-01-08,a,code and the sea,train
3,60,2022-05-09,b,dogs in the hills,test
4,30,2020-05-09,b,dogs of the sea,train
"""
OPTIONS = {"nodes": "n.csv", "text": "bio", "split": "part"}


@pytest.fixture
def trained():
    write("e.csv", "source,target\n0,1\n")
    write("n.csv", TRAINED)
    return load_tables("e.csv", TableOptions(**OPTIONS))[0]


def later(text, graph):
    write("new.csv", text)
    options = TableOptions(nodes="new.csv", preparation=graph.preparation)
    return load_tables("e.csv", options)


def test_rows_of_training_are_the_same_bits_beside_wild_ones(trained):
    wild = TRAINED.replace(",part", ",part,more") + "\n".join(
        f"{n},{10.0**n:g},19{n + 50}-01-01,z{n},new words {n},train,x" for n in range(5, 30)
    )
    wild = wild.replace(",train\n", ",train,q\n").replace(",test\n", ",test,q\n")
    graph, report = later(wild, trained)
    assert np.array_equal(graph.x[:5], trained.x)
    said = "\n".join(report.notes)
    assert "far outside the training's range: 'age'" in said
    assert "dates far outside the training's range" in said
    assert "25 categories are new to the model and encoded as zeros: 'z10', 'z11', 'z12', …" in said
    assert not graph.x[5:, report.column_features.index("town=a")].any()
    assert report.preparation == trained.preparation


def test_empty_columns_are_filled_with_the_trainings_means(trained):
    graph, report = later("id,bio,town,day,age\n0,,,,\n1,,,,\n", trained)
    names = report.column_features
    assert graph.x[0, names.index("age")] == np.float32((20 + 40 + 60 + 30) / 4)
    fill = trained.preparation.columns[1].fill
    assert graph.x[1, names.index("day")] == np.float32(fill)
    rest = [place for place, name in enumerate(names) if name not in ("age", "day")]
    assert not graph.x[:, rest].any()
    said = "\n".join(report.notes)
    assert "1 column has no values and the training's mean in every row: 'age'" in said
    assert "4 missing values filled with the training's mean" in said


@pytest.mark.parametrize("none", [None, np.nan, pandas.NaT])
def test_columns_without_a_value_are_missing_whatever_their_kind(none):
    known = pandas.DataFrame(
        {
            "id": list("abcd"),
            "age": [1, 2, 3, 4.5],
            "town": ["x", "y", "x", "y"],
            "bio": ["reads books", "writes code", "reads code", "swims"],
            "day": pandas.date_range("2020-01-01", periods=4),
            "took": pandas.to_timedelta([1, 2, 3, 4], unit="D"),
            "place": [[1.0, 2.0]] * 4,
        }
    )
    edges, names = {"source": ["a"], "target": ["b"]}, known.columns[1:]
    graph = read_tables(edges, known, text="bio")
    void = known.assign(**dict.fromkeys(names, none))
    expected = prepare_rows([dict.fromkeys(names)] * 4, graph.preparation, graph.num_features)
    void.astype(dict.fromkeys(names, object)).to_parquet("void.parquet")
    for nodes in (void, void.astype(dict.fromkeys(names, object)), "void.parquet"):
        assert np.array_equal(read_tables(edges, nodes, preparation=graph.preparation).x, expected)


def test_all_that_is_wrong_is_said_at_once(trained):
    with pytest.raises(TableError) as error:
        later("id,bio,town,age\n0,x,a,3o\n1,y,b,1\n", trained)
    assert "has no column 'day', which the model was trained on" in str(error.value)
    with pytest.raises(TableError) as error:
        later("id,bio,town,age,day\n0,x,a,3o,2020-01-01\n1,y,b,1,soon\n", trained)
    assert len(error.value.problems) == 2
    assert "row 1, column 'age': '3o' is not a number" in error.value.problems[0]
    assert "row 2, column 'day': 'soon' is no date" in error.value.problems[1]


def test_inductive_statistics_are_of_training_rows():
    write("e.csv", "source,target\n0,1\n")
    write("n.csv", TRAINED)
    graph, _ = load_tables("e.csv", TableOptions(**OPTIONS, inductive=True))
    age, day = graph.preparation.columns[:2]
    assert (age.fill, age.high) == ((20 + 40 + 30) / 3, 40)
    changed = TRAINED.replace(
        "3,60,2022-05-09,b,dogs in the hills", "3,9999,2052-01-01,zzz,nothing at all"
    )
    write("n.csv", changed)
    again, _ = load_tables("e.csv", TableOptions(**OPTIONS, inductive=True))
    assert again.preparation.columns == graph.preparation.columns
    for name, array in graph.preparation.arrays.items():
        assert np.array_equal(array, again.preparation.arrays[name])
    assert day.high == pytest.approx(368 / 365.2425)


def test_numbers_that_lie_too_close_together_for_float32_are_said():
    write("e.csv", "source,target\n1,2\n")
    write("n.csv", "id,at,year,one\n1,1700000001,2020,7\n2,1700000050,2021,7\n")
    _, report = load_tables("e.csv", TableOptions(nodes="n.csv"))
    said = "'at': numbers from 1700000001 to 1700000050 are rounded to multiples of 128"
    assert [said in note for note in report.notes if "rounded" in note] == [True]
