import numpy as np
import pytest

from graphcl.errors import RunError
from graphcl.store.columns import Names
from graphcl.store.ids import rows_of


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
