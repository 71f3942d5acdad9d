from dataclasses import replace

import pytest

from graphcl.reporting.answers import answer_sections
from graphcl.reporting.page import render
from tests.reporting.conftest import made_up

NASTY = '</script><b>"&'
ERROR = {
    "accuracy": 0.8125,
    "standard_error": 0.05,
    "micro_f1": 0.7,
    "majority": 0.4,
    "calibration_error": 0.041,
    "nodes": 64,
}
ANSWERS = {
    "predict": {
        "nodes": 1234,
        "several": False,
        "labelled": {NASTY: 60, "Law": 4},
        "predicted": {NASTY: 1000, "Law": 234},
        "error": ERROR,
        "test": None,
    },
    "cluster": {
        "method": "kmeans",
        "groups": 2,
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
        "Predicted labels",
        "1,234",
        "81.2 ± 5.0 %",
        "64 labelled nodes, each held out",
        "0.041",
        "Groups",
        "900 nodes",
        "chosen by the silhouette",
        "Links",
        "adamic adar",
        "120 linked pairs were removed before training; each is ranked among 100 pairs that are "
        "not linked",
    ):
        assert text in page
    assert "<b>" not in page
    assert page.count("&lt;/script&gt;") == 3


def test_no_answer_is_no_section_and_several_labels_are_scored_by_f1():
    assert answer_sections({}) == ""
    several = ANSWERS["predict"] | {"several": True}
    assert "Expected micro-F1" in answer_sections({"predict": several})
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
    assert "Predicted labels" in page
    assert '<th scope="row">Law</th>' in page
    assert "class 1" not in page
    assert "Predicted labels" not in render(contents)


def test_links_of_a_typed_graph_are_judged_by_other_scores():
    scores = {name: {"roc_auc": 0.8, "mrr": 0.4} for name in ("embeddings", "popularity")}
    worth = {"held_out": 9, "negatives": 5, "scores": scores}
    page = answer_sections({"links": {"evaluation": worth}})
    assert "popularity" in page
    assert "adamic adar" not in page
