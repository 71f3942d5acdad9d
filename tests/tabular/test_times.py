"""As of a day: what came later is not seen, whatever it is; and the age of edges."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.errors import GraphCLError, GraphError, ParameterError
from graphcl.estimator.model import GraphCL
from graphcl.graphs.collection import fingerprint
from graphcl.tabular.build import build_store, check_tables, load_tables, open_prepared, read_tables
from graphcl.tabular.options import TableOptions
from graphcl.tabular.times import ages, moment_of, move_ages, text_of
from tests.conftest import FUZZ
from tests.streams import UNTIL, changed_future, known, stream, table
from tests.tabular.conftest import write

OPTIONS = {"nodes": "n.csv", "time": ("joined", "day"), "label": "y", "label_time": "judged"}


def read(people, knows, **options):
    write("n.csv", table(people))
    write("e.csv", table(knows))
    return load_tables("e.csv", TableOptions(**OPTIONS | {"until": UNTIL} | options))[0]


def bits(graph):
    """All that a training, a probe and an answer see of a graph."""
    found = {}
    for name, one in graph.nodes.items():
        found |= {f"{name} x": one.x, f"{name} y": one.y, f"{name} ids": one.ids.tolist()}
        found |= {f"{name} names": one.class_names, f"{name} of": one.preparation.to_json()}
    for key, one in graph.relations.items():
        found |= {
            f"{key} {part}": getattr(one, part) for part in ("indptr", "indices", "edge_features")
        }
    return {name: one.tobytes() if hasattr(one, "tobytes") else one for name, one in found.items()}


def weights(graph):
    model = GraphCL("default", epochs=2, dim=8, seed=0, device="cpu", verbose=False)
    z = model.fit_transform(graph)
    return b"".join(one.tobytes() for one in z.values()) if isinstance(z, dict) else z.tobytes()


@pytest.mark.parametrize("age", [True, False])
def test_another_future_leaves_every_bit_of_graph_and_training(age):
    people, knows = stream()
    graph = read(people, knows, age=age)
    future = read(*changed_future(people, knows), age=age)
    assert bits(future) == bits(graph)
    assert weights(future) == weights(graph)
    assert graph.is_plain == (not age)
    past = [row if row[0] != "p0" else [*row[:2], 0.5, *row[3:]] for row in people]
    assert weights(read(past, knows, age=age)) != weights(graph)  # the check can fail


@settings(FUZZ, max_examples=8)
@given(st.integers(0, 2**31))
def test_a_graph_as_of_a_day_is_that_of_the_rows_until_then(seed):
    people, knows = stream(seed)
    by_hand = known(people, "joined")
    for row in by_hand[1:]:
        row[4] = row[4] if row[5] <= UNTIL else ""
    ids = {row[0] for row in by_hand[1:]}
    ends = [knows[0], *(row for row in known(knows, "day")[1:] if {row[0], row[1]} <= ids)]
    graph = read(by_hand, ends)
    assert bits(graph) == bits(read(people, knows))
    (edges,), (nodes,) = graph.relations.values(), graph.nodes.values()
    names, end = nodes.ids.tolist(), datetime(2025, 3, 11, tzinfo=UTC)
    for entry, (u, v) in enumerate(edges.edge_index().T.tolist()):
        rows = [row for row in ends[1:] if {row[0], row[1]} == {names[u], names[v]}]
        last = max(datetime.fromisoformat(row[2]).replace(tzinfo=UTC) for row in rows)
        days = (end - last).total_seconds() / 86400
        np.testing.assert_allclose(edges.edge_features[entry], np.log(1 + days), rtol=1e-6)


def test_edges_without_times_come_with_both_ends_and_others_are_left_out():
    people, knows = stream()
    write("n.csv", table(people))
    write("e.csv", table([row[:2] for row in knows]))
    options = TableOptions(nodes="n.csv", time="joined", until=UNTIL, ignore=("y", "judged"))
    graph, report = load_tables("e.csv", options)
    ids = {row[0] for row in known(people, "joined")[1:]}
    both = {frozenset(row[:2]) for row in knows[1:] if {row[0], row[1]} <= ids}
    assert graph.is_plain
    assert (graph.num_nodes, graph.num_edges) == (len(ids), len(both))
    assert any(
        "edges name nodes that are later than 2025-03-10: left out" in one for one in report.notes
    )
    assert any("rows later than 2025-03-10: left out" in one for one in report.notes)
    write("e.csv", table([["a", "b"], ["p0", "nobody"]]))
    with pytest.raises(GraphError, match="1 unknown node"):
        load_tables("e.csv", options)


def typed(**options):
    """Authors with years, papers without, and two relations, one with columns of its own."""
    authors = {"id": ["a", "b", "c"], "v": [1.0, 2, 3], "since": [2001, 2005, 2011]}
    papers = {"id": ["p", "q", "r"], "w": [1.0, 2, 4]}
    writes = {"author": ["a", "a", "b", "c"], "paper": ["p", "p", "q", "r"]}
    writes |= {"year": [2003, 2007, 2008, 2012], "pages": [3.0, 5, 8, 9]}
    cites = {"from": ["p", "q", "p"], "to": ["q", "p", "r"], "when": [2004, 2004, 2009]}
    return load_tables(
        None,
        TableOptions(
            nodes={"author": authors, "paper": papers},
            edges={"author:writes:paper": writes, "paper:cites:paper": cites},
            **{"time": {"author": "since", "writes": "year", "cites": "when"}} | options,
        ),
    )[0]


def test_a_typed_graph_has_times_by_type_and_relation():
    graph = typed(until=2008)
    assert graph.nodes["author"].ids.tolist() == ["a", "b"]
    assert graph.nodes["paper"].num_nodes == 3  # without times, they were there all along
    writes, cites = graph.relations.values()
    by_hand = np.log1p([[5], [1], [0]])
    np.testing.assert_allclose(writes.edge_features[:, -1:], by_hand, rtol=1e-6)
    assert writes.preparation.features == ["pages", "time since year"]
    assert (cites.undirected, cites.num_edges) == (True, 1)  # both directions, and one age
    np.testing.assert_allclose(cites.edge_features, np.log1p([[4], [4]]), rtol=1e-6)
    bare = typed(until=2008, age=False)
    assert [one.num_edge_features for one in bare.relations.values()] == [1, 0]
    latest = typed()
    assert latest.relations["author", "writes", "paper"].edge_features[-1, -1] == 0


def test_relations_that_a_training_knew_without_ages_get_none_and_ages_need_times():
    graph = typed(until=2008)
    prepared = {":".join(key): one.preparation for key, one in graph.relations.items()}
    again = typed(until=2012, edge_preparations=prepared, preparations={})
    assert again.relations["author", "writes", "paper"].num_edge_features == 2
    without = dict.fromkeys(prepared) | {
        "author:writes:paper": typed(age=False).relations["author", "writes", "paper"].preparation
    }
    without = {name: one for name, one in without.items() if one is not None}
    bare = typed(until=2012, edge_preparations=without, preparations={})
    assert [one.num_edge_features for one in bare.relations.values()] == [1, 0]
    with pytest.raises(GraphError, match=r"has no times '.*', which edges had in training"):
        typed(time="since", edge_preparations=prepared, preparations={})


def test_without_a_day_it_is_the_latest_and_said_as_one_that_reads_the_same(tmp_path):
    moments = pandas.to_datetime(
        ["2025-03-01T10:00:00.123456789", "2025-03-02 07:30"], format="ISO8601"
    )
    edges = pandas.DataFrame({"a": [1, 2], "b": [2, 3], "at": moments[::-1]})
    for some in (edges, edges[:1], edges[1:]):
        graph, report = load_tables(some, TableOptions(time="at", features="structural"))
        options = TableOptions(time="at", features="structural", until=report.until)
        assert fingerprint((load_tables(some, options)[0],)) == fingerprint((graph,))
    assert report.until == "2025-03-01T10:00:00.123457Z"
    graph, report = load_tables(edges, TableOptions(time="at", features="structural"))
    assert report.until == "2025-03-02T07:30:00Z"
    assert graph.only_type.x is None  # it is filled in as a typed graph is


@pytest.mark.parametrize(
    ("cells", "until", "kept"),
    [
        (["2025-03-01", "2025-03-02"], "2025-03-01", 1),
        (["2025-03-01T23:59:59.999", "2025-03-02T00:00:00"], "2025-03-01", 1),
        (["2025-03-01T10:00", "2025-03-01T10:00:01"], "2025-03-01T10:00", 1),
        (["2025-03-01T10:00:00+02:00", "2025-03-01T10:00:00"], "2025-03-01T08:00Z", 1),
        (["2025-03-01T01:00:00+02:00", "2025-03-01T01:00:00"], date(2025, 2, 28), 1),
        (
            ["2025-03-01T10:00"] * 2,
            datetime(2025, 3, 1, 12, tzinfo=timezone(timedelta(hours=2))),
            2,
        ),
        (["28/02/2025", "13/03/2025"], "2025-03-01", 1),
        (["28.02.2025", "13.03.2025"], "2025-03-01", 1),
        (["2014", "2015"], 2014, 1),
        (["20140301", "20150301"], "20140301", 1),
        (["-3.5", "1e3"], "12.5", 1),
    ],
)
def test_dates_times_zones_and_numbers(cells, until, kept):
    write("e.csv", table([["a", "b", "at"], [1, 2, cells[0]], [1, 3, cells[1]]]))
    options = {"time": "at", "features": "structural"}
    assert check_tables("e.csv", TableOptions(until=until, **options))[0]["edges"] == kept


def test_typed_columns_of_times(tmp_path):
    zone = pyarrow.timestamp("us", tz="Europe/Paris")
    moments = [datetime(2025, 3, 1, 23, 30, tzinfo=UTC), datetime(2025, 3, 2, 1, tzinfo=UTC)]
    for kind in (zone, pyarrow.timestamp("ns"), pyarrow.date32()):
        held = [
            one.date()
            if kind == pyarrow.date32()
            else one.replace(tzinfo=None if kind != zone else UTC)
            for one in moments
        ]
        edges = pyarrow.table({"a": [1, 2], "b": [2, 3], "at": pyarrow.array(held, kind)})
        pyarrow.parquet.write_table(edges, "e.parquet")
        for some in (edges, "e.parquet"):
            graph = read_tables(
                some, time="at", until="2025-03-01", features="structural", age=False
            )
            assert graph.num_edges == 1


def test_of_several_rows_of_a_node_the_last_known_one_counts():
    rows = [["id", "at", "v"], ["x", 1, 10], ["y", 1, 20], ["x", 2, 11], ["y", 5, 21], ["z", 5, 3]]
    write("n.csv", table(rows))
    write("e.csv", "a,b\nx,y\nx,z\n")
    options = TableOptions(nodes="n.csv", time="at", until=3, duplicates="last", id_column="id")
    graph, _ = load_tables("e.csv", options)
    assert dict(zip(graph.node_ids.tolist(), graph.x[:, 0].tolist(), strict=True)) == {
        "x": 11,
        "y": 20,
    }
    assert graph.num_edges == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"until": "2025-03-01"}, "no table has times; name their columns: time"),
        ({"time": "at", "until": "soon"}, "times are dates, such as 2026-05-17"),
        ({"time": "at", "until": 2014}, "2026-05-17T09:30; got '2014'"),
        ({"time": "nowhere"}, "no table has the column 'nowhere'; got id, at, v"),
        ({"time": ("at", "v")}, "node has two, one is 'v'"),
        ({"time": "at", "until": "1999-01-01"}, "all 2 rows are later than 1999-01-01; the first"),
        ({"time": ("at", "number")}, "'number' holds numbers, and other times are dates"),
        ({"time": "gap"}, "1 row has no time in column 'gap'; correct"),
        ({"time": "odd"}, "1 row has no time in column 'odd', such as 'someday'"),
        ({"time": "at", "label": "v", "label_time": "gap"}, "1 row has no time in column 'gap'"),
        ({"time": "day", "features": "both"}, "leave these out: age=False"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(options, says):
    write("n.csv", "id,at,v\nx,2025-03-01,1\ny,2025-03-02,2\n")
    write(
        "e.csv",
        "a,b,number,day,gap,odd\nx,y,1,2025-03-01,2025-03-01,2025-03-01\ny,x,2,2025-03-02,,someday\n",
    )
    if "label" in options:
        write("n.csv", "id,at,v,gap\nx,2025-03-01,1,\ny,2025-03-02,2,2025-03-02\n")
    with pytest.raises((GraphError, ParameterError)) as caught:
        load_tables("e.csv", TableOptions(nodes="n.csv", **options))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(FUZZ, max_examples=15)
@given(st.text(max_size=12), st.text(max_size=12) | st.just("2025-03-01"))
def test_any_cell_is_a_time_or_a_line(cell, until):
    edges = pyarrow.table({"a": [1, 2], "b": [2, 3], "at": [cell, "2025-03-01"]})
    try:
        load_tables(edges, TableOptions(time="at", until=until, features="structural"))
    except GraphCLError as error:
        said = str(error)
    else:
        said = ""
    assert len(said) < 500


def test_a_time_column_is_a_feature_only_if_it_is_said_to_be_one():
    people, knows = stream()
    assert "joined" not in "".join(read(people, knows).only_type.preparation.features)
    assert "joined" in "".join(read(people, knows, date="joined").only_type.preparation.features)


def test_a_store_keeps_the_ages_and_what_they_are_counted_until(tmp_path):
    people, knows = stream()
    graph = read(people, knows)
    build_store("e.csv", TableOptions(**OPTIONS, until=UNTIL), out=tmp_path / "store")
    opened = open_prepared(tmp_path / "store")
    assert bits(opened) == bits(graph)
    (column,) = next(iter(opened.relations.values())).preparation.columns
    assert text_of(column.origin + 1e-6, dates=True) == "2025-03-11"


@given(st.floats(-1e9, 4e9))
def test_a_moment_is_written_no_earlier_and_less_than_a_microsecond_later(moment):
    text = text_of(moment, dates=True)
    back = moment_of(text, dates=True)
    assert 0 <= back - moment < (2.3e-6 if "T" in text else 86400)
    assert moment_of(text_of(moment, dates=False), dates=False) == moment


def test_ages_move_as_if_they_were_counted_anew():
    relation = typed(until=2008).relations["paper", "cites", "paper"]
    (column,) = relation.preparation.columns
    times = 2008 - np.random.default_rng(0).exponential(300, 1000)
    later = move_ages(replace(relation, edge_features=ages(column, times)), 2030.0)
    (anew,) = later.preparation.columns
    assert anew == replace(column, origin=2030.0)
    np.testing.assert_allclose(later.edge_features, ages(anew, times), rtol=3e-7)
