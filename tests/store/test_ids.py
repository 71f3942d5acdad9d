import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.errors import RunError
from graphcl.store.columns import Names
from graphcl.store.ids import Ids, rows_of


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
    monkeypatch.setattr("graphcl.store.ids._BLOCK", 2)
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
