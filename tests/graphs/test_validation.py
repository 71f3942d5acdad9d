import numpy as np
import pandas
import pytest
import scipy.sparse

import graphcl
from graphcl.errors import GraphError
from graphcl.graphs.conversion import flatten
from graphcl.graphs.graph import Graph
from graphcl.graphs.validation import is_labelled, is_number, numbered_labels

X = np.eye(3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": [[1, 2], [3, np.nan], [5, 6]]}, "x: nan at node 1, feature 1"),
        ({"x": [[1, 2], [3, 4], [-np.inf, 6]]}, "x: -inf at node 2, feature 0"),
        ({"x": np.array([[0.0], [1e39], [0.0]])}, "x: 1e+39 at node 1, feature 0"),
        ({"x": scipy.sparse.csr_array([[0, 0], [0, np.inf], [1, 0]])}, "inf at node 1, feature 1"),
        ({"x": np.ones(3)}, "a single feature is a column: x.reshape(-1, 1)"),
        ({"x": np.ones((0, 4)), "edge_index": np.zeros((2, 0))}, "zero nodes"),
        ({"x": np.ones((3, 0))}, "zero features"),
        ({"x": [["a"], ["b"], ["c"]]}, "features must be numbers"),
        ({"x": [[1], [1, 2], [3]]}, "not a rectangular array"),
        ({"edge_index": [[0, 1], [1, 3]]}, "edge 1 names node 3, but the nodes are 0 to 2"),
        ({"edge_index": [[0, -1], [1, 2]]}, "edge 1 names node -1"),
        ({"edge_index": [[0, 1], [1, 2], [2, 0]]}, "got (3, 2); pass its transpose"),
        ({"edge_index": [[0.0, 1.0], [1.0, 2.0]]}, "node numbers must be integers"),
        ({"y": [0, 1]}, "y: 2 labels for 3 nodes"),
        ({"y": [0, 1, -2]}, "y: -2 at node 2"),
        ({"y": [0, 0.5, np.inf]}, "y: inf is not a number"),
        ({"y": [[0, 1], [1, 2], [0, 0]]}, "y: 2 at node 1; labels are 0 or 1"),
        ({"y": [["a", "b"]] * 3}, "labels must be class numbers"),
        ({"y": [[0, 1], [1, -1], [0, 0]]}, "y: -1 at node 1; labels are 0 or 1, and −1 in the"),
        ({"y": [[0, 1], [1, np.nan], [0, 0]]}, "y: nan at node 1 is not a class number"),
        ({"y": [[0, 1], [-2, -2], [0, 0]]}, "y: -2 at node 1"),
        ({"train_mask": [True, False]}, "train_mask: 2 entries for 3 nodes"),
        ({"val_mask": [7]}, "val_mask: node 7 is not among 0 to 2"),
        ({"train_mask": [0, 1], "test_mask": [1, 2]}, "train_mask and test_mask share node 1"),
        ({"node_ids": ["a"]}, "node_ids: 1 names for 3 nodes"),
        ({"node_ids": ["b", "a", "b"]}, "node_ids: nodes 0 and 2 have the same id 'b'"),
        ({"node_ids": ["b", "a", "a\0"]}, "the id of node 2 contains a NUL byte; remove it"),
        ({"node_ids": np.array([7, 5, 5])}, "node_ids: nodes 1 and 2 have the same id 5"),
        ({"node_ids": [("a", 1), 2, ("a", 1)]}, "nodes 0 and 2 have the same id ('a', 1)"),
    ],
)
def test_bad_input_is_refused_with_its_place(changes, message):
    with pytest.raises(GraphError) as caught:
        Graph.from_edge_index(**({"edge_index": [[0, 1], [1, 2]], "x": X} | changes))
    assert message in str(caught.value)


@pytest.mark.parametrize("wide", [[2**63, 2**63 + 1], [2**63, 2**63 - 1], [2**64, -1]])
def test_numbers_of_more_than_64_bits_are_ids(wide, tmp_path):
    graph = Graph.from_edge_index([[0], [1]], X[:2], node_ids=wide)
    assert [int(one) for one in graph.node_ids.tolist()] == wide
    assert graph.nodes["node"].rows(wide[::-1]).tolist() == [1, 0]
    graph.save(tmp_path / "store")
    again = graphcl.open_graph(str(tmp_path / "store"))
    assert again.nodes["node"].rows(map(str, wide)).tolist() == [0, 1]


def test_how_weights_of_one_edge_are_added():
    def weights(edges, given):
        graph = Graph.from_edge_index(np.array(edges).T, np.ones((3, 1)), edge_weight=given)
        return dict(
            zip(map(tuple, graph.edge_index().T.tolist()), graph.edge_weight.tolist(), strict=True)
        )

    assert weights([(0, 1), (0, 1), (1, 2)], [1, 2, 5]) == {
        (0, 1): 3,
        (1, 0): 3,
        (1, 2): 5,
        (2, 1): 5,
    }
    assert weights([(0, 1), (1, 0)], [2, 2]) == {(0, 1): 2, (1, 0): 2}  # a symmetric list
    assert weights([(0, 1), (1, 0)], [2, 3]) == {(0, 1): 5, (1, 0): 5}
    assert weights([(0, 1), (1, 0), (1, 2)], [2, 2, 1])[(0, 1)] == 4
    assert weights([(0, 0), (1, 0)], [7, 3]) == {(0, 1): 3, (1, 0): 3}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 0], "edge_weight: 0 at edge 1; weights are positive"),
        ([1, -2], "-2 at edge 1"),
        ([np.nan, 1], "nan at edge 0"),
        ([np.inf, 1], "inf at edge 0"),
        ([1e300, 1], "1e\\+300 at edge 0 is outside the range of float32; divide all"),
        ([1, 1e-300], "1e-300 at edge 1 is outside the range of float32; divide all"),
        ([1, 1e-40], "1e-40 at edge 1 is outside the range of float32"),
        ([3e38, 1e38], "of node 0's edges add up to more than a float32 can represent; divide all"),
        ([1e38, 2.5e38], "of node 1's edges add up to more than a float32 can represent"),
        ([1], "expected one per edge, 2; got shape \\(1,\\)"),
        (["a", "b"], "weights must be numbers"),
    ],
)
def test_bad_weights(given, message):
    with pytest.raises(GraphError, match=message):
        Graph.from_edge_index([[0, 1], [1, 2]], np.ones((3, 1)), edge_weight=given)


def test_weights_that_add_up_to_too_much_for_an_edge():
    with pytest.raises(GraphError, match="the weights of an edge add up to a number outside"):
        Graph.from_edge_index([[0, 0], [1, 1]], np.ones((2, 1)), edge_weight=[3e38, 3e38])


@pytest.mark.parametrize("none", [-1, np.nan])
def test_a_row_of_nothing_is_a_node_without_several_labels(none):
    graph = Graph.from_edge_index([[0, 1], [1, 2]], X, [[0, 1], [none, none], [0, 0]])
    assert graph.y.tolist() == [[0, 1], [-1, -1], [0, 0]]
    assert is_labelled(graph.y).tolist() == [True, False, True]


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
        (np.array([1, 0, np.nan, 1]), ([1, 0, -1, 1], ())),
        ({"a": [1, 2], "b": []}, ([[1, 1], [0, 0], [-1, -1], [-1, -1]], (1, 2))),
    ],
)
def test_labels_have_one_form_however_they_are_given(labels, expected):
    numbers, names = numbered_labels(labels, IDS, "x")
    assert (numbers.tolist(), names) == expected


NUMBER = ([1.5, -2.0, None, 1.0], ())


@pytest.mark.parametrize(
    ("labels", "kind", "expected"),
    [
        ([1.5, -2, np.nan, 1], "auto", NUMBER),
        (np.array([1.5, -2, np.nan, 1], np.float32), "auto", NUMBER),
        (pandas.Series([1.5, -2, None, 1]), "auto", NUMBER),
        ({"a": 1.5, "b": -2, "d": 1}, "auto", NUMBER),
        (["1.5", "-2", "", "1"], "number", NUMBER),
        ([2, 0, 1, 2], "number", ([2.0, 0.0, 1.0, 2.0], ())),
        ([1.5, -2, np.nan, 1], "classes", ([2, 0, -1, 1], ("-2.0", "1.0", "1.5"))),
        (["1.5", "-2", "", "1"], "auto", ([2, 0, -1, 1], ("-2", "1", "1.5"))),
        ([True, False, None, True], "auto", ([1, 0, -1, 1], ("False", "True"))),
    ],
)
def test_a_number_to_predict_is_told_from_classes(labels, kind, expected):
    numbers, names = numbered_labels(labels, IDS, "x", kind)
    assert numbers.dtype == (np.float64 if expected is NUMBER or kind == "number" else np.int64)
    assert (np.where(np.isnan(numbers), None, numbers).tolist(), names) == expected


def test_whole_numbers_are_classes_if_few_of_them_differ():
    ages = np.arange(18.0, 90)
    assert is_number(ages)
    assert is_number(np.repeat(ages, 19))  # 5.3 % differ
    assert not is_number(np.repeat(ages, 21))
    assert not is_number(np.tile(ages[:20], 3))
    assert not is_number(np.append(np.arange(60.0), [-1, np.nan]))  # class numbers
    assert is_number(np.append(np.arange(60.0), 61))
    assert is_number(np.append(np.zeros(9999), 0.5))
    series = pandas.Series(ages.astype(int), index=[f"n{one}" for one in range(72)])
    assert numbered_labels(series, series.index.to_numpy(), "x")[0].dtype == np.float64
    assert numbered_labels(ages.astype(int), np.arange(72), "x")[0].dtype == np.int64
    with pytest.raises(GraphError, match="x: a label is not a number"):
        numbered_labels(["1.5", "many", "", "1"], IDS, "x", "number")


def test_a_number_is_no_class_wherever_a_graph_goes(tmp_path):
    y = [1.5, np.nan, 3, 4]
    graph = Graph.from_edge_index([[0, 1, 2], [1, 2, 3]], np.eye(4), np.array(y)[:, None])
    typed = Graph.from_edges(
        {"a": {"x": np.eye(4), "y": y}, "b": np.eye(2)}, {("a", "r", "b"): [[0, 1], [1, 0]]}
    )
    graph.save(tmp_path / "store")
    np.savez(tmp_path / "g.npz", edge_index=[[0, 1], [1, 2]], x=np.eye(4), y=y)
    forms = [
        graph.nodes["node"],
        typed.nodes["a"],
        graphcl.open_graph(tmp_path / "store").only_type,
        graphcl.open_graph(tmp_path / "g.npz").only_type,
        Graph.from_pyg(graph.to_pyg()).only_type,
        Graph.from_pyg(typed.to_pyg()).nodes["a"],
    ]
    for nodes in forms:
        assert nodes.y.dtype == np.float64
        assert nodes.has_number
        assert np.array_equal(nodes.y, y, equal_nan=True)
        assert is_labelled(nodes.y).tolist() == [True, False, True, True]
        assert (nodes.classes, nodes.num_classes, nodes.class_names) == (None, 0, ())
        assert nodes.described_labels == "a number to predict"
    assert "4 dense features, a number to predict" in repr(graph)
    flat = flatten(typed)
    assert np.array_equal(flat.y, [*y, np.nan, np.nan], equal_nan=True)
    with pytest.raises(GraphError, match="the label is a number, not a class; predict answers it"):
        graphcl.linear_probe(np.eye(4), graph)


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
    assert sorted(found.rows.tolist()) == [0, 1, 2, 3, 4]
    assert graphcl.linear_probe(z, some).nodes[2] > 0
    codes = (z[:, 0] > 0).astype(int)
    graph = graphcl.Graph.from_edge_index([[0], [1]], z, codes)
    assert graphcl.linear_probe(z, names) == graphcl.linear_probe(z, graph)


def test_of_a_typed_graph_the_type_with_labels_is_meant():
    z = np.random.default_rng(0).normal(size=(40, 3))
    codes = (z[:, 0] > 0).astype(int)
    some = np.where(np.arange(40) < 30, codes, -1)
    ends = [[0, 1], [1, 2]]
    graph = graphcl.Graph.from_edges(
        {"pet": {"x": z, "y": some}, "owner": {"x": z[:5]}}, {("owner", "has", "pet"): ends}
    )
    both = {"owner": z[:5], "pet": z}
    assert graphcl.linear_probe(both, graph) == graphcl.linear_probe(z, some)
    found = graphcl.predict(both, graph)
    np.testing.assert_array_equal(
        found.probabilities, graphcl.predict(z, graph.nodes["pet"], some).probabilities
    )
    for ask in (graphcl.cluster, graphcl.neighbors, graphcl.predict):
        with pytest.raises(GraphError, match=r"several types \(owner, pet\); pass those of one"):
            ask(both)
    with pytest.raises(GraphError, match="expected a graphcl"):
        graphcl.predict(z, some)
