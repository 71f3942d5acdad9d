"""Several labels per node: columns of flags, columns of names, and cells with a separator."""

import pyarrow
import pytest

from graphcl.errors import GraphError
from graphcl.tabular.build import load_tables
from graphcl.tabular.options import TableOptions
from tests.tabular.conftest import write


def read(text, **options):
    write("e.csv", "source,target\n1,2\n")
    write("n.csv", text)
    return load_tables("e.csv", TableOptions(nodes="n.csv", **options))


def test_repeated_labels_are_labels_and_none_is_a_feature():
    table = "id,f,y0,y1,y2\n1,5,1,0,1\n2,6,0,0,0\n3,7,true,1,\n"
    graph, report = read(table, label=("y0", "y1", "y2"))
    assert graph.y.tolist() == [[1, 0, 1], [0, 0, 0], [1, 1, 0]]
    assert graph.class_names == report.class_names == ("y0", "y1", "y2")
    assert report.column_features == ["f"]
    assert any("3 labels per node: y0, y1, y2; 1 node with none" in note for note in report.notes)


def test_a_separator_and_columns_of_names_give_the_union():
    table = "id,f,a,b\n1,5,L0|L11,x\n2,6,L2,\n3,7,,L2| L0 \n"
    graph, _ = read(table, label=("a", "b"), label_separator="|")
    assert graph.class_names == ("L0", "L11", "L2", "x")
    assert graph.y.tolist() == [[1, 1, 0, 1], [0, 0, 1, 0], [1, 0, 1, 0]]
    graph, _ = read("id,f,a,b\n1,5,10,9\n2,6,9,9\n3,7,2,\n", label=("a", "b"))
    assert graph.class_names == ("2", "9", "10")
    assert graph.y.tolist() == [[0, 1, 1], [0, 1, 0], [1, 0, 0]]


def test_cells_that_seem_to_hold_several_labels_are_pointed_out():
    table = "id,f,a\n1,5,L0|L1\n2,6,L1|L2\n3,7,L0|L2\n4,8,L2|L1\n"
    _, report = read(table, label="a")
    assert any("label_separator='|'" in note for note in report.notes)
    _, report = read("id,f,a\n1,5,x\n2,6,y\n3,7,x\n", label="a")
    assert not any("label_separator" in note for note in report.notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": ("y", "z")}, "no column 'z'"),
        ({"label": ("g", "h"), "ignore": ("y",)}, "has no values"),
        ({"label_separator": "|", "ignore": ("y",)}, "there are no labels; pass label"),
    ],
)
def test_wrong_labels(options, message):
    with pytest.raises(GraphError, match=message):
        read("id,f,y,g,h\n1,5,1,,\n2,6,0,,\n", **options)


def test_empty_cells_of_several_labels_are_an_unlabelled_node():
    table = "id,f,a\n1,5,x|y\n2,6,\n3,7,y\n4,8, | \n"
    graph, report = read(table, label="a", label_separator="|")
    assert graph.y.tolist() == [[1, 1], [-1, -1], [0, 1], [-1, -1]]
    assert any("x, y; 2 nodes without a label" in note for note in report.notes)
    flags = "id,f,p,q\n1,5,1,0\n2,6,,\n3,7,0,0\n4,8,-1,-1\n5,9,,1\n6,9,NaN,nan\n"
    graph, report = read(flags, label=("p", "q"))
    assert graph.y.tolist() == [[1, 0], [-1, -1], [0, 0], [-1, -1], [0, 1], [-1, -1]]
    notes = " ".join(report.notes)
    assert "p, q; 1 node with none of them; 3 nodes without a label" in notes


def test_lists_are_several_labels_and_an_empty_list_is_none_of_them():
    labels = pyarrow.array([["x", "y"], [], None, ["y"]], pyarrow.list_(pyarrow.string()))
    nodes = pyarrow.table({"id": [1, 2, 3, 4], "f": [1.0, 2, 3, 4], "a": labels})
    edges = pyarrow.table({"source": [1], "target": [2]})
    graph, _ = load_tables(edges, TableOptions(nodes=nodes, label="a"))
    assert graph.class_names == ("x", "y")
    assert graph.y.tolist() == [[1, 1], [0, 0], [-1, -1], [0, 1]]


def test_nodes_that_only_edges_name_have_none_of_several_labels():
    write("e.csv", "source,target\n1,9\n")
    write("n.csv", "id,f,p,q\n1,5,1,0\n2,6,0,1\n")
    options = TableOptions(nodes="n.csv", label=("p", "q"), unknown_edges="add")
    assert load_tables("e.csv", options)[0].y.tolist() == [[1, 0], [0, 1], [-1, -1]]
