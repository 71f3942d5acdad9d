import sys

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl import Graph
from graphcl.errors import GraphError, RunError
from graphcl.store.columns import Ids, Names


def test_narrow_features_are_close_to_the_originals(graph, tmp_path):
    graph.save(tmp_path / "g", features="float16")
    again = Graph.open(tmp_path / "g")
    np.testing.assert_allclose(again.x, graph.x, rtol=1e-3)
    again.save(tmp_path / "h", features="float32")  # a graph from a store can be saved again
    np.testing.assert_array_equal(
        Graph.open(tmp_path / "h").x, np.asarray(again.x, dtype=np.float32)
    )


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


@pytest.mark.parametrize("others", [0, 20])
def test_what_is_no_text_is_no_name(others):
    """As a terminal's byte that is not UTF-8, which Python reads as half a surrogate pair."""
    asked = ["b", "\udcff", *(f"c{number}" for number in range(others))]
    assert Ids(Names.of(["a", "b"])).find(asked).tolist() == [1] + [-1] * (others + 1)
    with pytest.raises(RunError, match="no node has the id"):
        Ids(Names.of(["a", "b"])).rows(["\udcff"], "run", RunError)


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
        Ids(ids).rows(["Zoë", 7, "a", "7", np.int64(7)][:count], "x", RunError).tolist()
        == ([2, 1, 0, 1, 1][:count])
    )
    assert Ids(np.arange(3)).rows([2, 0], "x", RunError).tolist() == [2, 0]
    with pytest.raises(RunError, match="x: no node has the id 'Zoe'; did you mean 'Zoë'"):
        Ids(ids).rows(["Zoe"] * count, "x", RunError)


@pytest.mark.parametrize("asked", [1, 9])
def test_names_are_found_in_their_bytes_or_block_by_block(monkeypatch, asked):
    monkeypatch.setattr("graphcl.store.columns._BLOCK", 2)
    texts = ["a", "7", "Zoë", "7", "", "ab", "aë", "Zo"]
    names = Names.of(texts)
    for text in texts:
        assert (
            Ids(names).rows([text] * asked, "x", RunError).tolist() == [texts.index(text)] * asked
        )
        assert Ids(names).rows([*texts], "x", RunError).tolist() == list(map(texts.index, texts))
    with pytest.raises(RunError, match="no node has the id 'Zoe'; did you mean 'Zo'"):
        Ids(names).rows(["Zoe"] * asked, "x", RunError)


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
