"""Tables of several types of nodes to a typed graph."""

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from graphcl import Graph, read_tables
from graphcl.errors import GraphError, TableError
from graphcl.tabular.build import load_tables
from graphcl.tabular.options import TableOptions
from tests.tabular.conftest import write

AUTHORS = "name,age,country\nada,36,uk\nalan,41,uk\ngrace,85,us\n"
PAPERS = "id,pages,year\np1,4,1843\np2,7,1936\np3,9,1959\n"
LABELLED = "id,pages,year,topic,part\np1,4,1843,a,train\np2,7,1936,b,val\np3,9,1959,b,test\n"
TYPES = {"author": "authors.csv", "paper": "papers.csv"}
RELATIONS = {"writes": "writes.csv", "cites": "cites.csv"}


@pytest.fixture(autouse=True)
def _tables(_here):
    write("authors.csv", AUTHORS)
    write("papers.csv", PAPERS)
    write("writes.csv", "author,paper\nada,p1\nalan,p2\ngrace,p3\nada,p1\n")
    write("cites.csv", "from,to\np2,p1\np3,p2\n")


def edges_by_id(graph, name):
    """The edges of a relation as pairs of ids, with repetitions."""
    relation = graph.relation(name)
    ends = [graph.type(kind).node_ids for kind in (relation.source, relation.target)]
    names = [range(10**6) if ids is None else ids.tolist() for ids in ends]
    return sorted((names[0][u], names[1][v]) for u, v in relation.edge_index().T.tolist())


def refused(positional=None, **options):
    with pytest.raises(GraphError) as caught:
        load_tables(positional, TableOptions(**options))
    return caught.value


def test_tables_become_types_and_relations_and_all_that_is_guessed_is_said():
    write("papers.csv", LABELLED)
    graph, report = load_tables(
        None, TableOptions(nodes=TYPES, edges=RELATIONS, label="topic", split="part")
    )
    assert isinstance(graph, Graph)
    assert list(graph.relations) == [("author", "writes", "paper"), ("paper", "cites", "paper")]
    assert edges_by_id(graph, "writes") == [("ada", "p1"), ("alan", "p2"), ("grace", "p3")]
    assert edges_by_id(graph, "cites") == [("p2", "p1"), ("p3", "p2")]
    author, paper = graph.type("author"), graph.type("paper")
    np.testing.assert_array_equal(author.x, [[36, 1, 0], [41, 1, 0], [85, 0, 1]])
    np.testing.assert_array_equal(paper.x, [[4, 1843], [7, 1936], [9, 1959]])
    assert (author.y, paper.y.tolist(), paper.class_names) == (None, [0, 1, 1], ("a", "b"))
    assert paper.test_mask.tolist() == [False, False, True]
    assert list(author.preparation.features) == ["age", "country=uk", "country=us"]
    notes = "\n".join(report.notes)
    assert "edges writes: writes.csv: 'author' → 'paper' (guessed by name)" in notes
    assert "3 edges author → paper (guessed: 'author': all 3 ids are author's;" in notes
    assert "edges writes: 1 repeated row: merged" in notes
    assert graph.relation("writes").edge_features is None
    assert [fate.became for fate in report.types["author"].fates][:2] == ["the ids", "a number"]


def test_read_tables_takes_tables_in_memory_and_files_of_any_kind():
    pyarrow.parquet.write_table(
        pyarrow.table({"id": ["p1", "p2", "p3"], "pages": [4.0, 7.0, 9.0]}), "papers.parquet"
    )
    authors = pyarrow.table({"name": ["ada", "alan", "grace"], "age": [36, 41, 85]})
    edges = {("author", "writes", "paper"): pyarrow.table({"a": ["ada"], "b": ["p3"]})}
    graph = read_tables(edges=edges, nodes={"author": authors, "paper": Path("papers.parquet")})
    assert edges_by_id(graph, "writes") == [("ada", "p3")]
    plain = read_tables({"source": [1, 2], "target": [2, 3]}, features="structural")
    assert plain.num_edges == 2  # a dictionary of lists is still one table
    with pytest.raises(GraphError, match="edges are missing"):
        read_tables(nodes="papers.csv")


def test_weights_are_those_of_the_lists_that_have_them():
    write("writes.csv", "author,paper,share\nada,p1,2\nalan,p2,1\ngrace,p3,1\nada,p1,3\n")
    options = {"nodes": TYPES, "edges": RELATIONS}
    graph, report = load_tables(None, TableOptions(**options, weight="share"))
    assert graph.relation("writes").edge_weight.tolist() == [5, 1, 1]
    assert graph.relation("cites").edge_weight is None
    assert "edges writes: 1 repeated row: weights added" in report.notes
    assert "no list of edges has the column 'cost'" in str(refused(**options, weight="cost"))


def test_a_column_names_the_relations_of_one_list():
    write("edges.csv", "what,a,b\nwrites,ada,p1\ncites,p1,p2\nwrites,alan,p1\n")
    graph, report = load_tables("edges.csv", TableOptions(nodes=TYPES, relation="what"))
    assert edges_by_id(graph, "writes") == [("ada", "p1"), ("alan", "p1")]
    assert list(graph.relations) == [("paper", "cites", "paper"), ("author", "writes", "paper")]
    assert "edges: 'what' names 2 relations: cites, writes" in report.notes
    one = read_tables("edges.csv", relation="what")  # all nodes are of one type
    assert list(one.relations) == [("node", "cites", "node"), ("node", "writes", "node")]
    assert sorted(one.type("node").node_ids.tolist()) == ["ada", "alan", "p1", "p2"]
    assert "no column 'kind'" in str(refused("edges.csv", nodes=TYPES, relation="kind"))
    write("edges.csv", "what,a,b\nwrites,ada,p1\n,p1,p2\n")
    assert "row 2: column 'what' is empty" in str(
        refused("edges.csv", nodes=TYPES, relation="what")
    )


def test_a_directed_graph_is_one_type_and_one_relation():
    write("follows.csv", "source,target\n1,2\n2,1\n3,2\n")
    graph = read_tables("follows.csv", directed=True)
    assert list(graph.relations) == [("node", "to", "node")]
    assert edges_by_id(graph, "to") == [(1, 2), (2, 1), (3, 2)]
    write("both.csv", "source,target\n1,2\n2,1\n")
    assert not read_tables("both.csv", directed=True).relation("to").undirected
    write("people.csv", "id,age\n3,5\n2,6\n1,7\n")
    graph = read_tables("follows.csv", nodes="people.csv", directed=True)
    assert graph.type("node").x.tolist() == [[5], [6], [7]]
    assert edges_by_id(graph, "to") == [(1, 2), (2, 1), (3, 2)]


def test_edges_that_alone_would_name_the_nodes_and_cannot_be_read():
    assert "absent.csv: no such file" in str(refused("absent.csv", directed=True))
    write("one.csv", "source\n1\n")
    assert "an edge needs two ends" in str(refused("one.csv", directed=True))
    assert "no column 'kind'" in str(refused("writes.csv", relation="kind"))


def test_ids_that_two_types_share_need_a_name_or_a_word():
    write("shops.csv", "id,size\n1,5\n2,6\n3,7\n")
    write("goods.csv", "id,price\n1,2\n2,3\n3,4\n")
    write("sells.csv", "shop_id,good_id\n1,2\n2,3\n")
    write("likes.csv", "x,y\n1,2\n2,3\n")
    nodes = {"shop": "shops.csv", "goods": "goods.csv"}
    graph, report = load_tables(None, TableOptions(nodes=nodes, edges={"sells": "sells.csv"}))
    assert list(graph.relations) == [("shop", "sells", "goods")]
    assert "by the column's name; the ids are also those of goods" in "\n".join(report.notes)
    options = {"nodes": nodes, "edges": {"likes": "likes.csv"}}
    error = refused(**options)
    assert (
        "column 'x': of which type are its ids? They are all among those of shop and of goods"
        in (str(error))
    )
    assert error.fix == (("edges", "shop:likes:shop=likes.csv"),)
    assert "column 'shop_id'" in str(refused(nodes=nodes, edges={"s": "sells.csv"}, strict=True))
    said = {"likes": "likes.csv", "goods:likes:shop": "likes.csv"}  # as the message advises
    graph = read_tables(edges=said, nodes=nodes)
    assert list(graph.relations) == [("goods", "likes", "shop")]


def test_dangling_ends_are_refused_or_added():
    write("papers.csv", LABELLED)
    write("writes.csv", "author,paper\nada,p1\nalan,p9\neve,p8\n")
    options = {"nodes": TYPES, "edges": {"writes": "writes.csv"}, "label": "topic"}
    options["split"] = "part"
    error = refused(**options)
    assert isinstance(error, TableError)
    assert "2 edges name 3 unknown nodes" in str(error)
    assert "(column 'paper': not one of paper's), first 'p9' in row 2" in str(error)
    assert error.fix == (("unknown_edges", "add"),)
    graph, report = load_tables(None, TableOptions(**options, unknown_edges="add"))
    assert graph.type("paper").node_ids.tolist() == ["p1", "p2", "p3", "p8", "p9"]
    assert graph.type("paper").y.tolist() == [0, 1, 1, -1, -1]
    assert graph.type("paper").x[3:].tolist() == [[0, 0], [0, 0]]
    assert edges_by_id(graph, "writes") == [("ada", "p1"), ("alan", "p9"), ("eve", "p8")]
    assert "nodes paper: 2 nodes that only edges name: added" in "\n".join(report.notes)


def test_ends_of_no_type_are_told_how_to_become_one():
    write("on.csv", "paper,topic\np1,x\np2,y\n")
    message = str(refused(nodes=TYPES, edges={"on": "on.csv"}))
    assert "column 'topic': of which type are its ids? none is of a known type" in message
    query = """SELECT DISTINCT "topic" AS id FROM 'on.csv'"""
    assert f"nodes={ {'topic': query}!r}" in message
    graph = read_tables(edges={"on": "on.csv"}, nodes=TYPES | {"topic": query})
    assert sorted(graph.type("topic").node_ids.tolist()) == ["x", "y"]
    assert graph.type("topic").x is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("authors.csv", "name,age\n"), "authors.csv: has no rows"),
        (("authors.csv", "name,age\nada,1\nada,2\n"), "rows 1 and 2 have the same id 'ada'"),
        (("writes.csv", "author,paper\n"), "has no rows, so nothing says which types"),
        (("writes.csv", "author\nada\n"), "an edge needs two ends"),
        (("writes.csv", "author,paper\nada,\n"), "row 1: column 'paper' is empty"),
    ],
)
def test_odd_tables_get_one_message(change, message):
    write(*change)
    assert message in str(refused(nodes=TYPES, edges=RELATIONS))


def test_a_relation_without_edges_can_be_said():
    write("writes.csv", "author,paper\n")
    edges = {"author:writes:paper": "writes.csv", "cites": "cites.csv"}
    graph = read_tables(edges=edges, nodes=TYPES)
    assert graph.relation("writes").num_edges == 0


def test_all_that_is_wrong_is_said_at_once_with_a_remedy():
    write("authors.csv", "name,motto\nada,one one one\nalan,two two\ngrace,three\n")
    write("papers.csv", "id,title\np1,a a a\np2,b b\np3,c\n")
    error = refused(nodes=TYPES, edges=RELATIONS)
    assert isinstance(error, TableError)
    assert [one.split(":")[0] for one in error.problems] == ["author", "paper"]
    assert {value for _, value in error.fix if "=" in value} == {"author=motto", "paper=title"}
    proposed = {error.fix[0][0]: [value for _, value in error.fix]}
    graph = read_tables(edges=RELATIONS, nodes=TYPES, **proposed)
    assert graph.num_nodes == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": TYPES}, "needs edges"),
        ({"edges": RELATIONS}, "of which types"),
        ({"nodes": TYPES, "edges": {"autor:writes:paper": "writes.csv"}}, "did you mean 'author'?"),
        ({"nodes": TYPES, "edges": {"writes:paper": "writes.csv"}}, "SOURCE:NAME:TARGET"),
        ({"nodes": TYPES, "edges": RELATIONS, "features": "structural"}, "leave it out"),
        ({"nodes": TYPES, "edges": {"writes": "absent.csv"}}, "absent.csv: no such file"),
        ({"nodes": TYPES | {"x": "absent.csv"}, "edges": RELATIONS}, "absent.csv: no such file"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    assert message in str(refused(**options))
