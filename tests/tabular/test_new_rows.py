"""Tables of what changes: read by the training's preparation, ids as they are written."""

from datetime import date, datetime, time, timedelta

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphcl
from graphcl.errors import GraphError
from graphcl.tabular.build import read_tables
from graphcl.tabular.new_rows import prepare_rows, read_ids, read_new, read_pairs
from graphcl.tabular.options import TableOptions


def table(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def prepared(tmp_path):
    edges = table(tmp_path / "edges.csv", "source,target", "a,b", "b,c", "c,d", "d,e")
    nodes = table(
        tmp_path / "nodes.csv",
        "id,age,city,joined",
        "a,20,x,2020-01-01",
        "b,30,y,2020-01-02",
        "c,40,x,2020-01-03",
        "d,,z,2020-01-04",
        "e,30,x,2020-01-05",
    )
    return read_tables(edges, nodes).preparation


def test_nodes_and_edges(prepared, tmp_path):
    nodes = table(tmp_path / "n.csv", "id,city,age,joined", "q,y,25,2020-01-03", "b,new,,")
    edges = table(tmp_path / "e.csv", "source,target", "q,b", "b,q", "q,c", "q,q")
    width = len(prepared.features)
    found = read_new(edges, TableOptions(nodes=nodes, preparation=prepared), width=width)
    assert found.ids.tolist() == ["q", "b", "c"]
    assert found.rows == 2
    assert found.pairs.tolist() == [[0, 1], [0, 2]]
    assert found.features.tolist() == list(range(width))
    place = {name: k for k, name in enumerate(prepared.features)}
    assert found.x[:, place["age"]].tolist() == [25, 30]  # the training's mean fills the hole
    assert found.x[:, place["city=y"]].tolist() == [1, 0]
    assert found.x[1, [place[f"city={one}"] for one in "xyz"]].tolist() == [0, 0, 0]
    assert not any("added" in note for note in found.notes)
    assert any("self-loop" in note for note in found.notes)


def test_columns_that_are_absent(prepared, tmp_path):
    nodes = table(tmp_path / "n.csv", "id,city,other", "q,y,1")
    width = len(prepared.features)
    found = read_new(None, TableOptions(nodes=nodes, preparation=prepared), width=width)
    assert found.absent == ("age", "joined")
    assert [prepared.features[k] for k in found.features] == ["city=x", "city=y", "city=z"]
    assert found.x.tolist() == [[0, 1, 0]]
    only = table(tmp_path / "o.csv", "id,other", "q,1")
    found = read_new(None, TableOptions(nodes=only, preparation=prepared), width=width)
    assert found.x is None
    assert found.absent == ("age", "city", "joined")
    assert found.ids.tolist() == ["q"]


def test_edges_alone(tmp_path):
    edges = table(tmp_path / "e.csv", "source,target,w", "1,2,3.5", "2,1,3.5", "2,5,1")
    found = read_new(edges, TableOptions(weight="w"), width=3)
    assert found.rows == 0
    assert found.x is None
    assert found.ids[found.pairs].tolist() == [[1, 2], [2, 5]]
    assert found.weight.tolist() == [7.0, 1.0]
    nothing = read_new(None, TableOptions(), width=3)
    assert (len(nothing.ids), len(nothing.pairs)) == (0, 0)


def test_labels_and_split_are_read_where_they_are(prepared, tmp_path):
    nodes = table(tmp_path / "n.csv", "id,age,kind,part", "q,1,u,test", "r,2,,train")
    options = TableOptions(nodes=nodes, preparation=prepared, label=("Kind",), split="part")
    found = read_new(None, options, width=len(prepared.features))
    assert found.class_names == ("u",)
    assert found.y.tolist() == [0, -1]
    assert found.masks["train_mask"].tolist() == [False, True]
    plain = table(tmp_path / "p.csv", "id,age", "q,1")
    found = read_new(
        None,
        TableOptions(nodes=plain, preparation=prepared, label=("kind",), split="part"),
        width=len(prepared.features),
    )
    assert found.y is None
    assert found.masks == {}


def test_tags_that_are_not_given_are_absent(tmp_path):
    edges = table(tmp_path / "edges.csv", "source,target", "a,b", "b,c")
    nodes = table(tmp_path / "nodes.csv", "id,age", "a,1", "b,2", "c,3")
    tags = table(tmp_path / "tags.csv", "id,tag", "a,red", "b,blue", "c,red")
    prepared = read_tables(edges, nodes, tags=tags).preparation
    new = table(tmp_path / "n.csv", "id,age", "q,9")
    options = TableOptions(nodes=new, preparation=prepared)
    found = read_new(None, options, width=3)
    assert (found.absent, found.features.tolist()) == (("--tags",), [0])
    more = table(tmp_path / "t.csv", "id,tag", "q,blue", "q,new")
    found = read_new(None, TableOptions(nodes=new, tags=more, preparation=prepared), width=3)
    full = found.x.toarray() if hasattr(found.x, "toarray") else found.x
    assert full.tolist() == [[9, *(1 if one == "tag=blue" else 0 for one in prepared.features[1:])]]
    with pytest.raises(GraphError, match="--tags needs --nodes"):
        read_new(None, TableOptions(tags=more, preparation=prepared), width=3)


def test_a_preparation_of_another_graph_is_refused(prepared, tmp_path):
    nodes = table(tmp_path / "n.csv", "id,age", "q,1")
    with pytest.raises(GraphError, match="features come from tables, and the graph has 4"):
        read_new(None, TableOptions(nodes=nodes, preparation=prepared), width=4)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["id", "3", "5", "3"], [3, 5]),
        (["3", "5"], [3, 5]),
        (["id", "003", "5"], ["003", "5"]),
        (["why,node", "old,b", "old,a"], ["a", "b"]),
    ],
)
def test_lists_of_ids(tmp_path, lines, expected):
    assert read_ids(table(tmp_path / "gone.csv", *lines), TableOptions())[0].tolist() == expected


def test_ids_from_python():
    assert read_ids([3, 5], TableOptions())[0].tolist() == [3, 5]
    assert read_ids(("a", 5), TableOptions())[0].tolist() == ["a", "5"]
    assert read_ids(pyarrow.table({"id": ["x"]}), TableOptions())[0].tolist() == ["x"]
    with pytest.raises(GraphError, match="column 'id' is empty"):
        read_ids(pyarrow.table({"id": ["x", None]}), TableOptions())


def test_pairs_to_remove(tmp_path):
    cut = table(tmp_path / "cut.csv", "from,to,weight", "a,b,1", "b,a,1", "c,a,2")
    found = read_pairs(cut, TableOptions(weight="weight"))
    ids, pairs = found.ids, found.pairs
    assert {frozenset(one) for one in np.asarray(ids)[pairs].tolist()} == {
        frozenset("ab"),
        frozenset("ac"),
    }


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
            "wakes": [time(i % 24, 15) for i in range(ROWS)],
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
        row["wait"], row["wakes"] = f"{row['wait'].seconds // 3600} hours", str(row["wakes"])
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
    found = prepare_rows(rows, graph.preparation, graph.num_features)
    np.testing.assert_array_equal(found, expected)


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
        ({"wakes": "noon"}, "is not a time"),
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
    with pytest.raises(GraphError, match="trained with --tags, which columns do not have"):
        prepare_rows([{"count": 1}], tagged.preparation, tagged.num_features)
