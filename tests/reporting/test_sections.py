import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

from graphcl.reporting.page import render
from graphcl.reporting.sections import answer_sections, degree_rows, line_chart, part
from tests.reporting.conftest import made_up

NASTY = '</script><b>"&'


def test_a_curve_goes_through_its_points():
    chart = ElementTree.fromstring(
        line_chart([1, 2, 3], [4.0, 2.0, 3.0], label=NASTY, x_label=NASTY)
    )
    path = chart.find("path[@class='curve']").get("d")
    points = [tuple(map(float, pair.split())) for pair in path[1:].split("L")]
    xs, ys = zip(*points, strict=True)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert ys[0] < ys[2] < ys[1]  # up is less in SVG
    assert chart.get("aria-label") == NASTY


def test_long_flat_and_single_curves():
    long = line_chart(range(1, 5001), np.arange(5000.0), label="", x_label="")
    assert long.count("L") < 450
    ElementTree.fromstring(line_chart([1, 2], [5.0, 5.0], label="", x_label=""))
    ElementTree.fromstring(line_chart([1], [5.0], label="", x_label=""))


def test_degree_rows_count_every_node_once():
    degree = np.array([0, 1, 1, 2, 3, 4, 5, 8, 9, 16, 17, 1000])
    rows = degree_rows(degree)
    assert rows[:6] == [("0", 1), ("1", 2), ("2", 1), ("3–4", 2), ("5–8", 2), ("9–16", 2)]
    assert sum(count for _, count in rows) == len(degree)
    assert rows[-1] == ("513–1,024", 1)
    assert degree_rows(np.array([1, 2]))[0] == ("1", 1)
    assert degree_rows(np.zeros(3, int))[0] == ("0", 3)


def test_bars_and_matrix_escape_names():
    for markup in (
        part("bars", [(NASTY, 3), ("b", 0)], label=NASTY),
        part("confusion", [NASTY, "b"], [[3, 1], [0, 2]]),
    ):
        assert "<b>" not in markup
        assert "&lt;/script&gt;" in markup
    table = part("confusion", ["a", "b"], [[3, 1], [0, 2]])
    assert re.findall(r"--share:([\d.]+)", table) == ["0.750", "0.250", "0.000", "1.000"]
    assert "75 %" in table
    assert "100 %" in table


ANSWERS = {
    "predict": {
        "nodes": 1234,
        "several": False,
        "labelled": {NASTY: 60, "Law": 4},
        "predicted": {NASTY: 1000, "Law": 234},
        "text": f"1,234 nodes predicted\nexpected: accuracy 81.2 ± 5.0 % {NASTY}",
        "rivals": [{"name": NASTY, "roc_auc": 0.61}, {"name": "trees", "roc_auc": 0.7}],
    },
    "cluster": {
        "method": "kmeans",
        "groups": 2,
        "text": "2 groups by kmeans",
        "profiles": [
            [
                {
                    "what": f"{NASTY} = b",
                    "kind": "category",
                    "sides": ["41 of 52", "88 of 750"],
                    "inside": 41,
                    "known": 52,
                    "outside": 88,
                    "known_outside": 750,
                    "effect": 3.3,
                }
            ],
            [],
        ],
        "stability": {"times": 5, "agreement": 0.9, "groups": [0.95, 0.4]},
        "sizes": [900, 334],
        "typical": [[NASTY, "b"], [7]],
        "silhouette": 0.31,
        "chosen_by": "silhouette",
        "outside": 0,
    },
    "links": {
        "best": [{"source": NASTY, "target": "Ada", "score": 0.98}],
        "evaluation": {
            "held_out": 120,
            "negatives": 100,
            "scores": {
                name: {"roc_auc": 0.9, "mrr": 0.5}
                for name in ("embeddings", "common_neighbours", "adamic_adar", "features")
            },
        },
    },
}


def test_every_answer_has_its_section_and_names_are_escaped():
    page = answer_sections(ANSWERS)
    for text in (
        "How far to trust the predictions",
        "1,234",
        "81.2 ± 5.0 %",
        "0.610",
        "Groups",
        "900 nodes",
        "found again by 40 %",
        "79 % (41 of 52)",
        "12 % (88 of 750)",
        "log odds +3.3",
        "Nothing sets it apart beyond chance",
        "Links",
        "adamic adar",
        "120 linked pairs were removed before training; each is ranked among 100 pairs that are "
        "not linked",
    ):
        assert text in page
    assert "<b>" not in page
    assert page.count("&lt;/script&gt;") == 7


def test_no_answer_is_no_section():
    assert answer_sections({}) == ""
    assert answer_sections({"links": {"best": []}}) == ""


@pytest.mark.parametrize("kind", ["predict", "cluster", "links"])
def test_damaged_answers_are_left_out(kind):
    for key in ANSWERS[kind]:
        for wrong in (None, "x", 3, [None], {"a": "b"}, {}):
            answer_sections({kind: ANSWERS[kind] | {key: wrong}})  # it must not fail
    assert answer_sections({kind: {"other": 1}}) == ""


def test_the_page_shows_them_and_the_names_of_classes():
    contents = made_up()
    names = ("Art", "Law", NASTY, "d", "e", "f")
    named = replace(contents, answers=ANSWERS, nodes=replace(contents.nodes, class_names=names))
    page = render(named)
    assert "How far to trust the predictions" in page
    assert '<th scope="row">Law</th>' in page
    assert "class 1" not in page
    assert "How far to trust the predictions" not in render(contents)


def test_links_of_a_typed_graph_are_judged_by_other_scores():
    scores = {name: {"roc_auc": 0.8, "mrr": 0.4} for name in ("embeddings", "popularity")}
    worth = {"held_out": 9, "negatives": 5, "scores": scores}
    page = answer_sections({"links": {"evaluation": worth}})
    assert "popularity" in page
    assert "adamic adar" not in page
