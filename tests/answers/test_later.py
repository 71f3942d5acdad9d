"""Links and labels that came after a day, scored by what was known by then."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from graphcl import GraphCL, Run
from graphcl.answers.later import _neighbours, later_edges, read_later
from graphcl.cli.main import run
from graphcl.errors import GraphCLError
from tests.streams import UNTIL, known, stream, table

PEOPLE, KNOWS = stream(5, nodes=40, edges=160)
WAYS = {"ages": [], "none": ["--no-age"]}


@pytest.fixture(scope="session", params=WAYS)
def trained_later(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("later")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        (place / "n.csv").write_text(table(PEOPLE))
        (place / "e.csv").write_text(table(KNOWS))
        words = ["train", "e.csv", "--nodes", "n.csv", "--label", "y", "--label-time", "judged"]
        words += ["--time", "joined", "--time", "day", "--out", "run", *WAYS[request.param]]
        assert run([*words, "--set", "epochs=1", "--set", "dim=8"]) == 0
    return place


@pytest.fixture
def place(trained_later, tmp_path, monkeypatch):
    shutil.copytree(trained_later, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


def names_of(graph):
    return next(iter(graph.nodes.values())).ids.tolist()


def test_later_links_are_those_of_known_nodes_that_nothing_linked(place):
    later = read_later(Path("run"), UNTIL)
    ids = {row[0] for row in known(PEOPLE, "joined")[1:]}
    pairs = [{row[0], row[1]} for row in KNOWS[1:]]
    linked = {frozenset(pair) for pair in pairs}
    before = {frozenset(row[:2]) for row in known(KNOWS, "day")[1:]}
    wanted = {pair for pair in linked if pair <= ids and pair not in before}
    held = later_edges(later, negatives=7, seed=1)
    names = names_of(held.graph)
    assert set(names) == ids
    found = [frozenset(names[end] for end in pair) for pair in held.edges.tolist()]
    assert len(found) == len(wanted) > 3
    assert set(found) == wanted
    for pair, drawn in zip(held.edges.tolist(), held.negatives.tolist(), strict=True):
        for other in drawn:
            assert other != pair[0]
            assert frozenset((names[pair[0]], names[other])) not in linked
    judged = Run("run", device="cpu").evaluate_links(after=UNTIL, negatives=7, seed=1)
    assert (judged.held_out, judged.after) == (len(wanted), UNTIL)
    again = Run("run", device="cpu").evaluate_links(after=UNTIL, negatives=7, seed=1)
    assert judged.scores == again.scores


def test_a_later_node_sees_known_nodes_that_it_met_by_its_day(place):
    later = read_later(Path("run"), UNTIL)
    (kind,) = later.graph.nodes
    names, came = names_of(later.graph), {row[0]: row[1] for row in PEOPLE[1:]}
    seen = 0
    for row, name in enumerate(names_of(later.late)):
        met = {
            other
            for one, two, day in KNOWS[1:]
            for own, other in ((one, two), (two, one))
            if own == name and other in names and day <= came[name]
        }
        texts, same = _neighbours(later, kind, row)
        assert {names[one] for one in same.tolist()} == met
        assert {text.rpartition("/")[2] for text in texts} == met
        seen += len(met) * (name not in names)
    assert seen > 2


def scored(folder=None):
    found = Run("run", device="cpu").predict_later(UNTIL)
    return dict(zip(found.ids.tolist(), found.probabilities.tolist(), strict=True)), found


def test_a_label_that_came_later_is_predicted_without_any_other_of_the_future(place):
    before, found = scored()
    at = {row[0]: row for row in PEOPLE[1:]}
    wanted = {name for name, row in at.items() if row[5] > UNTIL and row[4]}
    assert set(before) == wanted
    truth = [at[name][4] for name in found.ids.tolist()]
    right = np.mean([one == two for one, two in zip(found.labels, truth, strict=True)])
    assert found.test.accuracy == pytest.approx(right)
    assert found.test.nodes == len(wanted)
    assert found.error.nodes == len([row for row in PEOPLE[1:] if row[5] <= UNTIL])
    # Another future, but for one node that came later and what it brought along.
    kept = next(name for name in wanted if at[name][1] > UNTIL)
    people = [
        [name, day, -9.0, "other", "s", later] if day > UNTIL and name != kept else row
        for row in PEOPLE[1:]
        for name, day, *_, later in [row]
    ]
    knows = [
        row for row in KNOWS[1:] if row[2] <= UNTIL or (kept in row[:2] and row[2] <= at[kept][1])
    ]
    extra = [["p0", "p1", "2025-03-23"], [kept, "p0", "2025-03-23"]]
    (place / "n.csv").write_text(table([PEOPLE[0], *people]))
    (place / "e.csv").write_text(table([KNOWS[0], *extra, *knows]))
    after, _ = scored()
    same = [name for name in wanted if at[name][1] <= UNTIL] + [kept]
    assert len(same) > 2
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    moved = [row if row[0] != "p0" else [*row[:2], 3.25, *row[3:]] for row in PEOPLE]
    (place / "n.csv").write_text(table(moved))
    assert scored()[0][kept] != before[kept]  # the check can fail


def test_a_missing_link_of_an_undirected_relation_is_listed_once(place):
    found = Run("run", device="cpu").links(k=60)
    pairs = [frozenset(pair) for pair in zip(found.source, found.target, strict=True)]
    assert len(set(pairs)) == len(pairs) == 60


def test_a_class_that_nobody_knew_is_never_right(place):
    people = [
        row if row[5] <= UNTIL or place < 10 else [*row[:4], "new", row[5]]
        for place, row in enumerate(PEOPLE)
    ]
    (place / "n.csv").write_text(table(people))
    _, found = scored()
    assert found.classes == ("s", "t", "new")
    assert not found.probabilities[:, 2].any()
    wrong = [row for row in people[1:] if row[4] == "new"]
    assert found.test.accuracy <= 1 - len(wrong) / len(found)


def test_the_commands_say_what_is_scored_and_refuse_what_cannot_be(place, capsys):
    assert run(["predict", "run", "--evaluate", "--after", UNTIL, "--out", "p.csv"]) == 0
    said = capsys.readouterr().out
    assert "labels that came later)" in said
    assert Path("p.csv").read_text().count("\n") > 5
    assert not list(Path("run").rglob("answer-predict.json"))
    assert run(["links", "run", "--evaluate", "--after", UNTIL]) == 0
    assert f"linked after {UNTIL}, each ranked among 100" in capsys.readouterr().out
    for words, says in {
        "predict run --after 2025-03-10": "--evaluate and --after must be given together",
        "predict run --evaluate": "--evaluate and --after must be given together",
        "predict run --evaluate --after 2025-03-10 --all": "given with --type and --seed alone",
        "predict run --evaluate --after 2030-01-01": "no label came after 2030-01-01",
        "links run --after 2025-03-10": "--after must be given with --evaluate",
        "links run --evaluate --after 2030-01-01": "were linked later",
        "links run --evaluate --after soon": "times are dates, such as",
        "links run --evaluate --after 1999-01-01": "rows are later than 1999-01-01",
    }.items():
        assert run(words.split()) == 2
        assert says in capsys.readouterr().err


def test_a_run_without_tables_has_no_days(tmp_path, graph):
    GraphCL(dim=8, epochs=1, device="cpu").fit(graph).save(tmp_path / "run", graph=graph)
    with pytest.raises(GraphCLError, match="was not trained on tables"):
        Run(tmp_path / "run").evaluate_links(after="2025-01-01")
