import numpy as np
import pytest

from graphcl.answers.labels import MOST_CLASSES, known_labels
from graphcl.errors import GraphError


def test_classes_several_labels_and_numbers_have_one_form():
    ids = np.arange(4)
    classes = known_labels(np.array([2, -1, 5, 2]), ids)
    assert (classes.kind, classes.classes) == ("classes", (2, 5))
    assert classes.targets.tolist() == [[1, 0], [0, 0], [0, 1], [1, 0]]
    several = known_labels({0: ["a", "b"], 3: ["b"]}, ids)
    assert (several.kind, several.classes, several.known.tolist()) == (
        "several",
        ("a", "b"),
        [True, False, False, True],
    )
    number = known_labels(np.array([1.5, np.nan, -3, 1e9]), ids)
    assert (number.kind, number.classes) == ("number", ())
    assert number.targets[number.known].tolist() == [1.5, -3, 1e9]
    assert known_labels({0: 1, 1: 2, 2: 1}, ids, kind="number").number
    assert known_labels(np.array([0.5, 1.5, np.nan, 0.5]), ids, kind="classes").kind == "classes"


def test_hidden_labels_leave_no_trace():
    for labels in (np.array([1, 0, 1, 0]), np.array([0.5, 2.5, 7.5, 1.5])):
        known = known_labels(labels, np.arange(4)).only(np.array([True, True, False, False]))
        other = known_labels(labels[[0, 1, 1, 1]], np.arange(4))
        again = other.only(np.array([True, True, False, False]))
        assert known.known.tolist() == [True, True, False, False]
        assert known.targets.tolist() == again.targets.tolist()


def test_a_label_of_its_own_for_nearly_every_node_is_no_class():
    names = {row: f"name {row}" for row in range(MOST_CLASSES + 10)}
    with pytest.raises(GraphError, match="60 different labels of 60 nodes are no classes"):
        known_labels(names, np.arange(100))
