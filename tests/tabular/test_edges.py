import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.errors import GraphError
from graphcl.tabular.edges import MOST_RELATIONS
from graphcl.tabular.options import TableOptions
from graphcl.tabular.tables import open_tables


def opened(table, types, name="joins", **options):
    """A list of edges between types with these ids, and the numbers of its ends, in its order."""
    nodes = {kind: pyarrow.table({"id": ids}) for kind, ids in types.items()}
    edges = {name: pyarrow.table(table)}
    with open_tables(None, TableOptions(nodes=nodes, edges=edges, **options)) as tables:
        (found,) = tables.lists
        (relation,) = found.relations
        found.create_pairs(relation)
        numbers = found.duck.rows("SELECT u, v FROM pairs ORDER BY place")
        ids = {kind: one.node_ids() for kind, one in tables.nodes.items()}
    return found, relation, numbers, ids


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5)), min_size=1, max_size=30),
    st.permutations(range(9)),
    st.permutations(range(6)),
)
def test_ends_have_the_numbers_of_their_ids_in_the_order_of_the_list(pairs, first, second):
    types = {"a": [f"a{n}" for n in first], "b": [f"b{n}" for n in second]}
    table = {"x": [f"a{u}" for u, _ in pairs], "y": [f"b{v}" for _, v in pairs]}
    found, relation, numbers, _ = opened(table, types)
    assert relation.types == ("a", "b")
    assert found.weight is None
    np.testing.assert_array_equal(numbers, [[first.index(u), second.index(v)] for u, v in pairs])


def test_numbers_and_texts_are_compared_as_they_are_written():
    table = {"x": ["7", "8"], "y": ["p", "q"]}
    _, relation, numbers, _ = opened(table, {"a": [8, 7], "b": ["p", "q"]})
    assert relation.types == ("a", "b")
    assert numbers == [(1, 0), (0, 1)]


def test_columns_named_after_types_are_the_ends():
    table = {"day": [1, 2], "customer_id": [5, 6], "product": [1, 2]}
    found, relation, _, _ = opened(table, {"customers": [5, 6], "product": [1, 2, 5, 6]})
    assert found.columns == ("customer_id", "product")
    assert relation.types == ("customers", "product")


def test_too_many_relations_are_no_relations():
    count = MOST_RELATIONS + 1
    table = {"a": [0] * count, "b": [1] * count, "r": [f"r{n}" for n in range(count)]}
    with pytest.raises(GraphError, match="has 257 values"):
        opened(table, {"a": [0, 1]}, relation="r")


def test_added_ids_stay_numbers_or_become_texts():
    types, options = {"a": [0, 1, 2]}, {"name": "a:joins:a", "unknown_edges": "add"}
    _, _, numbers, ids = opened({"x": [0, 1, 9], "y": [7, 1, 2]}, types, **options)
    assert ids["a"].tolist() == [0, 1, 2, 7, 9]
    assert numbers == [(0, 3), (1, 1), (4, 2)]
    _, _, numbers, ids = opened({"x": ["0", "1", "9"], "y": ["2", "x", "1"]}, types, **options)
    assert ids["a"][:].tolist() == ["0", "1", "2", "9", "x"]
    assert numbers == [(0, 2), (1, 4), (3, 1)]
    _, _, _, ids = opened({"x": [0, 1], "y": [2, 3]}, types, **options)
    assert ids["a"] is None  # 0, 1, 2, 3, in order
