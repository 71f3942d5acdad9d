from graphcl.tabular.build import load_tables
from graphcl.tabular.options import TableOptions
from tests.tabular.conftest import write


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
