"""A run whose day moves forward: as if the tables had been read whole as of the new day."""

import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest

from graphcl import GraphCL, Run, read_tables
from graphcl.cli.main import run
from graphcl.errors import GraphCLError
from graphcl.runs.nodes import trained_tables
from graphcl.updating.run import _is_earlier
from tests.streams import UNTIL, changed_future, known, stream, table

LATER, LATEST = "2025-03-14", "2025-03-31"
PEOPLE, KNOWS = stream(3)
WAYS = {"ages": [], "none": ["--no-age"]}


@pytest.fixture(scope="session", params=WAYS)
def trained_as_of(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("days")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        (place / "n.csv").write_text(table(PEOPLE))
        (place / "e.csv").write_text(table(KNOWS))
        words = ["train", "e.csv", "--nodes", "n.csv", "--label", "y", "--label-time", "judged"]
        words += ["--time", "joined", "--time", "day", "--until", UNTIL, "--out", "run"]
        words += WAYS[request.param]
        assert run([*words, "--set", "epochs=2", "--set", "dim=12"]) == 0
    return place


@pytest.fixture
def place(trained_as_of, tmp_path, monkeypatch):
    shutil.copytree(trained_as_of, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


def only(found):
    return next(iter(found.values())) if isinstance(found, dict) else found


def check_like(run, until, edges="e.csv", nodes="n.csv"):
    """Compares a run with tables that are read whole, by ids: embeddings and labels."""
    options = trained_tables(run.path)
    prepared = {"preparation": options.preparation, "preparations": options.preparations}
    given = {name: one for name, one in options.given().items() if name not in ("nodes", "until")}
    whole = read_tables(
        edges, nodes, **given, **prepared, edge_preparations=options.edge_preparations, until=until
    )
    z, own = only(run.model.transform(whole)), run.nodes()
    place = {name: row for row, name in enumerate(own.ids.tolist())}
    rows = [place[name] for name in whole.only_type.ids.tolist()]
    assert sorted(rows) == list(range(own.num_nodes))
    np.testing.assert_allclose(only(run.embeddings)[rows], z, atol=2e-6 * np.abs(z).max())
    assert [own.class_name(one) for one in own.y[rows]] == [
        whole.only_type.class_name(one) for one in whole.only_type.y
    ]
    assert run.graph.num_edges == whole.num_edges


def test_the_runs_own_tables_are_read_again(place):
    assert run(["update", "run", "--until", LATER]) == 0
    moved = Run("run", device="cpu")
    assert moved.version == 1
    assert trained_tables(moved.folder).until == LATER
    check_like(moved, LATER)
    people, knows = changed_future(PEOPLE, KNOWS, LATER)
    (place / "n.csv").write_text(table(people))
    (place / "e.csv").write_text(table(knows))
    z = only(moved.embeddings).tobytes()
    moved.rollback()
    assert moved.update(until=LATER).version == 2
    assert only(moved.embeddings).tobytes() == z
    assert moved.update(until=LATEST).about["until"] == LATEST
    check_like(moved, LATEST)


@pytest.mark.parametrize("until", [LATER, None])
def test_new_tables_are_as_good_as_all_tables(place, until):
    new = Run("run", device="cpu")
    later = {"until": LATER if until else LATEST, "after": UNTIL}
    people, knows = known(PEOPLE, "joined", **later), known(KNOWS, "day", **later)
    changed = [row for row in PEOPLE[1:] if row[1] <= UNTIL < row[5] <= later["until"]]
    (place / "new_n.csv").write_text(table([*people, *changed]))
    # Rows that are there already, in the other direction: one as it was, one that is older.
    knows = [*knows, *([row[1], row[0], row[2]] for row in known(KNOWS, "day")[1:4])]
    knows.append([*known(KNOWS, "day")[5][:2], "2025-03-01"])
    ids = {row[0] for row in known(PEOPLE, "joined", later["until"])[1:]}
    late = [row for row in knows[1:] if not {row[0], row[1]} <= ids]
    (place / "new_e.csv").write_text(table([row for row in knows if row not in late]))
    done = new.update(nodes="new_n.csv", edges="new_e.csv", until=until)
    day = until or max(row[2] for row in KNOWS[1:])
    assert (done.about["until"] if until else trained_tables(new.folder).until) == day
    check_like(new, day)


def test_only_forward_and_only_with_tables(place, capsys):
    assert run(["update", "run", "--until", "2025-03-09"]) == 2
    assert "is as of 2025-03-10; --until moves it forward" in capsys.readouterr().err
    assert run(["update", "run", "--until", LATER, "--label", "y"]) == 2
    assert "--label must be left out with --until" in capsys.readouterr().err
    assert run(["update", "run", "--until", "some day"]) == 2
    assert "times are dates, such as" in capsys.readouterr().err
    config = Path("run/config.toml")
    config.write_text(config.read_text().replace("e.csv", "x.csv"))
    assert run(["update", "run", "--until", LATER]) == 2
    assert "not read on the word of a run" in capsys.readouterr().err
    assert [one.number for one in Run("run").versions] == [0]


def shop(until=None, **more):
    random = np.random.default_rng(1)
    people = pandas.DataFrame({"id": [f"c{n}" for n in range(12)], "v": random.normal(size=12)})
    goods = pandas.DataFrame({"id": range(8), "w": random.normal(size=8), "out": range(2000, 2008)})
    ends = {"customer": random.choice(people["id"], 60), "product": random.integers(0, 8, 60)}
    buys = pandas.DataFrame(ends | {"stars": random.integers(1, 6, 60), "year": 2000})
    buys["year"] += random.integers(0, 10, 60)
    people.to_csv("people.csv", index=False)
    goods.to_csv("goods.csv", index=False)
    buys.to_csv("buys.csv", index=False)
    options = {"time": {"product": "out", "buys": "year"}, "until": until, **more}
    nodes = {"customer": "people.csv", "product": "goods.csv"}
    return read_tables({"customer:buys:product": "buys.csv"}, nodes, **options)


def test_edges_with_other_features_are_read_again_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shop()
    words = ["train", "--nodes", "customer=people.csv", "--nodes", "product=goods.csv"]
    words += ["--edges", "customer:buys:product=buys.csv", "--time", "product=out", "--time"]
    words += ["buys=year", "--until", "2004", "--out", "run", "--set", "epochs=1", "--set", "dim=8"]
    assert run(words) == 0
    moved = Run("run", device="cpu")
    moved.update(until=2007)
    options = trained_tables(moved.path)
    prepared = {
        "preparations": options.preparations,
        "edge_preparations": options.edge_preparations,
    }
    whole = shop(2007, **prepared)
    z = moved.model.transform(whole)
    for name, rows in moved.embeddings.items():
        assert moved.nodes(name).ids.tolist() == whole.nodes[name].ids.tolist()
        np.testing.assert_allclose(rows, z[name], atol=2e-6 * np.abs(z[name]).max())
    assert moved.graph.num_edges == whole.num_edges > shop(2004).num_edges
    again = moved.update(edges="buys.csv", remove_edges=None, until=2009)
    assert again.about["until"] == "2009"


@pytest.mark.parametrize("tables", [{}, {"edges": [("c1", "c2")]}])
def test_tables_without_times_have_no_day(tmp_path, monkeypatch, tables):
    monkeypatch.chdir(tmp_path)
    Path("e.csv").write_text("source,target\nc1,c2\nc2,c3\nc3,c1\n")
    words = ["train", "e.csv", "--features", "structural", "--out", "run", "--set", "epochs=1"]
    assert run([*words, "--set", "dim=8"]) == 0
    with pytest.raises(GraphCLError, match="no times, so nothing says what came until someday"):
        Run("run", device="cpu").update(until="someday", **tables)
    assert [one.number for one in Run("run").versions] == [0]


def test_a_run_that_no_table_made_has_no_day(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graph = shop(2004)
    GraphCL(dim=8, epochs=1, device="cpu").fit(graph).save("run", graph=graph)
    with pytest.raises(GraphCLError, match="was not trained on tables"):
        Run("run", graph=graph).update(until=2005)


@pytest.mark.parametrize(
    ("day", "other", "earlier"),
    [("2025-03-01", "2025-03-02", True), ("2025-03-01", "2025-03-01T12:00", False),
     ("2025-03-01T10:00+02:00", "2025-03-01T09:00Z", True), ("7", "11", True), ("7", "7.0", False)],
)  # fmt: skip
def test_days_are_compared_as_times(day, other, earlier):
    assert _is_earlier(day, other) == earlier
