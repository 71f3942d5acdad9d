"""Labels: a number to predict; several per node, in flags, names, or cells with a separator."""

import numpy as np
import pyarrow
import pytest

from graphcl.errors import GraphError, ParameterError
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


PRICES = "id,f,price\n1,5,12.5\n2,6,\n3,7,NA\n4,8,-1\n5,9,80\n"


def test_a_column_with_fractions_is_a_number_unless_one_says_otherwise():
    graph, report = read(PRICES, label="price")
    assert graph.y.dtype == np.float64
    assert np.array_equal(graph.y, [12.5, np.nan, np.nan, -1, 80], equal_nan=True)
    assert (graph.num_classes, graph.class_names, report.class_names) == (0, (), ())
    said = "'price' is a number to predict, -1 to 80; 2 nodes without it; if it has classes, pass"
    assert any(said in note for note in report.notes)
    graph, report = read(PRICES, label="price", label_kind="classes")
    assert graph.y.tolist() == [1, -1, 3, 0, 2]
    assert report.class_names == ("-1", "12.5", "80", "NA")
    few = "id,f,rank\n1,5,1\n2,6,2\n3,7,2\n"
    assert read(few, label="rank")[0].y.dtype == np.int64
    assert read(few, label="rank", label_kind="number")[0].y.tolist() == [1.0, 2.0, 2.0]


def test_whole_numbers_of_which_many_differ():
    ages = "id,f,age\n" + "".join(f"{one},5,{18 + one}\n" for one in range(30))
    assert read(ages, label="age")[0].y.dtype == np.float64
    many = "id,f,age\n" + "".join(f"{one},5,{18 + one % 25}\n" for one in range(1000))
    graph, report = read(many, label="age")
    assert graph.num_classes == 25
    assert any("if it is a number to predict, pass label_kind='number'" in n for n in report.notes)
    numbers = "id,f,c\n" + "".join(f"{one},5,{one % 25}\n" for one in range(100))
    graph, report = read(numbers, label="c")  # class numbers
    assert graph.num_classes == 25
    assert not any("label_kind" in note for note in report.notes)
    texts = pyarrow.table({"id": [1, 2], "f": [1.0, 2], "v": ["1.5", "2.5"]})
    edges = pyarrow.table({"source": [1], "target": [2]})
    assert load_tables(edges, TableOptions(nodes=texts, label="v"))[0].class_names == ("1.5", "2.5")


def test_a_number_with_a_decimal_comma():
    table = 'id,f,p\n1,5,"1.169,50"\n2,6,"3,25"\n'
    assert read(table, label="p", decimal=",")[0].y.tolist() == [1169.5, 3.25]


def test_what_is_no_number_is_refused():
    with pytest.raises(GraphError, match=r"n.csv: row 2, column 'p': 'dear' is not a number"):
        read("id,f,p\n1,5,1.5\n2,6,dear\n", label="p", label_kind="number")
    with pytest.raises(
        ParameterError, match="label_kind must be classes, if a node may have several"
    ):
        read("id,f,p,q\n1,5,1.5,2\n2,6,3,4\n", label=("p", "q"), label_kind="number")
    with pytest.raises(GraphError, match="column 'p' has no values"):
        read("id,f,p\n1,5,\n2,6,\n", label="p", label_kind="number")


def test_nodes_that_only_edges_name_have_no_number():
    write("e.csv", "source,target\n1,9\n")
    write("n.csv", "id,f,p\n1,5,1.5\n2,6,2.5\n")
    options = TableOptions(nodes="n.csv", label="p", unknown_edges="add")
    y = load_tables("e.csv", options)[0].y
    assert np.array_equal(y, [1.5, 2.5, np.nan], equal_nan=True)


def test_a_number_of_one_type():
    write("e.csv", "person,house\n1,7\n2,8\n")
    write("p.csv", "id,f\n1,5\n2,6\n")
    write("h.csv", "id,f,price\n7,5,1.5\n8,6,2.5\n")
    nodes = {"person": "p.csv", "house": "h.csv"}
    options = TableOptions(nodes=nodes, edges={"person:owns:house": "e.csv"}, label="price")
    graph, _ = load_tables(None, options)
    assert graph.labelled_type == "house"
    assert graph.nodes["house"].y.tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("cells", "y", "names"),
    [
        (("0", "NA", "1", "nan"), [0, -1, 1, -1], ()),
        (("none", "x", "NA", "x"), [1, 2, 0, 2], ("NA", "none", "x")),
        (("007", "010", "", "007"), [0, 1, -1, 0], ("007", "010")),  # codes
    ],
)
def test_words_for_no_value_are_no_class_beside_numbers_and_codes_keep_their_zeros(cells, y, names):
    rows = "".join(f"{row},5,{cell}\n" for row, cell in enumerate(cells, 1))
    graph, report = read("id,f,c\n" + rows, label="c")
    assert graph.y.tolist() == y
    assert graph.class_names == names
    said = "'NA', 'none' in 'c' is a class; a node without a label has an empty cell"
    assert any(said in note for note in report.notes) == ("none" in cells)


def test_a_nan_of_a_typed_table_is_no_label():
    column = pyarrow.array([1.5, float("nan"), 2.5, 1.5])
    nodes = pyarrow.table({"id": [1, 2, 3, 4], "f": [1.0, 2, 3, 4], "c": column})
    edges = pyarrow.table({"source": [1], "target": [2]})
    graph, _ = load_tables(edges, TableOptions(nodes=nodes, label="c", label_kind="classes"))
    assert graph.y.tolist() == [0, -1, 1, 0]


def test_minus_one_is_no_label_and_that_is_said():
    graph, report = read("id,f,c\n1,5,-1\n2,6,1\n3,7,1\n4,8,-1\n", label="c")
    assert graph.y.tolist() == [-1, 0, 0, -1]
    said = "-1 in 'c' is no label: 2 nodes without one; if it is a class, give it a name"
    assert any(said in note for note in report.notes)


def test_classes_that_are_spelled_alike_are_said():
    _, report = read("id,f,c\n1,5,Art\n2,6,art \n3,7,Law\n4,8,Art\n", label="c")
    said = "nodes: classes in 'c' that differ in case or spaces alone: 'Art', 'art '"
    assert said in report.notes
    _, report = read("id,f,c\n1,5,Art\n2,6,Law\n", label="c")
    assert not any("alone" in note for note in report.notes)
