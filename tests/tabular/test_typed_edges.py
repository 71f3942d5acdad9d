import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.errors import GraphError
from graphcl.tabular.duck import Duck
from graphcl.tabular.options import TableOptions
from graphcl.tabular.type_ids import TypeIds
from graphcl.tabular.typed_edges import MOST_RELATIONS, EdgeTable

OPTIONS = TableOptions(directed=True)


def opened(duck, table, types, name="joins", **options):
    ids = {kind: TypeIds(kind, pyarrow.array(keys), len(keys)) for kind, keys in types.items()}
    chosen = TableOptions(directed=True, **options)
    return EdgeTable(duck, name, pyarrow.table(table), chosen, ids)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5)), min_size=1, max_size=30),
    st.permutations(range(9)),
    st.permutations(range(6)),
)
def test_ends_have_the_numbers_of_their_ids_in_the_order_of_the_list(pairs, first, second):
    types = {"a": [f"a{n}" for n in first], "b": [f"b{n}" for n in second]}
    table = {"x": [f"a{u}" for u, _ in pairs], "y": [f"b{v}" for _, v in pairs]}
    with Duck() as duck:
        found = opened(duck, table, types)
        (relation,) = found.relations
        assert relation.types == ("a", "b")
        edges, weights = found.numbered(relation)
    assert weights is None
    expected = [[first.index(u), second.index(v)] for u, v in pairs]
    np.testing.assert_array_equal(edges.T, expected)


def test_numbers_and_texts_are_compared_as_they_are_written():
    with Duck() as duck:
        found = opened(duck, {"x": ["7", "8"], "y": ["p", "q"]}, {"a": [8, 7], "b": ["p", "q"]})
        assert found.relations[0].types == ("a", "b")
        assert found.numbered(found.relations[0])[0].tolist() == [[1, 0], [0, 1]]


def test_columns_named_after_types_are_the_ends():
    table = {"day": [1, 2], "customer_id": [5, 6], "product": [1, 2]}
    with Duck() as duck:
        found = opened(duck, table, {"customers": [5, 6], "product": [1, 2, 5, 6]})
        assert found.columns == ("customer_id", "product")
        assert found.relations[0].types == ("customers", "product")


def test_too_many_relations_are_no_relations():
    count = MOST_RELATIONS + 1
    table = {"a": [0] * count, "b": [1] * count, "r": [f"r{n}" for n in range(count)]}
    with Duck() as duck, pytest.raises(GraphError, match="has 257 values"):
        opened(duck, table, {"a": [0, 1]}, relation="r")
