import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphcl.kernels.distinct import number_distinct
from tests.conftest import FUZZ

NUMBERS = st.one_of(st.integers(0, 20), st.integers(0, 2**62))


@FUZZ
@given(st.lists(NUMBERS, max_size=200))
def test_values_are_numbered_as_they_come(values):
    expected = list(dict.fromkeys(values))
    found, places = number_distinct(np.array(values, dtype=np.int64))
    assert found.tolist() == expected
    assert places.tolist() == [expected.index(value) for value in values]
