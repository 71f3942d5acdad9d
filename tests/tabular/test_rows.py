"""A few rows, prepared without reading a table: the same features as those of a table."""

from datetime import date, datetime, timedelta

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphcl
from graphcl.errors import GraphError
from graphcl.tabular.kinds import prepare_rows

ROWS = 30
NAMES = [f"n{row}" for row in range(ROWS)]
EDGES = pyarrow.table({"source": NAMES[:-1], "target": NAMES[1:]})


def typed_table():
    random = np.random.default_rng(0)
    words = ["red fish", "blue fish", "one fish two fish", "a long river", "the red river"]
    return pyarrow.table(
        {
            "id": NAMES,
            "age": pyarrow.array([None if i == 3 else float(i * i) for i in range(ROWS)]),
            "count": pyarrow.array(list(range(ROWS)), pyarrow.int32()),
            "member": pyarrow.array([i % 3 == 0 for i in range(ROWS)]),
            "city": [None, *random.choice(["Oslo", "Bergen", "na"], ROWS - 1).tolist()],
            "born": [date(1980 + i, 1 + i % 12, 3) for i in range(ROWS)],
            "seen": [datetime(2024, 1, 1 + i % 28, i % 24, 30) for i in range(ROWS)],
            "wait": [timedelta(hours=i) for i in range(ROWS)],
            "says": [words[i % 5] + f" {i % 7}" for i in range(ROWS)],
            "place": [[float(i), -1.0, 0.5] for i in range(ROWS)],
        }
    )


@pytest.fixture(scope="module")
def typed():
    table = typed_table()
    return table, graphcl.read_tables(EDGES, table, text="says", missing="mean")


def test_typed_rows_are_those_of_the_table(typed):
    table, graph = typed
    rows = table.drop_columns(["id"]).to_pylist()
    found = prepare_rows(rows, graph.preparation, graph.num_features)
    x = graph.x.toarray() if hasattr(graph.x, "toarray") else graph.x
    np.testing.assert_array_equal(found, x)


def test_values_as_json_has_them(typed):
    table, graph = typed
    rows = table.drop_columns(["id"]).to_pylist()[:8]
    for row in rows:
        row["born"], row["seen"] = str(row["born"]), row["seen"].strftime("%d.%m.%Y %H:%M")
        row["wait"] = f"{row['wait'].seconds // 3600} hours"
        row["count"] = f" {row['count']} "  # a text that holds a number
    found = prepare_rows(rows, graph.preparation, graph.num_features)
    np.testing.assert_array_equal(found, np.asarray(graph.x)[:8])


def test_what_is_missing_or_new_is_as_in_a_table(typed):
    table, graph = typed
    rows = [
        dict.fromkeys(table.column_names[1:]),
        table.drop_columns(["id"]).to_pylist()[2],
    ]
    rows[1] |= {"city": "Tromsø", "age": float("nan")}
    schema = table.schema
    more = pyarrow.Table.from_pylist(
        [{"id": "a", **rows[0]}, {"id": "b", **rows[1]}], schema=schema
    )
    links = pyarrow.table({"source": ["a"], "target": ["b"]})
    expected = graphcl.read_tables(links, more, preparation=graph.preparation).x
    for some in (2, 1):  # of one row alone, nothing may be known
        found = prepare_rows(rows[:some], graph.preparation, graph.num_features)
        np.testing.assert_array_equal(found, expected[:some])


@settings(max_examples=25, deadline=None)
@given(
    cells=st.lists(
        st.tuples(
            st.sampled_from(["1", "2.5", "-3e2", " 7 ", "", "NA", "true", "0", "12"]),
            st.sampled_from(["Oslo", "Bergen", "", "?", "x"]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_texts_are_read_as_a_file_without_types(tmp_path_factory, cells):
    folder = tmp_path_factory.mktemp("csv")
    base = [("n0", "1", "Oslo"), ("n1", "2", "Bergen"), ("n2", "", "Oslo"), ("n3", "5", "Bergen")]

    def write(name, rows):
        lines = ["id,age,city", *(",".join(row) for row in rows)]
        (folder / name).write_text("\n".join(lines) + "\n")
        return str(folder / name)

    links = pyarrow.table({"source": ["n0", "n1", "n2"], "target": ["n1", "n2", "n3"]})
    graph = graphcl.read_tables(links, write("old.csv", base), one_hot="city", missing="mean")
    new = [(f"m{place}", *row) for place, row in enumerate(cells)]
    ends = pyarrow.table({"source": ["m0"], "target": [new[-1][0]]})
    expected = graphcl.read_tables(ends, write("new.csv", new), preparation=graph.preparation).x
    rows = [{"age": age, "city": city} for age, city in cells]
    found = prepare_rows(rows, graph.preparation, graph.num_features)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agee": 3}, "node 0: unknown column 'agee'; did you mean 'age'?"),
        ({"zzzzzzz": 3}, "unknown column 'zzzzzzz'; the model was trained on 'age', 'count'"),
        ({"age": ...}, "has no column 'age', which the model was trained on; null is a missing"),
        ({"age": "old"}, "node 0, column 'age': 'old' is not a number"),
        ({"age": [1]}, "is not a number"),
        ({"age": 1e39}, "outside the range of float32"),
        ({"age": 10**400}, "outside the range of float32"),
        ({"city": ["Oslo"]}, "is not a category"),
        ({"says": {"a": 1}}, "is not a text"),
        ({"born": "tomorrow"}, "'tomorrow' is not a date, such as '2026-05-17'"),
        ({"born": 5}, "is not a date"),
        ({"wait": "long"}, "is not a duration"),
        ({"place": [1.0]}, "is not a list of 3 numbers"),
        ({"place": [1, 2, "x"]}, "is not a list of 3 numbers"),
        ({"place": [1, 2, float("nan")]}, "is not a list of 3 numbers"),
    ],
)
def test_what_does_not_fit_is_said(typed, change, message):
    table, graph = typed
    row = table.drop_columns(["id"]).to_pylist()[0] | change
    row = {name: value for name, value in row.items() if value is not ...}
    with pytest.raises(GraphError) as caught:
        prepare_rows([row], graph.preparation, graph.num_features)
    assert message in str(caught.value)


def test_features_that_columns_do_not_give(typed):
    table, graph = typed
    row = table.drop_columns(["id"]).to_pylist()[0]
    with pytest.raises(GraphError, match="features are computed from edges; give features"):
        prepare_rows([row], graph.preparation, graph.num_features + 4)
    tags = pyarrow.table({"id": ["n0", "n1"], "tag": ["a", "b"]})
    tagged = graphcl.read_tables(EDGES, table.select(["id", "count"]), tags=tags)
    with pytest.raises(GraphError, match="trained with tags, which columns do not have"):
        prepare_rows([{"count": 1}], tagged.preparation, tagged.num_features)
