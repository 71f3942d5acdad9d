import numpy as np
import pytest
import scipy.sparse

from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.structural import FEATURE_NAMES
from graphcl.tabular import originals as module
from graphcl.tabular.build import load_tables
from graphcl.tabular.options import TableOptions
from graphcl.tabular.originals import originals

HEAD = "who,age,pay,town,said,since,took,nick,verdict\n"
CELLS = [
    'ä1,31,"1.250,50",Köln,one two words here,2020-02-03,2 days,,yes',
    'b2,,"7,25",Köln,other words said here,2021-05-06,3 hours,Bo,no',
    "c3,44,,Łódź,,2019-01-01,1 day,Cy,",
    'd4,50,"2.000,00",,words again and again,2020-02-29,5 days,Di,yes',
    'e5,31,"3,00",Köln,one more text is here,2024-12-31,6 days,Ed,no',
]


@pytest.fixture
def options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "n.csv").write_text(HEAD + "\n".join(CELLS), encoding="utf-8")
    (tmp_path / "e.csv").write_text("a,b\nä1,b2\nb2,c3\nd4,e5\n", encoding="utf-8")
    given = {"nodes": "n.csv", "id_column": "who", "label": "verdict", "text": "said"}
    return TableOptions(**given, one_hot="town", ignore="nick", missing="mean")


def by_name(columns):
    return {one.name: one for one in columns}


def test_cells_are_those_of_the_table_with_columns_that_are_no_features(options):
    graph, _ = load_tables("e.csv", options)
    found = by_name(originals(graph.only_type))
    names = ["age", "pay", "town", "said", "since", "took", "nick", "label"]
    assert list(found) == names
    for name, kind, cells in (
        ("age", "number", [31, None, 44, 50, 31]),
        ("pay", "number", [1250.5, 7.25, None, 2000, 3]),
        ("took", "number", [2, 0.125, 1, 5, 6]),
        ("town", "category", ["Köln", "Köln", "Łódź", None, "Köln"]),
        ("nick", "text", [None, "Bo", "Cy", "Di", "Ed"]),
        ("label", "category", ["yes", "no", None, "yes", "no"]),
    ):
        assert found[name].kind == kind
        values = [None if one != one else one for one in found[name].values.tolist()]
        assert values == cells
    assert [found["since"].text(row) for row in (0, 3)] == ["2020-02-03", "2020-02-29"]
    assert [found["pay"].text(row) for row in range(3)] == ["1,250.5", "7.25", ""]
    assert found["said"].text(2) == ""
    np.testing.assert_array_equal(graph.only_type.x[:, 0], [31, 39, 44, 50, 31])  # filled


def test_nodes_without_a_row_have_empty_cells_and_one_row_of_several_counts(tmp_path):
    path, edges = tmp_path / "n.csv", tmp_path / "e.csv"
    path.write_text("id,v,number\n7,a,5\n8,b,6\n7,c,7\n", encoding="utf-8")
    edges.write_text("source,target\n7,8\n8,9\n")
    for keep, cell, number in (("first", "a", 5), ("last", "c", 7)):
        how = {"duplicates": keep, "unknown_edges": "add", "ignore": "v"}
        graph, _ = load_tables(str(edges), TableOptions(nodes=str(path), **how, features="both"))
        found = by_name(originals(graph.only_type))
        row = graph.only_type.rows([7, 8, 9])
        assert found["v"].values[row].tolist() == [cell, "b", None]
        assert found["number"].text(row[0]) == str(number)
        structural = [item for one in originals(graph.only_type) for item in one.items]
        assert set(structural) == set(FEATURE_NAMES)


def test_too_many_cells_are_not_kept_and_features_take_their_place(options, monkeypatch):
    monkeypatch.setattr(module, "MOST_CELLS", 30)
    graph, _ = load_tables("e.csv", options)
    assert graph.only_type.cells == ()
    flags, numbers, _ = originals(graph.only_type)
    assert {"town=Köln", "town=Łódź", "age", "pay"} <= {*flags.items, *numbers.items}


def test_features_without_columns_are_flags_or_numbers():
    random = np.random.default_rng(0)
    x = np.concatenate([random.normal(size=(40, 2)), random.random((40, 3)) < 0.2], axis=1)
    edges = np.array([[0, 1], [1, 2]])
    flags, numbers = originals(Graph.from_edge_index(edges, x).only_type)
    assert flags.items == ("feature 2", "feature 3", "feature 4")
    assert numbers.items == ("feature 0", "feature 1")
    np.testing.assert_array_equal(flags.values.toarray(), x[:, 2:] != 0)
    np.testing.assert_allclose(numbers.values, x[:, :2], rtol=1e-6)
    (only,) = originals(Graph.from_edge_index(edges, scipy.sparse.csr_array(x)).only_type)
    assert (only.kind, len(only.items)) == ("flags", 5)
    assert originals(Nodes("node", 3)) == []


def test_features_that_fill_the_memory_are_left_out(monkeypatch):
    graph = Graph.from_edge_index(np.array([[0], [1]]), np.eye(3))
    assert len(originals(graph.only_type)) == 1
    monkeypatch.setattr(module, "MOST_VALUES", 8)
    assert originals(graph.only_type) == []


def test_labels_and_degrees():
    edges, names = np.array([[0, 1], [1, 2]]), ("a", "b")
    graph = Graph.from_edge_index(edges, np.eye(3), y=np.array([1, -1, 0]), class_names=names)
    _, label = originals(graph.only_type)
    assert label.values.tolist() == ["b", None, "a"]
    nodes = Nodes("node", 2, y=np.array([[1, 0], [-1, -1]]), degree=np.array([4, 1]))
    flags, degree = originals(nodes)
    assert flags.items == ("label = 0", "label = 1")
    assert flags.values.toarray().tolist() == [[True, False], [False, False]]
    assert degree.values.tolist() == [4, 1]
