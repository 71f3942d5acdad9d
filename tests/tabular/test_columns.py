import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

import graphcl
from graphcl.cli.main import run
from graphcl.errors import GraphError, TableError
from graphcl.graphs.graph import Graph
from graphcl.tabular.build import load_tables, read_tables
from graphcl.tabular.columns import identity, rank
from graphcl.tabular.options import TableOptions
from graphcl.tabular.sources import Source
from tests.tabular.conftest import STRUCTURAL, edges_of, write


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
    assert "weight='weight' would use it" in "\n".join(report.notes)
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
    assert caught.value.fix == tuple(("ignore", name) for name in names)
    write("n.csv", "id,probability\n1,1\n2,3\n")
    assert read_tables("e.csv", "n.csv").x.tolist() == [[1], [3]]


FILMS = [
    *("--nodes", "movie=movies.csv", "--nodes", "director=directors.csv"),
    *("--edges", "directed=directed.csv", "--ignore", "title", "--ignore", "name"),
]


def friends():
    write("customers.csv", "customer_id,name,age\nc1,Ann,30\nc2,Bob,41\nc3,Cid,22\nc4,Dan,37\n")
    write("friends.csv", "customer_id,friend_id\nc1,c2\nc2,c3\nc3,c4\n")


def films(born="1900", directors=20):
    movies = [f"{n},Film {n},{1950 + n % 9}" for n in range(1, 41)]
    people = [f"{n},{born},Dir {n}" for n in range(1, directors + 1)]
    directed = [f"{n},{n % 20 + 1}" for n in range(1, 41)]
    write("movies.csv", "\n".join(["movie_id,title,year", *movies]) + "\n")
    write("directors.csv", "\n".join(["director_id,born,name", *people]) + "\n")
    write("directed.csv", "\n".join(["movie_id,director_id", *directed]) + "\n")


def test_ids_are_where_the_edges_find_them_and_the_guess_is_the_first_line(capsys):
    friends()
    assert run(["check", "friends.csv", "--nodes", "customers.csv", "--ignore", "name"]) == 0
    answer = capsys.readouterr()
    assert answer.err.splitlines()[0] == (
        "guessed: ids in 'customer_id' of customers.csv; ends in 'customer_id' and 'friend_id' of "
        "friends.csv; otherwise: --id-column, --source-column, --target-column"
    )
    assert answer.out == "friends.csv: 4 nodes, 3 edges, 1 feature\n"
    graph = graphcl.read_tables("friends.csv", "customers.csv", ignore="name")
    assert edges_of(graph) == {("c1", "c2"), ("c2", "c3"), ("c3", "c4")}
    words = ["--edges", "friends.csv", "--nodes", "customers.csv", "--ignore", "name"]
    assert run(["build", *words, "--out", "store"]) == 0
    assert capsys.readouterr().err.startswith("guessed: ids in 'customer_id' of customers.csv")
    assert graphcl.Graph.open("store").node_ids.tolist() == ["c1", "c2", "c3", "c4"]


def test_edges_that_list_names_join_nodes_by_name():
    write("people.csv", "id,name,age\n1,Ann,30\n2,Bob,41\n3,Cid,22\n")
    write("knows.csv", "who,whom\nAnn,Bob\nBob,Cid\n")
    graph = graphcl.read_tables("knows.csv", "people.csv", ignore="id")
    assert edges_of(graph) == {("Ann", "Bob"), ("Bob", "Cid")}


def test_ends_are_columns_that_hold_ids(capsys):
    write("people.csv", "key,age\np1,30\np2,41\np3,22\n")
    write("calls.csv", "start,end,a,b\n9:00,9:30,p1,p2\n9:10,9:20,p2,p3\n")
    assert run(["check", "calls.csv", "--nodes", "people.csv"]) == 0
    assert "'a' – 'b' (guessed: they hold ids of nodes)" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["check", "build"])
def test_films_and_directors_with_the_same_numbers(where, capsys):
    films()
    out = ["--out", "store"] if where == "build" else []
    assert run([where, *FILMS, *out]) == 0
    first = capsys.readouterr().err.splitlines()[0]
    said = "ids in 'movie_id' of movie, 'director_id' of director; ends in 'movie_id' and "
    assert said in first
    graph = Graph.open("store") if out else None
    graph = graph or graphcl.read_tables(
        {"directed": "directed.csv"},
        {"movie": "movies.csv", "director": "directors.csv"},
        ignore=["title", "name"],
    )
    assert list(graph.relations) == [("movie", "directed", "director")]
    assert graph.num_edges == 40


def test_a_type_that_lacks_a_few_ids_is_not_replaced_by_one_that_has_them_all(capsys):
    films(directors=19)
    assert run(["check", *FILMS]) == 2
    said = capsys.readouterr().err
    assert "1 unknown node (column 'director_id': not one of director's), first '20'" in said
    assert "if they are movie's, who has them all: --edges TYPE:directed:movie=" in said


def test_names_and_data_that_disagree_are_refused_with_both_choices(capsys):
    write("n.csv", "id,row,age\n1,1,30\n2,2,41\n4,3,22\n5,4,22\n")
    write("e.csv", "source,target\n1,2\n2,3\n3,1\n")
    assert run(["check", "e.csv", "--nodes", "n.csv"]) == 2
    said = capsys.readouterr().err
    assert "'row' holds 100.0% and 'id' 66.7%; say it: --id-column row or --id-column id" in said
    assert run(["check", "e.csv", "--nodes", "n.csv", "--id-column", "row"]) == 0


def test_many_nodes_without_an_edge_are_the_first_line(capsys):
    films(directors=20)
    write("actors.csv", "actor_id,age\n901,3\n902,4\n")
    words = [*FILMS, "--nodes", "actor=actors.csv", "--json"]
    assert run(["check", *words]) == 0
    answer = capsys.readouterr()
    assert answer.err.splitlines()[0] == "warning: 2 of 2 nodes of actor have no edge"
    assert answer.err.splitlines()[1].startswith("guessed: ")
    assert json.loads(answer.out)["found"]["first"][0].startswith("warning: 2 of 2")


def test_an_unknown_node_names_the_guess(capsys):
    write("n.csv", "id,name,age\n1,a,30\n2,b,41\n")
    write("e.csv", "source,target\n1,2\n2,9\n")
    assert run(["check", "e.csv", "--nodes", "n.csv"]) == 2
    said = capsys.readouterr().err
    assert "the ids are those in 'id' (guessed by name); another column is given by" in said


def test_options_of_types_repeat_and_are_mappings(capsys):
    films()
    ids = ["--id-column", "director=director_id", "--id-column", "movie=movie_id"]
    assert run(["check", *FILMS, *ids]) == 0
    assert "ids in 'director_id' (given)" in capsys.readouterr().err
    assert run(["check", *FILMS, *ids, "--id-column", "movie=title"]) == 2
    assert "--id-column: 'movie' is given twice" in capsys.readouterr().err
    nodes = {"movie": "movies.csv", "director": "directors.csv"}
    named = {"movie": "movie_id", "director": "director_id"}
    write("directed.csv", Path("directed.csv").read_text().replace("movie_id,", "film,", 1))
    graph = graphcl.read_tables(
        {"directed": "directed.csv"},
        nodes,
        id_column=named,
        source_column={"directed": "film"},
        target_column={"directed": "director_id"},
        ignore={"movie": ["title"], "director": "name"},
    )
    assert list(graph.relations) == [("movie", "directed", "director")]
    for option, wrong in (("id_column", {"film": "id"}), ("weight", {"directs": "w"})):
        with pytest.raises(GraphError, match=r"no (type 'film'|relation 'directs'); the"):
            graphcl.read_tables({"directed": "directed.csv"}, nodes, **{option: wrong})
    with pytest.raises(GraphError, match="the list of directed has no column 'much'"):
        graphcl.read_tables(
            {"directed": "directed.csv"},
            nodes,
            weight={"directed": "much"},
            ignore=["title", "name"],
        )
    friends()
    with pytest.raises(GraphError, match="a graph of one type has one column"):
        graphcl.read_tables("friends.csv", "customers.csv", id_column=("name", "customer_id"))


def reverses(more=""):
    write("customers.csv", "id,age\n1,30\n2,41\n3,22\n")
    write("products.csv", "id,price\n1,5\n2,6\n3,7\n")
    write("buys.csv", "customer,product,much\n1,1,1\n2,1,2\n3,2,3\n3,2,3\n")
    write("bought_by.csv", f"product,customer,much\n1,2,2\n1,1,1\n2,3,3\n2,3,{more or 3}\n")
    return [
        *("--nodes", "customer=customers.csv", "--nodes", "product=products.csv"),
        *("--edges", "buys=buys.csv", "--edges", "bought_by=bought_by.csv"),
    ]


@pytest.mark.parametrize("option", [["--ignore", "much"], ["--weight", "much"], []])
def test_a_relation_that_is_another_backwards_is_kept_once(option, capsys):
    words = [*reverses(), *option]
    assert run(["check", *words]) == 0
    answer = capsys.readouterr()
    assert "edges bought_by: they are those of buys, backwards: kept once" in answer.err
    assert "bought_by" not in answer.out
    assert run(["build", *words, "--out", "store"]) == 0
    assert "backwards: kept once" in capsys.readouterr().err
    assert list(Graph.open("store").relations) == [("customer", "buys", "product")]


@pytest.mark.parametrize("option", [["--weight", "much"], []])
def test_with_other_weights_or_features_both_are_kept_and_it_is_said(option, capsys):
    words = [*reverses(more="4"), *option]
    assert run(["build", *words, "--out", "store"]) == 0
    assert "with other weights or features: both are kept" in capsys.readouterr().err
    assert len(Graph.open("store").relations) == 2


def test_ranks_of_names():
    columns = ["name", "born", "imdbId", "director_id", "id"]
    assert [rank(one, "directors") for one in columns] == [4, 3, 2, 1, 0]
    source = Source("t", "t", dict.fromkeys(["born", "name"], "VARCHAR"))
    assert identity(source, None) == ("name", "guessed by name")


@pytest.mark.parametrize("often", [2, 4])
def test_ids_with_several_rows_are_ids_if_one_of_them_is_kept(often, capsys):
    rows = [f"{row // often},{row},{row * 10}" for row in range(20 * often)]
    write("people.csv", "\n".join(["id,row,x", *rows]) + "\n")
    write("knows.csv", "who,whom\n" + "".join(f"{n},{(n + 3) % 20}\n" for n in range(20)))
    graph = graphcl.read_tables("knows.csv", "people.csv", duplicates="last", ignore="row")
    assert graph.num_nodes == 20
    assert graph.x[:2, 0].tolist() == [10 * (often - 1), 10 * (2 * often - 1)]
    assert run(["check", "knows.csv", "--nodes", "people.csv", "--duplicates", "first"]) == 0
    assert capsys.readouterr().err.startswith("guessed: ids in 'id' of people.csv")


@pytest.mark.parametrize(
    "options", [[], ["--nodes", "person=people.csv", "--edges", "knows=knows.csv"]]
)
def test_an_id_that_repeats_is_not_passed_over_for_the_number_of_a_row(options, capsys):
    rows = [f"{n},{n},{n % 3}" for n in range(20)]
    write("people.csv", "\n".join(["id,row,x", *rows, "5,20,1", "7,21,2"]) + "\n")
    write("knows.csv", "who,whom\n" + "".join(f"{n},{(n + 3) % 20}\n" for n in range(20)))
    words = ["check", *(options or ["knows.csv", "--nodes", "people.csv"])]
    assert run(words) == 2
    kind = "person=" if options else ""
    says = f"say it: --id-column {kind}row or --id-column {kind}id --duplicates first"
    assert says in capsys.readouterr().err
    assert run([*words, "--id-column", f"{kind}row"]) == 0
    assert "22 nodes" in capsys.readouterr().out
    assert run([*words, "--id-column", f"{kind}id", "--duplicates", "first"]) == 0
    assert "20 nodes" in capsys.readouterr().out
