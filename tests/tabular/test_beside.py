"""Long tables: each name is a feature, as plain loops have it; the names belong to the training."""

import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.errors import GraphError, ParameterError, RunError, TableError
from graphcl.graphs.graph import Graph
from graphcl.tabular import beside, features
from graphcl.tabular.build import build_store, check_tables, load_tables, read_tables
from graphcl.tabular.options import TableOptions
from graphcl.tabular.preparation import read_preparation, write_preparation
from graphcl.tabular.sources import Source
from tests.tabular.conftest import write

NODES = "page,age,part\na,1,train\nb,2,train\nc,3,test\nd,4,train\n"
TAGS = "page,keyword,count\nb,sea,2\na,hill,1\nb,sea,3\nc,fog,7\nz,hill,1\na,sea,-0.5\n"


@pytest.fixture(autouse=True)
def _files():
    write("e.csv", "source,target\na,b\nb,c\n")
    write("n.csv", NODES)
    write("t.csv", TAGS)


def read(**options):
    return load_tables("e.csv", TableOptions(**{"nodes": "n.csv", "split": "part"} | options))


def expected(rows, ids, names):
    """The features as a plain loop adds them up."""
    x = np.zeros((len(ids), len(names)))
    for page, name, value in rows:
        if page in ids and name in names:
            x[ids.index(page), names.index(name)] += value
    return x


def test_each_name_is_a_feature_and_rows_add_up():
    graph, report = read(tags="t.csv")
    assert report.column_features == ["age", "keyword=fog", "keyword=hill", "keyword=sea"]
    assert graph.x.tolist() == [[1, 0, 1, -0.5], [2, 0, 0, 5], [3, 7, 0, 0], [4, 0, 0, 0]]
    said = "\n".join(report.notes)
    assert "tags: t.csv: 'page' – 'keyword' (guessed by name), values in 'count'" in said
    assert "tags: 1 row names 1 unknown node, first 'z' in row 5: left out" in said
    assert "tags: 1 repeated row: values added" in said
    assert "tags: 1 node has none: zeros" in said
    assert report.fates[-1].column == "tags"
    assert report.fates[-1].features == 3
    known = graph.preparation.tags
    assert (known.categories, known.low, known.high) == (("fog", "hill", "sea"), -0.5, 7)


def test_without_values_rows_are_counted():
    write("t.csv", "who\tword\nb\tsea\nb\tsea\nc\tsea\nd\t\n")
    graph, report = read(tags="t.csv")
    assert graph.x[:, 1].tolist() == [0, 2, 1, 0]
    said = "\n".join(report.notes)
    assert "'who' – 'word' (guessed: the first columns)" in said
    assert "tags: 1 row has no name: left out" in said
    assert "tags: 1 repeated row: counted" in said


@pytest.mark.parametrize(
    "given",
    [
        {"tags": "SELECT page, upper(keyword) AS k, count AS v FROM 't.csv'"},
        {"tags": "t.csv", "tag_columns": "page,keyword,count"},
        {"tags": "t.csv", "tag_columns": ("page", "keyword", "count")},
    ],
)
def test_a_query_and_named_columns(given):
    graph, report = read(**given)
    assert graph.x[1].tolist() == [2, 0, 0, 5]
    assert report.column_features[-1] in ("k=SEA", "keyword=sea")


def test_without_a_node_table_edges_and_tags_name_the_nodes():
    write("t.csv", "page,keyword\nb,sea\na,hill\nq,sea\n")
    graph, report = load_tables("e.csv", TableOptions(tags="t.csv"))
    assert graph.node_ids.tolist() == ["a", "b", "c", "q"]
    assert graph.x.tolist() == [[1, 0], [0, 1], [0, 0], [0, 1]]
    assert report.column_features == ["keyword=hill", "keyword=sea"]


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from("uvwxyz"), st.integers(-3, 3)), min_size=1
    ),
    sparse=st.booleans(),
)
def test_it_is_the_loop_dense_sparse_and_stored(rows, sparse, tmp_path_factory):
    folder = tmp_path_factory.mktemp("t")
    ids = list(range(5))  # 5 is no node
    (folder / "e.csv").write_text("source,target\n0,1\n")
    (folder / "n.csv").write_text("id,one\n" + "".join(f"{one},1\n" for one in ids))
    (folder / "t.csv").write_text("id,tag,value\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    names = sorted({name for page, name, _ in rows if page in ids})
    options = TableOptions(nodes=str(folder / "n.csv"), tags=str(folder / "t.csv"))
    if not names:
        with pytest.raises(TableError):
            load_tables(str(folder / "e.csv"), options)
        return
    wanted = np.concatenate([np.ones((5, 1)), expected(rows, ids, names)], axis=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "SPARSE_WIDTH", 1 if sparse else 1000)
        patch.setattr(features, "SPARSE_SHARE", 1.0)
        graph, _ = load_tables(str(folder / "e.csv"), options)
        build_store(str(folder / "e.csv"), options, out=folder / "store")
    for x in (graph.x, Graph.open(folder / "store", verify=True).x):
        assert scipy.sparse.issparse(x) == sparse
        assert np.array_equal(x.toarray() if sparse else x, wanted)
    assert read_preparation(folder / "store/nodes-0").tags.categories == tuple(names)


def test_names_belong_to_the_training(tmp_path):
    graph, _ = read(tags="t.csv")
    write_preparation(tmp_path, graph.preparation)
    kept = read_preparation(tmp_path)
    assert kept.tags == graph.preparation.tags
    write("new.csv", "page,keyword,count\na,hill,1\nb,zebra,1\nb,yak,2\nc,sea,900\nb,yak,1\n")
    again, report = read(tags="new.csv", preparation=kept)
    assert again.x.tolist() == [[1, 0, 1, 0], [2, 0, 0, 0], [3, 0, 0, 900], [4, 0, 0, 0]]
    said = "\n".join(report.notes)
    assert "2 names are new to the model, in 3 rows: left out: 'yak', 'zebra'" in said
    assert "values far outside the training's range: 1 to 900; in training -0.5 to 7" in said
    assert report.preparation == kept
    write("new.csv", "page,keyword,count\na,zebra,1\n")
    again, report = read(tags="new.csv", preparation=kept)
    assert not again.x[:, 1:].any()
    assert any("no name is known to the model" in note for note in report.notes)
    with pytest.raises(GraphError, match="the model was trained with tags; pass tags='FILE'"):
        read(preparation=kept)
    plain, _ = read()
    with pytest.raises(GraphError, match="tags: the model was trained without tags"):
        read(tags="t.csv", preparation=plain.preparation)


def test_inductive_names_are_those_of_training_rows():
    graph, _ = read(tags="t.csv", inductive=True)
    assert graph.preparation.tags.categories == ("hill", "sea")
    assert graph.preparation.tags.high == 5
    assert graph.x[2].tolist() == [3, 0, 0]


def test_a_forged_vocabulary_is_refused(tmp_path):
    graph, _ = read(tags="t.csv")
    write_preparation(tmp_path, graph.preparation)
    file = tmp_path / "preparation.json"
    whole = json.loads(file.read_text())
    for change in (
        {"categories": []},
        {"categories": ["a", "a"]},
        {"low": None},
        {"name": 3},
        {"new": 1},
    ):
        file.write_text(json.dumps(whole | {"tags": whole["tags"] | change}))
        with pytest.raises(RunError, match="damaged"):
            read_preparation(tmp_path)


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ("page,keyword,count\na,sea,much\n", TableError, "column 'count': 'much' is not a number"),
        ("page,keyword,count\na,sea,1e300\n", TableError, "does not fit in a float32"),
        ("page,keyword,count\na,sea,3e38\na,sea,3e38\n", TableError, "add up to more than"),
        (
            "page,keyword\n8,sea\n9,sea\n",
            TableError,
            "2 rows name 2 unknown nodes, first '8' in row 1.*such as 'a'",
        ),
        ("page,keyword\n,sea\n", GraphError, "row 1: column 'page' is empty"),
        ("page,keyword\n", GraphError, "tags: has no rows"),
        ("page\na\n", GraphError, "a tag needs an id and a name"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(table, error, message):
    write("t.csv", table)
    with pytest.raises(error, match=message):
        read(tags="t.csv")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"tags": "t.csv", "tag_columns": "page"}, ParameterError, "tag_columns"),
        ({"tags": "t.csv", "tag_columns": "pag,keyword"}, GraphError, "no column 'pag'.*'page'"),
        ({"tag_columns": "page,keyword"}, GraphError, "tag_columns: there are no tags"),
        ({"tags": "t.csv", "features": "structural"}, GraphError, "'structural' leaves tags"),
        ({"tags": "t.csv"}, TableError, "3 different names; at most 2"),
    ],
)
def test_what_is_wrong_is_said(given, error, message, monkeypatch):
    monkeypatch.setattr(beside, "MOST_NAMES", 2)
    with pytest.raises(error, match=message):
        read(**given)


def test_strict_guesses_nothing():
    with pytest.raises(TableError, match="1 row names 1 unknown node"):
        read(tags="t.csv", strict=True)
    write("t.csv", "page,keyword,count\na,sea,1\nb,,1\nc,fog,\n")
    with pytest.raises(TableError) as error:
        read(tags="t.csv", strict=True)
    assert "row 2, column 'keyword' is missing" in str(error.value)
    assert "row 3, column 'count' is missing" in str(error.value)


def test_a_row_without_a_value_is_left_out():
    table = pyarrow.table({"page": ["a", "b"], "tag": ["x", "y"], "n": [None, 2.0]})
    pyarrow.parquet.write_table(table, "t.parquet")
    for file in ("t.parquet", "t.csv"):
        write("t.csv", "page,tag,n\na,x,\nb,y,2\n")
        graph, report = read(tags=file)
        assert graph.x[:, 1:].tolist() == [[0], [2], [0], [0]]
        assert "tags: 1 row has no value: left out" in report.notes


@pytest.mark.parametrize(
    ("columns", "identity", "found"),
    [
        ("page keyword", "page", ("page", "keyword", None)),
        ("keyword page", "page", ("page", "keyword", None)),
        ("x y", None, ("x", "y", None)),
        ("x y z", None, ("x", "y", "z")),
        ("x y z more", None, ("x", "y", None)),
        ("node name when count", None, ("node", "name", "count")),
        ("name tag", None, ("name", "tag", None)),
        ("Name instrument hours", "name", ("Name", "instrument", "hours")),
        ("keyword name", "name", ("name", "keyword", None)),
        ("id value name", None, ("id", "name", "value")),
    ],
)
def test_columns_are_guessed(columns, identity, found):
    source = Source("t", "t", dict.fromkeys(columns.split(), "VARCHAR"), untyped=True)
    assert beside.tag_columns(source, (), identity)[:3] == found


def test_check_and_python_take_them():
    counts, _ = check_tables("e.csv", TableOptions(nodes="n.csv", tags="t.csv", split="part"))
    assert counts["features"] == 4
    graph = read_tables("e.csv", "n.csv", tags="t.csv", ignore="part")
    assert graph.num_features == 4
