import numpy as np
import pytest
import scipy.sparse

from graphcl.graphs.nodes import Nodes
from graphcl.reporting.channels import all_columns, read_ranking
from graphcl.tabular.originals import Original

IDS = ["a", "b", "c", 7]
ABOUT = {"several": False, "labelled": {"no": 90, "yes": 4}}
TABLE = {
    "id": ["a", "7", "c"],
    "label": ["no", "yes", "no"],
    "probability": [0.9, 0.8, 0.7],
    "p:no": [0.9, 0.2, 0.7],
    "p:yes": [0.1, 0.8, 0.3],
}


def shown(found):
    return {one.name: [one.text(row) for row in found.rows.tolist()] for one in found.columns}


def texts(*values):
    return np.array([*values, None], dtype=object)[:-1]


def test_two_classes_are_ranked_by_the_rarer_one():
    found = read_ranking(TABLE, ABOUT, IDS)
    assert [IDS[row] for row in found.rows] == [7, "c", "a"]
    assert shown(found) == {
        "probability of yes": ["80 %", "30 %", "10 %"],
        "prediction": ["yes", "no", "no"],
    }
    assert found.columns[0].text(1) == ""  # b was not predicted


def test_a_sorted_table_says_which_class_is_looked_for_and_reasons_are_shown():
    table = TABLE | {"p:no": [0.9, 0.6, 0.5], "p:yes": [0.1, 0.4, 0.5], "why": ["x", None, "z"]}
    found = read_ranking(table, ABOUT, IDS)
    assert shown(found)["probability of no"] == ["90 %", "60 %", "50 %"]
    assert shown(found)["why"] == ["x", "", "z"]


def test_several_classes_come_by_certainty_numbers_by_value_and_others_as_they_are():
    found = read_ranking(TABLE | {"p:maybe": [0, 0, 0]}, ABOUT, IDS)
    assert shown(found)["probability"] == ["90 %", "80 %", "70 %"]
    value = {"id": ["b", "c"], "value": [1.5, 1200.0], "low": [1.0, 900.0], "high": [2.0, 1500.0]}
    found = read_ranking(value, {}, IDS)
    assert list(shown(found).items()) == [
        ("predicted value", ["1,200", "1.5"]),
        ("at least", ["900", "1"]),
        ("at most", ["1,500", "2"]),
    ]
    several = {"id": ["c", "a"], "label": [["x", "y"], []], "p:x": [1.0, 0.0], "p:y": [1.0, 0.0]}
    found = read_ranking(several, {"several": True}, IDS)
    assert shown(found) == {"prediction": ["x, y", ""]}


def test_unknown_ids_are_left_out():
    found = read_ranking({"id": ["q", "c"], "probability": [0.5, 0.25]}, {}, IDS)
    assert found.rows.tolist() == [2]


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"id": ["a"]},
        {"id": ["x", "y"], "label": ["a", "b"]},
        {"id": ["a", "a"], "probability": [1.0, 2.0]},
        {"id": ["a"], "probability": ["much"]},
        {"id": ["a", "b", "c"], "p:x": [{}, [], 1], "p:y": [1, 2, 3]},
    ],
)
def test_what_is_no_table_of_predictions_of_these_nodes_is_none(table):
    assert read_ranking(table, ABOUT, IDS) is None


def test_predictions_come_first_then_groups_labels_split_and_own_columns():
    nodes = Nodes(
        "node", 4, y=np.array([0, 1, -1, 0]), train_mask=np.array([True, False, False, True])
    )
    label = Original("label", "category", texts("x", "y", None, "x"))
    age = Original("age", "number", np.arange(4.0))
    groups = np.array([0, 1, 1, -1])
    found, own = all_columns(nodes, None, groups, [age, label])
    assert [one.name for one in found] == ["label", "group", "split"]
    assert found[1].values.tolist() == ["group 1", "group 2", "group 2", None]
    assert found[2].values.tolist() == ["train", None, None, "train"]
    assert own == [age]
    ranking = read_ranking(TABLE, ABOUT, IDS)
    found, own = all_columns(nodes, ranking, groups, [age, label])
    names = ["probability of yes", "prediction", "group", "split"]
    assert [one.name for one in found] == names
    assert own == [age, label]


def test_of_many_features_the_largest_of_a_node_are_named():
    flags = scipy.sparse.csr_array(np.array([[1, 1, 1], [1, 1, 0], [0, 1, 0]]))
    wide = np.random.default_rng(0).normal(size=(3, 40))
    wide[1, 7] = 50.0
    columns = [
        Original("said", "text", texts("x" * 999, None, "y")),
        Original("tags", "flags", flags, ("a", "b", "c")),
        Original("features", "features", wide[:, :2], ("one", "two")),
        Original("features", "features", wide, tuple(map(str, range(40)))),
    ]
    _, (said, tags, one, two, many) = all_columns(Nodes("node", 3), None, None, columns)
    assert (len(said.text(0)), said.text(1)) == (160, "")
    assert tags.values.tolist() == ["c, a, b", "a, b", "b"]  # the rarest first
    assert (one.name, two.name) == ("one", "two")
    assert many.text(1).startswith("7 = 50")
