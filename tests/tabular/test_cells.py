"""Decimal marks and forms of dates: said, guessed where one alone fits, and kept in the run."""

from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from graphcl.cli.main import run
from graphcl.errors import GraphError, ParameterError, TableError
from graphcl.tabular.build import build_store, load_tables, read_tables
from graphcl.tabular.kinds import prepare_rows
from graphcl.tabular.options import TableOptions
from graphcl.tabular.preparation import read_preparation
from tests.tabular.conftest import write
from tests.tabular.test_delta import read_new

NODES = "id;price;day\n1;1.169,00;20/03/2016\n2;2.000,50;21/03/2016\n3;-3,25;2/3/2016\n"
EDGES = 'source,target,w\n1,2,"1,5"\n2,3,"1.000,5"\n'


def tables(nodes=NODES, **options):
    write("e.csv", EDGES)
    write("n.csv", nodes)
    return load_tables("e.csv", TableOptions(nodes="n.csv", **options))


def days(graph, column=1):
    return np.round(graph.x[:, column] * 365.2425).tolist()


def test_where_all_values_agree_it_is_guessed_and_said():
    graph, report = tables()
    assert graph.x[:, 0].tolist() == [1169, 2000.5, -3.25]
    assert days(graph) == [18, 19, 0]
    said = "\n".join(report.notes)
    assert "column 'price': numbers with the decimal mark ','" in said
    assert "column 'day': dates written '%d/%m/%Y'" in said
    american = NODES.replace("1.169,00", "1,169.00").replace("2.000,50", "2000.5")
    american = american.replace("-3,25", "-3.25").replace("20/03", "03/20").replace("21/03", "3/21")
    graph, report = tables(american)
    assert graph.x[:, 0].tolist() == [1169, 2000.5, -3.25]
    assert "column 'day': dates written '%m/%d/%Y'" in "\n".join(report.notes)


def test_what_can_be_read_in_two_ways_is_refused_and_said_by_an_option():
    both = "id;price;day\n1;1,169;02/03/2016\n2;2,000;04/03/2016\n3;3,250;01/02/2016\n"
    with pytest.raises(TableError) as caught:
        tables(both)
    assert "a decimal comma, or thousands? Say it: decimal=',' or decimal='.'" in str(caught.value)
    assert "date_format='%d/%m/%Y' or date_format='%m/%d/%Y'" in str(caught.value)
    assert "correct it" not in str(caught.value)
    graph, _ = tables(both, decimal=",", date_format="%d/%m/%Y")
    assert graph.x[:, 0].tolist() == pytest.approx([1.169, 2, 3.25])
    assert days(graph) == [30, 32, 0]
    graph, _ = tables(both, decimal=".", date_format="%m/%d/%Y")
    assert graph.x[:, 0].tolist() == [1169, 2000, 3250]
    assert days(graph) == [32, 92, 0]


def test_nothing_is_guessed_in_strict_reading_and_the_proposal_works(capsys):
    with pytest.raises(TableError) as caught:
        tables(strict=True)
    assert caught.value.fix == (("decimal", ","), ("date_format", "%d/%m/%Y"))
    graph, _ = tables(strict=True, **dict(caught.value.fix))
    assert graph.num_features
    assert run(["check", "e.csv", "--nodes", "n.csv", "--strict"]) == 2
    words = capsys.readouterr().err.partition("try: graphcl ")[2].split()
    assert words[-4:] == ["--decimal", ",", "--date-format", "%d/%m/%Y"]
    assert run(words) == 0


def test_numbers_and_dates_that_are_not_as_said():
    with pytest.raises(TableError, match=r"row 2, column 'a': '2.5' is not a number with the"):
        tables("id;a\n1;1\n2;2.5\n3;3\n", decimal=",")
    with pytest.raises(TableError, match="not a date such as 2016-03-20; say how its dates are"):
        tables("id;a;b\n1;1;x\n2;2;y\n3;3;z\n", date="b")
    for wrong in ({"decimal": "x"}, {"date_format": "day"}, {"date_format": "%q"}):
        with pytest.raises(ParameterError):
            tables(**wrong)
    with pytest.raises(GraphError, match="'1,5'; weights are positive numbers; with decimal comm"):
        tables(weight="w")


def test_weights_and_tags_with_decimal_commas():
    graph, _ = tables(weight="w", decimal=",")
    assert sorted(graph.edge_weight.tolist()) == [1.5, 1.5, 1000.5, 1000.5]
    write("t.csv", "id;name;value\n1;x;0,5\n2;x;1,5\n3;y;2\n")
    tags = TableOptions(tags="t.csv", decimal=",")
    assert load_tables("e.csv", tags)[0].x[:].tolist() == [[0.5, 0], [1.5, 0], [0, 2]]
    typed = read_tables(
        {"to": "e.csv"}, {"thing": "n.csv"}, weight="to=w", decimal=",", date_format="%d/%m/%Y"
    )
    (relation,) = typed.relations.values()
    assert sorted(relation.edge_weight.tolist()) == [1.5, 1000.5]
    assert typed.nodes["thing"].x[:, 0].tolist() == [1169, 2000.5, -3.25]


def test_texts_of_typed_tables_are_read_as_an_option_says():
    frame = pandas.DataFrame(
        {"id": [1, 2, 3], "a": ["1,5", "2", None], "b": ["20/03/2016", "1/2/2016", "1/2/2016"]}
    )
    pyarrow.parquet.write_table(pyarrow.Table.from_pandas(frame), "n.parquet")
    write("e.csv", EDGES)
    for nodes in (frame, "n.parquet"):
        graph = read_tables("e.csv", nodes, decimal=",", missing="zero")
        assert graph.x[:, 0].tolist() == [1.5, 2, 0]
        assert days(graph) == [48, 0, 0]


def test_later_tables_are_read_as_in_training():
    graph, _ = tables()
    build_store("e.csv", TableOptions(nodes="n.csv"), out=Path("store"))
    kept = read_preparation(Path("store/nodes-0"))
    assert [(one.decimal, one.date_format) for one in kept.columns] == [
        (",", ""),
        ("", "%d/%m/%Y"),
    ]
    # Alone, these values could be read in two ways.
    write("new.csv", "id;price;day\n7;1,169;02/03/2016\n")
    new, _, _ = read_new(
        None, TableOptions(nodes="new.csv", preparation=kept), width=graph.num_features
    )
    assert new.x[0, 0] == pytest.approx(1.169)
    assert new.x[0, 1] == 0
    row = {"price": "1,169", "day": "02/03/2016"}
    np.testing.assert_allclose(prepare_rows([row], kept, graph.num_features), new.x, rtol=1e-6)
    table = pyarrow.table({"id": [7], "price": [1.169], "day": ["02/03/2016"]})
    new, _, _ = read_new(
        None, TableOptions(nodes=table, preparation=kept), width=graph.num_features
    )
    assert new.x[0, 0] == pytest.approx(1.169)
    write("new.csv", "id;price;day\n7;1169.5;2016-03-02\n")
    with pytest.raises(TableError) as caught:
        read_new(None, TableOptions(nodes="new.csv", preparation=kept), width=graph.num_features)
    assert "'1169.5' is not a number; in training numbers were written 1,5" in str(caught.value)
    assert "in training dates were written %d/%m/%Y" in str(caught.value)


def test_columns_of_edges_are_read_in_the_same_way():
    write("e.csv", 'source,target,amount,day\n1,2,"1,5",20/03/2016\n2,3,"2,5",1/2/2016\n')
    write("n.csv", "id,f\n1,5\n2,6\n3,7\n")
    graph = read_tables({"pays": "e.csv"}, {"person": "n.csv"})
    (relation,) = graph.relations.values()
    assert relation.edge_features[:, 0].tolist() == [1.5, 2.5]
    assert [one.decimal for one in relation.preparation.columns] == [",", ""]


def test_a_plain_table_is_as_before():
    graph, report = tables("id,a,b\n1,1.5,2016-03-20\n2,2,2016-03-21\n3,7,2016-03-22\n")
    assert not any("decimal" in note or "written" in note for note in report.notes)
    assert graph.x[:, 0].tolist() == [1.5, 2, 7]
    assert days(graph) == [0, 1, 2]


def test_a_point_that_may_part_thousands_is_said():
    nodes = "id,a,b,c\n1,30,1.125,0.500\n2,1.020,1.250,1.020\n3,990,2.400,7\n"
    graph, report = tables(nodes)
    assert np.allclose(graph.x[:, 0], [30, 1.02, 990])
    said = "n.csv: column 'a': 1.020 is read as a number with a decimal point; if it parts "
    assert [note for note in report.notes if "parts" in note] == [f"{said}thousands: decimal=','"]
    graph, _ = tables("id,a\n1,30\n2,1.020\n3,990\n", decimal=",")
    assert graph.x[:, 0].tolist() == [30, 1020, 990]


def test_codes_that_are_read_as_numbers_are_said():
    nodes = "id,zip,age,size\n1,01234,5,00.5\n2,90210,6,1.5\n3,560,7,2\n"
    graph, report = tables(nodes)
    assert graph.x[:, 0].tolist() == [1234, 90210, 560]
    said = "n.csv: column 'zip': 01234 is read as a number; if these are codes: one_hot=['zip']"
    assert [note for note in report.notes if "codes" in note] == [said]
    _, report = tables(nodes, one_hot=("zip",))
    assert not any("codes" in note for note in report.notes)
    assert report.column_features[:2] == ["zip=01234", "zip=560"]


@pytest.mark.parametrize("kind", ["numbers", "gaps", "categories"])
def test_a_file_may_have_hundreds_of_columns_of_texts(kind):
    rng = np.random.default_rng(0)
    made = {
        "numbers": rng.integers(0, 9, (30, 260)),
        "gaps": np.where(rng.random((30, 260)) < 0.3, "n/a", rng.integers(0, 9, (30, 260))),
        "categories": rng.choice(["red", "blue"], (30, 260)),
    }[kind]
    table = pandas.DataFrame(made).add_prefix("k")
    table.insert(0, "id", range(30))
    table.to_csv("n.csv", index=False)
    write("e.csv", "source,target\n" + "".join(f"{i},{(i + 1) % 30}\n" for i in range(30)))
    graph, _ = load_tables("e.csv", TableOptions(nodes="n.csv", missing="zero"))
    expected = {"numbers": made, "gaps": np.where(made == "n/a", "0", made)}.get(kind)
    if expected is None:
        assert graph.num_features == 520
    else:
        np.testing.assert_array_equal(graph.x, expected.astype(np.float32))
