import pyarrow
import pyarrow.parquet
import pytest

from graphcl.errors import TableError
from graphcl.tabular.build import load_tables, read_tables
from graphcl.tabular.options import TableOptions
from tests.tabular.conftest import STRUCTURAL, write


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (["5", "9", "7"], [5, 7, 9]),
        (["0", "1", "2"], None),
        (["007", "7", "08"], ["007", "08", "7"]),
        (["9223372036854775807", "0", "-3"], [-3, 0, 2**63 - 1]),
        (["9223372036854775808", "1", "2"], ["1", "2", "9223372036854775808"]),
        (["1e3", "1", "2"], ["1", "1e3", "2"]),
        ([" a", "a", "Ωß 漢"], [" a", "a", "Ωß 漢"]),
        (['q"q', "x,y", "NA"], ["NA", 'q"q', "x,y"]),
    ],
)
def test_ids_of_text_files_stay_as_they_are_written(written, expected):
    def cell(text):
        return '"' + text.replace('"', '""') + '"'

    a, b, c = map(cell, written)
    write("e.csv", f"source,target\n{a},{b}\n{b},{c}\n")
    graph = read_tables("e.csv", **STRUCTURAL)
    assert (graph.node_ids if expected is None else graph.node_ids.tolist()) == expected


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        ([2**63 + 5, 1, 2], pyarrow.uint64()),
        ([7, 5, 6], pyarrow.int16()),
        (["7", "007", "x y"], pyarrow.string()),
    ],
)
def test_ids_of_typed_files_keep_their_type_and_the_tables_order(ids, kind):
    column = pyarrow.array(ids, type=kind)
    pyarrow.parquet.write_table(pyarrow.table({"id": column, "f": [1.0, 2.0, 3.0]}), "n.parquet")
    ends = pyarrow.table({"source": column.take([0, 1]), "target": column.take([1, 2])})
    pyarrow.parquet.write_table(ends, "e.parquet")
    graph = read_tables("e.parquet", "n.parquet")
    assert graph.node_ids.tolist() == ids
    assert graph.x[:, 0].tolist() == [1, 2, 3]


def test_integer_ids_of_edges_match_text_ids_of_nodes():
    pyarrow.parquet.write_table(pyarrow.table({"id": ["1", "2"], "f": [1, 2]}), "n.parquet")
    write("e.csv", "source,target\n1,2\n")
    graph = read_tables("e.csv", "n.parquet")
    assert graph.node_ids.tolist() == ["1", "2"]
    assert graph.num_edges == 1


def test_spaces_around_ids_are_kept_and_reported():
    write("e.csv", "source, target\n1, 2\n2, 3\n")
    graph, report = load_tables("e.csv", TableOptions(features="structural"))
    assert graph.node_ids.tolist() == [" 2", " 3", "1", "2"]
    assert report.columns == {"source": "source", "target": " target"}
    assert "2 ids begin or end with a space, which is kept" in "\n".join(report.notes)


def test_columns_are_found_by_name_whatever_their_place():
    write("e.csv", "weight,TO,when,From\n2,b,x,a\n")
    graph, report = load_tables("e.csv", TableOptions(features="structural"))
    assert report.columns == {"source": "From", "target": "TO"}
    assert "--weight weight would use it" in "\n".join(report.notes)
    graph, report = load_tables(
        "e.csv", TableOptions(features="structural", weight="weight", source_column="when")
    )
    assert report.columns["source"] == "when"
    assert graph.edge_weight.tolist() == [2, 2]


def test_columns_that_predict_wrote_are_no_features():
    write("e.csv", "source,target\n1,2\n")
    write("n.csv", "id,f,given,p:a,probability,Predicted\n1,1,2,3,1,1\n2,3,4,5,0,1\n")
    with pytest.raises(TableError) as caught:
        read_tables("e.csv", "n.csv")
    names = ("given", "p:a", "probability", "Predicted")
    assert len(caught.value.problems) == 4
    assert "'p:a' would become a feature, but is named like a prediction" in str(caught.value)
    assert caught.value.fix == tuple(word for name in names for word in ("--ignore", name))
    write("n.csv", "id,probability\n1,1\n2,3\n")
    assert read_tables("e.csv", "n.csv").x.tolist() == [[1], [3]]
