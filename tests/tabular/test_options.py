import numpy as np
import pytest

from graphcl.errors import GraphError
from graphcl.tabular.options import (
    TableOptions,
    divide,
    holds_tables,
    of_relation,
    of_type,
)

COLUMNS = {"author": ["name", "age"], "paper": ["id", "Topic", "age"]}


def test_a_column_goes_to_its_type_or_to_all_that_have_it():
    options = TableOptions(
        nodes={"author": "a", "paper": "b"},
        label=["topic"],
        ignore=["age", "paper=id"],
        id_column={"author": "name"},
        missing="zero",
        label_separator="|",
    )
    found = divide(options, COLUMNS)
    assert (found["author"].label, found["paper"].label) == ((), ("topic",))
    assert (found["author"].ignore, found["paper"].ignore) == (("age",), ("age", "id"))
    assert (found["author"].id_column, found["paper"].id_column) == ("name", None)
    assert (found["author"].label_separator, found["paper"].label_separator) == (None, "|")
    assert {one.missing for one in found.values()} == {"zero"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"label": "age"},
            "'age' is a column of author and paper; say of which: label={'author': 'age'}",
        ),
        ({"label": "topics"}, "no column 'topics' in the tables of author, paper; did you mean"),
        ({"label": "papr=topic"}, "no type 'papr'; the types: author, paper; did you mean 'paper'"),
        ({"vectors": "v.npy"}, "vectors: say of which type: vectors={'author': 'v.npy'}"),
        ({"vectors": {"papers": "v.npy"}}, "vectors: no type 'papers'"),
        ({"label_separator": "|"}, "label_separator: there are no labels"),
    ],
)
def test_what_is_not_clear_is_refused(options, message):
    given = TableOptions(nodes={"author": "a", "paper": "b"}, **options)
    with pytest.raises(GraphError) as caught:
        divide(given, COLUMNS)
    assert message in str(caught.value)


def test_files_beside_a_table_are_of_one_type():
    options = TableOptions(nodes={"author": "a", "paper": "b"}, vectors="paper=v.npy")
    assert divide(options, COLUMNS)["paper"].vectors == "v.npy"
    assert divide(options, COLUMNS)["author"].vectors is None


def test_options_of_edges_are_of_one_relation_or_of_all():
    options = TableOptions(relation="r", weight="buys=amount", source_column="who")
    known = ["buys", "sells"]
    assert of_relation(options, "buys", known).weight == "amount"
    assert of_relation(options, "sells", known).weight is None
    assert of_relation(options, "sells", known).source_column == "who"


def test_a_remedy_names_its_type():
    assert of_type("author", ("ignore", "age")) == ("ignore", "author=age")
    assert of_type("author", ("missing", "mean")) == ("missing", "mean")
    assert of_type("author", ()) == ()


def test_a_mapping_of_tables_is_not_a_table_of_columns():
    assert holds_tables({"author": "a.csv", "paper": np.zeros((2, 2))})
    assert not holds_tables({"source": [1, 2], "target": np.zeros(2)})
    assert not holds_tables({})
    assert not holds_tables("a.csv")
