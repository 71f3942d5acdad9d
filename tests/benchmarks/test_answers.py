import numpy as np

from benchmarks.answers import PAGE, page
from benchmarks.predictions import _draw, _scores
from graphcl.answers.inputs import known_labels


def test_the_tables_of_the_page_are_those_of_the_rows():
    assert page(PAGE.read_text()) == PAGE.read_text(), "python -m benchmarks.answers page"


def test_so_many_labels_of_each_class_are_drawn_and_at_most_half():
    y = np.repeat([0, 1, 2], [100, 30, 5])
    drawn = _draw(known_labels(y, np.arange(135)), 20, np.random.default_rng(0))
    assert np.bincount(y[drawn]).tolist() == [20, 15, 2]


def test_two_classes_are_scored_by_their_ranking_and_others_by_accuracy():
    certain = np.eye(2)[[0, 1, 1, 0]] * 0.2 + 0.4
    assert _scores(certain, np.eye(2, dtype=int)[[0, 1, 1, 0]], False)["score"] == 1
    three = np.eye(3)[[0, 1, 2, 2]]
    assert _scores(three, np.eye(3, dtype=int)[[0, 1, 2, 0]], False)["score"] == 0.75
