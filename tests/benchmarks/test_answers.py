import numpy as np
import pytest

from benchmarks.answers import PAGE, _draw, floor, page
from graphcl.answers.prediction import known_labels


def test_the_tables_of_the_page_are_those_of_the_rows():
    assert page(PAGE.read_text()) == PAGE.read_text(), "python -m benchmarks.answers page"


def test_so_many_labels_of_each_class_are_drawn_and_at_most_half():
    y = np.repeat([0, 1, 2], [100, 30, 5])
    drawn = _draw(known_labels(y, np.arange(135)), 20, np.random.default_rng(0))
    assert np.bincount(y[drawn]).tolist() == [20, 15, 2]


def test_the_floor_falls_with_the_number_of_nodes_and_is_0_for_certainty():
    random = np.random.default_rng(0)
    few, many = (random.dirichlet([1, 1, 1], n) for n in (50, 5000))
    assert floor(few, False) > 3 * floor(many, False) > 0
    assert floor(np.eye(3)[[0, 1, 2]], False) == 0
    assert floor(np.full((4000, 2), 0.5), True) == pytest.approx(0.8 * 0.5 / 8000**0.5, rel=0.5)
