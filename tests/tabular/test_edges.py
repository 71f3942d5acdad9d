import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl import read_tables
from graphcl.errors import GraphError
from graphcl.tabular.build import load_tables
from graphcl.tabular.edges import MOST_RELATIONS
from graphcl.tabular.options import TableOptions
from graphcl.tabular.tables import open_tables
from tests.tabular.conftest import write


def opened(table, types, name="joins", **options):
    """A list of edges between types with these ids, and the numbers of its ends, in its order."""
    nodes = {kind: pyarrow.table({"id": ids}) for kind, ids in types.items()}
    edges = {name: pyarrow.table(table)}
    with open_tables(None, TableOptions(nodes=nodes, edges=edges, **options)) as tables:
        (found,) = tables.lists
        (relation,) = found.relations
        found.create_pairs(relation)
        numbers = found.duck.rows("SELECT u, v FROM pairs ORDER BY place")
        ids = {kind: one.node_ids() for kind, one in tables.nodes.items()}
    return found, relation, numbers, ids


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5)), min_size=1, max_size=30),
    st.permutations(range(9)),
    st.permutations(range(6)),
)
def test_ends_have_the_numbers_of_their_ids_in_the_order_of_the_list(pairs, first, second):
    types = {"a": [f"a{n}" for n in first], "b": [f"b{n}" for n in second]}
    table = {"x": [f"a{u}" for u, _ in pairs], "y": [f"b{v}" for _, v in pairs]}
    found, relation, numbers, _ = opened(table, types)
    assert relation.types == ("a", "b")
    assert found.weight is None
    np.testing.assert_array_equal(numbers, [[first.index(u), second.index(v)] for u, v in pairs])


def test_numbers_and_texts_are_compared_as_they_are_written():
    table = {"x": ["7", "8"], "y": ["p", "q"]}
    _, relation, numbers, _ = opened(table, {"a": [8, 7], "b": ["p", "q"]})
    assert relation.types == ("a", "b")
    assert numbers == [(1, 0), (0, 1)]


def test_columns_named_after_types_are_the_ends():
    table = {"day": [1, 2], "customer_id": [5, 6], "product": [1, 2]}
    found, relation, _, _ = opened(table, {"customers": [5, 6], "product": [1, 2, 5, 6]})
    assert found.columns == ("customer_id", "product")
    assert relation.types == ("customers", "product")


def test_too_many_relations_are_no_relations():
    count = MOST_RELATIONS + 1
    table = {"a": [0] * count, "b": [1] * count, "r": [f"r{n}" for n in range(count)]}
    with pytest.raises(GraphError, match="has 257 values"):
        opened(table, {"a": [0, 1]}, relation="r")


def test_added_ids_stay_numbers_or_become_texts():
    types, options = {"a": [0, 1, 2]}, {"name": "a:joins:a", "unknown_edges": "add"}
    _, _, numbers, ids = opened({"x": [0, 1, 9], "y": [7, 1, 2]}, types, **options)
    assert ids["a"].tolist() == [0, 1, 2, 7, 9]
    assert numbers == [(0, 3), (1, 1), (4, 2)]
    _, _, numbers, ids = opened({"x": ["0", "1", "9"], "y": ["2", "x", "1"]}, types, **options)
    assert ids["a"][:].tolist() == ["0", "1", "2", "9", "x"]
    assert numbers == [(0, 2), (1, 4), (3, 1)]
    _, _, _, ids = opened({"x": [0, 1], "y": [2, 3]}, types, **options)
    assert ids["a"] is None  # 0, 1, 2, 3, in order


NODES = {"author": "authors.csv", "paper": "papers.csv"}
# Rows are not in the order of targets; one pair of ends occurs twice.
WRITES = [
    ("ada", "p2", "3", "lead", "2", "x"),
    ("alan", "p1", "1", "lead", "1", "x"),
    ("ada", "p1", "7", "help", "4", "y"),
    ("grace", "p3", "2", "lead", "5", "y"),
    ("ada", "p2", "5", "help", "6", "y"),
]


@pytest.fixture(autouse=True)
def _tables(_here):
    write("authors.csv", "name,age\nada,36\nalan,41\ngrace,85\n")
    write("papers.csv", "id,pages\np1,4\np2,7\np3,9\n")
    rows = [",".join(row) for row in WRITES]
    write("writes.csv", "\n".join(["author,paper,share,role,hours,label", *rows]) + "\n")


def read(edges=None, **options):
    return load_tables(
        None, TableOptions(nodes=NODES, edges=edges or {"writes": "writes.csv"}, **options)
    )


def rows_of(graph, name="writes"):
    """Ends by id, weight and features of every edge, sorted."""
    one = graph.relation(name)
    ends = [graph.type(kind).node_ids for kind in (one.source, one.target)]
    weights = np.ones(len(one.indices)) if one.edge_weight is None else one.edge_weight
    pairs = one.edge_index().T.tolist()
    return sorted(
        (ends[0][u], ends[1][v], float(w), tuple(x))
        for (u, v), w, x in zip(pairs, weights, one.edge_features.tolist(), strict=True)
    )


def test_columns_become_features_of_their_own_edge_and_this_is_said():
    graph, report = read()
    expected = sorted(
        (a, p, 1.0, (float(share), float(role == "help"), float(role == "lead"), float(hours)))
        for a, p, share, role, hours, _ in WRITES
    )
    assert rows_of(graph) == expected  # each row is an edge of its own
    prepared = graph.relation("writes").preparation
    assert prepared.features == ["share", "role=help", "role=lead", "hours"]
    notes = "\n".join(report.notes)
    assert "edges writes: 4 features of each edge: share, role=help, role=lead, hours" in notes
    fates = {fate.column: fate.became for fate in report.relations["author:writes:paper"]}
    assert fates["share"] == "a number"
    assert fates["label"] == "named like a label: left out"
    assert report.to_json()["relations"]["author:writes:paper"][0]["column"] == "share"


def test_a_weight_stays_a_weight_and_options_name_columns_of_a_relation():
    graph, _ = read(weight="share", ignore=["writes=hours"], one_hot="label")
    expected = sorted(
        (
            a,
            p,
            float(share),
            (float(r == "help"), float(r == "lead"), float(x == "x"), float(x == "y")),
        )
        for a, p, share, r, _, x in WRITES
    )
    assert rows_of(graph) == expected
    graph, _ = read(ignore=["share", "role", "hours", "author=age"])
    assert graph.relation("writes").edge_features is None
    assert graph.type("author").x is None
    assert graph.relation("writes").num_edges == 4  # without features they are merged again
    with pytest.raises(GraphError, match=r"ignore: no column 'writes=hour'"):
        read(ignore=["writes=hour"])
    with pytest.raises(GraphError, match="did you mean 'writes'"):
        read(ignore=["write=hours"])


def test_each_relation_of_one_list_has_the_columns_that_it_has_values_in():
    write(
        "edges.csv",
        "what,a,b,share,since\nwrites,ada,p1,2,\ncites,p1,p2,,1950\nwrites,alan,p1,4,\n"
        "cites,p3,p1,,1960\n",
    )
    graph = read_tables("edges.csv", nodes=NODES, relation="what")
    assert rows_of(graph) == [("ada", "p1", 1, (2,)), ("alan", "p1", 1, (4,))]
    assert graph.relation("writes").preparation.features == ["share"]
    assert rows_of(graph, "cites") == [("p1", "p2", 1, (1950,)), ("p3", "p1", 1, (1960,))]


def test_a_directed_graph_has_them_and_a_plain_one_has_not():
    write("follows.csv", "source,target,days\n1,2,5\n2,1,6\n3,2,7\n")
    directed = read_tables("follows.csv", directed=True)
    assert rows_of(directed, "to") == [(1, 2, 1, (5,)), (2, 1, 1, (6,)), (3, 2, 1, (7,))]
    write("people.csv", "id,age\n3,5\n2,6\n1,7\n")
    assert read_tables("follows.csv", nodes="people.csv").num_edges == 2


def test_new_tables_are_prepared_as_the_old_ones():
    graph, _ = read()
    prepared = {"author:writes:paper": graph.relation("writes").preparation}
    write(
        "writes.csv",
        "hours,author,paper,role,share,else\n,ada,p3,boss,1,z\n3,alan,p1,lead,2,z\n",
    )
    again, report = read(edge_preparations=prepared)
    mean = np.float32(18 / 5)  # of the old hours
    assert rows_of(again) == [("ada", "p3", 1, (1, 0, 0, mean)), ("alan", "p1", 1, (2, 0, 1, 3))]
    notes = "\n".join(report.notes)
    assert "edges writes: 1 category is new to the model and encoded as zeros: 'boss'" in notes
    assert read(edge_preparations={})[0].relation("writes").edge_features is None
    write("writes.csv", "author,paper\nada,p3\n")
    with pytest.raises(GraphError, match="has no column 'share', which the model was trained on"):
        read(edge_preparations=prepared)


def test_what_is_wrong_with_a_column_is_said_with_a_remedy():
    write("writes.csv", "author,paper,share\nada,p1,2\nalan,p2,\ngrace,p3,\n")
    with pytest.raises(GraphError, match=r"edges writes: .*'share' is missing") as caught:
        read()
    assert caught.value.fix == (("missing", "mean"),)
    assert rows_of(read(missing="mean")[0])[1][3] == (2,)
    write("writes.csv", "author,paper,share\nada,p1,2\nalan,p2,3\ngrace,p3,4x\n")
    with pytest.raises(GraphError, match="'4x' is not a number") as caught:
        read()
    assert caught.value.fix == (("ignore", "writes=share"),)
    assert read(ignore="writes=share")[0].relation("writes").edge_features is None
