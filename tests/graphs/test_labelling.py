import numpy as np
import pandas
import pytest

import graphcl
from graphcl.errors import GraphError
from graphcl.graphs.labelling import numbered_labels

IDS = np.array(["a", "b", "c", "d"])


BY_NAME = ([1, 0, -1, 1], ("bird", "cat"))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["cat", "bird", None, "cat"], BY_NAME),
        (np.array(["cat", "bird", "", "cat"]), BY_NAME),
        ({"d": "cat", "b": "bird", "a": "cat"}, BY_NAME),
        (pandas.Series(["cat", "bird", None, "cat"]), BY_NAME),
        (pandas.Series(["cat", "bird", pandas.NA, "cat"], dtype="string"), BY_NAME),
        (pandas.Series(["cat", "bird", None, "cat"], dtype="category"), BY_NAME),
        (pandas.Series({"d": "cat", "b": "bird", "a": "cat"}), BY_NAME),
        (pandas.Series(["cat", "bird", "cat", None], index=["d", "b", "a", "c"]), BY_NAME),
        (pandas.Series([1, 0, None, 1]), ([1, 0, -1, 1], ())),
        (pandas.Series([1, 0, None, 1], dtype="Int64"), ([1, 0, -1, 1], ())),
        ({"a": 1, "b": 0, "d": 1}, ([1, 0, -1, 1], ())),
        ([1, 0, -1, 1], ([1, 0, -1, 1], ())),
        ({"a": [1, 2], "b": []}, ([[1, 1], [0, 0], [-1, -1], [-1, -1]], (1, 2))),
    ],
)
def test_labels_have_one_form_however_they_are_given(labels, expected):
    numbers, names = numbered_labels(labels, IDS, "x")
    assert (numbers.tolist(), names) == expected


def test_a_graph_takes_labels_by_name_and_keeps_the_names():
    given = {"node_ids": IDS, "y": pandas.Series({"d": "cat", "b": "bird", "a": "cat"})}
    graph = graphcl.Graph.from_edge_index([[0, 1], [1, 2]], np.eye(4), **given)
    assert (graph.y.tolist(), graph.class_names) == BY_NAME
    typed = graphcl.Graph.from_edges({"pet": {"x": np.eye(4), **given}}, {})
    assert (typed.nodes["pet"].y.tolist(), typed.nodes["pet"].class_names) == BY_NAME
    with pytest.raises(GraphError, match="y: no node has the id 'e'"):
        graphcl.Graph.from_edge_index([[0], [1]], np.eye(4), {"e": "cat"}, node_ids=IDS)


def test_answers_take_the_same_labels():
    z = np.random.default_rng(0).normal(size=(40, 3))
    names = np.where(z[:, 0] > 0, "cat", "bird").astype(object)
    some = pandas.Series(names)[5:]
    found = graphcl.predict(z, labels=some)
    assert found.classes == ("bird", "cat")
    assert found.rows.tolist() == [0, 1, 2, 3, 4]
    assert graphcl.linear_probe(z, some).nodes[2] > 0
    codes = (z[:, 0] > 0).astype(int)
    graph = graphcl.Graph.from_edge_index([[0], [1]], z, codes)
    assert graphcl.linear_probe(z, names) == graphcl.linear_probe(z, graph)
