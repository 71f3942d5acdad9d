import sys

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl import Graph
from graphcl.errors import GraphError, RunError
from graphcl.store.columns import Ids, Names, ScaledFeatures, rows_of


@pytest.mark.parametrize(("features", "error"), [("float16", 1e-3), ("int8", 1 / 250)])
def test_narrow_features_are_close_to_the_originals(graph, tmp_path, features, error):
    graph.save(tmp_path / "g", features=features)
    again = Graph.open(tmp_path / "g")
    largest = np.abs(graph.x[graph.train_mask]).max(axis=0)
    beyond = np.maximum((np.abs(graph.x) / largest).max(axis=1, keepdims=True), 1)
    allowed = error * largest * np.where(beyond > 1, 2 * beyond, 1)  # a row's own power of two
    difference = np.abs(np.asarray(again.x, dtype=np.float32) - graph.x)
    assert (difference <= allowed).all()
    assert (beyond[graph.train_mask] == 1).all()
    assert (beyond > 1).any()
    again.save(tmp_path / "h", features="float32")  # a graph from a store can be saved again
    np.testing.assert_array_equal(
        Graph.open(tmp_path / "h").x, np.asarray(again.x, dtype=np.float32)
    )


def test_scaled_features_index_like_an_array(graph, tmp_path):
    graph.save(tmp_path / "g", features="int8")
    x = Graph.open(tmp_path / "g").x
    assert isinstance(x, ScaledFeatures)
    whole = np.asarray(x)
    assert (x.shape, x.ndim, len(x), x.size) == (whole.shape, 2, len(whole), whole.size)
    for rows in (3, slice(2, 9), np.array([5, 1]), whole[:, 0] > 0):
        np.testing.assert_array_equal(x[rows], whole[rows])


def test_sparse_features_and_names_survive(tmp_path):
    x = scipy.sparse.random_array((30, 9), density=0.2, rng=0, dtype=np.float32).tocsr()
    names = [f"näme {number}" for number in range(30)]
    graph = Graph.from_edge_index([[0, 1], [2, 3]], x, node_ids=names)
    graph.save(tmp_path / "g")
    again = Graph.open(tmp_path / "g", verify=True)
    assert (again.x != graph.x).nnz == 0
    assert isinstance(again.node_ids, Names)
    assert again.node_ids.tolist() == list(again.node_ids) == names
    assert (again.node_ids[3], again.node_ids[-1]) == (names[3], names[-1])
    assert again.node_ids[np.array([4, 0])].tolist() == [names[4], names[0]]
    assert np.asarray(again.node_ids).tolist() == names
    again.save(tmp_path / "h")
    assert Graph.open(tmp_path / "h").node_ids.tolist() == names


def test_whole_numbers_are_names_too(tmp_path):
    graph = Graph.from_edge_index([[0], [1]], np.eye(3), node_ids=[10, 2**40, 7])
    graph.save(tmp_path / "g")
    assert Graph.open(tmp_path / "g").node_ids.tolist() == [10, 2**40, 7]


def test_names_of_other_kinds_are_refused(tmp_path):
    graph = Graph.from_edge_index([[0], [1]], np.eye(2), node_ids=[(0, 1), (1, 1)])
    with pytest.raises(GraphError, match=r"strings; got \(0, 1\)"):
        graph.save(tmp_path / "g")
    assert list(tmp_path.iterdir()) == []


def test_int8_of_training_nodes_does_not_depend_on_other_nodes(graph, tmp_path):
    train = graph.train_mask
    loud = np.where(train[:, None], graph.x, 1e3 * graph.x).astype(np.float32)
    bits = []
    for name, x in (("a", graph.x), ("b", loud), ("c", np.where(train[:, None], graph.x, 0))):
        graph.replace(x=x.astype(np.float32)).save(tmp_path / name, features="int8")
        again = Graph.open(tmp_path / name).x
        bits.append(again[train].tobytes() + again.scale.tobytes())
        error = np.abs(np.asarray(again) - x).max(axis=1)
        assert (error <= np.abs(x).max(axis=1) / 60).all()  # no row is cut off
    assert bits[0] == bits[1] == bits[2]


@pytest.mark.parametrize("mask", [None, []])
def test_without_training_nodes_all_rows_decide_the_scales(graph, tmp_path, mask):
    free = Graph.from_edge_index(graph.edge_index(), graph.x, train_mask=mask)
    free.save(tmp_path / "g", features="int8")
    x = Graph.open(tmp_path / "g").x
    assert x.row_scale is None
    np.testing.assert_allclose(x.scale, np.abs(graph.x).max(axis=0) / 127, rtol=1e-6)


@pytest.mark.parametrize("value", [1e-44, 3e-38, 3e38])
def test_values_at_the_ends_of_float32_survive_int8(tmp_path, value):
    x = np.array([[1e-38, 0], [1e-38, 0], [value, value]], dtype=np.float32)
    Graph.from_edge_index([[0], [1]], x, train_mask=[0, 1]).save(tmp_path / "g", features="int8")
    again = np.asarray(Graph.open(tmp_path / "g").x)
    assert np.isfinite(again).all()
    np.testing.assert_allclose(again[2, 0], value, rtol=1e-2, atol=1e-37)


@pytest.mark.parametrize("searched", [2, 1 << 20])
def test_the_first_of_a_name_is_found_without_decoding(monkeypatch, searched):
    monkeypatch.setattr("graphcl.store.columns._SEARCHED", searched)
    texts = ["ab", "", "Zoë", "ba", "ab", "a", "Zoë!"]
    names = Names.of(texts)
    assert [names.find(text) for text in texts] == [texts.index(text) for text in texts]
    assert [names.find(text) for text in ("Zoe", "b", "abc")] == [-1, -1, -1]
    assert Names.of(["x"]).find("") == -1


@pytest.mark.parametrize("count", [1, 5])
def test_ids_are_found_by_their_text_and_the_first_of_equals_counts(count):
    ids = np.array(["a", "7", "Zoë", "7"], dtype=object)
    assert (
        rows_of(["Zoë", 7, "a", "7", np.int64(7)][:count], ids, "x", RunError).tolist()
        == ([2, 1, 0, 1, 1][:count])
    )
    assert rows_of([2, 0], np.arange(3), "x", RunError).tolist() == [2, 0]
    with pytest.raises(RunError, match="x: no node has the id 'Zoe'; did you mean 'Zoë'"):
        rows_of(["Zoe"] * count, ids, "x", RunError)


@pytest.mark.parametrize("asked", [1, 9])
def test_names_are_found_in_their_bytes_or_block_by_block(monkeypatch, asked):
    monkeypatch.setattr("graphcl.store.columns._BLOCK", 2)
    texts = ["a", "7", "Zoë", "7", "", "ab", "aë", "Zo"]
    names = Names.of(texts)
    for text in texts:
        assert rows_of([text] * asked, names, "x", RunError).tolist() == [texts.index(text)] * asked
        assert rows_of([*texts], names, "x", RunError).tolist() == list(map(texts.index, texts))
    with pytest.raises(RunError, match="no node has the id 'Zoe'; did you mean 'Zo'"):
        rows_of(["Zoe"] * asked, names, "x", RunError)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), kept=st.booleans())
def test_every_kind_of_ids_against_a_dictionary(data, kept):
    """Numbers, texts and names, found one by one or in bulk: the first node with the text."""
    number = st.integers(-3, 12)
    odd = ["007", "1.0", "a", "", "Zoë", "-0", "9" * 30]
    text = st.one_of(number.map(str), st.sampled_from(odd))
    kind = data.draw(st.sampled_from(["numbers", "unsigned", "texts", "names", "rows"]))
    listed = data.draw(st.lists(number if kind in ("numbers", "unsigned") else text, max_size=9))
    if kind == "unsigned":
        listed = [abs(one) for one in listed] + [2**64 - 1]
    ids = {
        "numbers": lambda: np.array(listed, np.int64),
        "unsigned": lambda: np.array(listed, np.uint64),
        "texts": lambda: np.array(listed, object),
        "names": lambda: Names.of(listed),
        "rows": lambda: len(listed),
    }[kind]()
    listed = list(range(len(listed))) if kind == "rows" else listed
    wanted = data.draw(st.lists(st.one_of(number, text, st.just(2**64 - 1)), max_size=12))
    first = {}
    for row, one in enumerate(listed):
        first.setdefault(str(one), row)
    finder = Ids(ids, kept=kept)
    assert finder.find(wanted).tolist() == [first.get(str(one), -1) for one in wanted]
    whole = np.array([one for one in wanted if isinstance(one, int) and one < 99], np.int64)
    large = np.array([2**64 - 1, 2**64 - 2, 3], np.uint64)
    assert finder.find(large).tolist() == [first.get(str(one), -1) for one in large.tolist()]
    assert finder.find(whole).tolist() == [first.get(str(one), -1) for one in whole.tolist()]


def test_many_names_are_found_without_pyarrow(monkeypatch):
    texts = [f"n{number}" for number in range(50)]
    wanted = [*texts[::-3], "nobody"]
    expected = [*range(49, -1, -3), -1]
    ids = Ids(Names.of(texts))
    assert ids.find(wanted).tolist() == expected
    monkeypatch.setattr("graphcl.store.columns.find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert ids.find(wanted).tolist() == expected
