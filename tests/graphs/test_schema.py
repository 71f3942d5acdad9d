import numpy as np
import pytest

from graphcl.errors import GraphError, RunError
from graphcl.graphs.graph import Graph
from graphcl.graphs.schema import Direction, Schema

X = np.ones((3, 2))
WRITES, KNOWS = ("author", "writes", "paper"), ("author", "knows", "author")


def schema():
    relations = {WRITES: [[0], [1]], KNOWS: [[0, 1], [1, 0]], ("paper", "cites", "paper"): []}
    return Schema.of(Graph.from_edges({"author": X, "paper": X}, relations))


def test_directions_are_two_unless_a_relation_is_undirected():
    found = schema().directions()
    assert found[:2] == [
        Direction(WRITES, False, "author", "paper"),
        Direction(WRITES, True, "paper", "author"),
    ]
    assert found[2] == Direction(KNOWS, False, "author", "author")
    assert len(found) == 5
    assert len(schema().into("author")) == 2


def test_it_goes_through_json_and_refuses_what_is_damaged():
    values = schema().to_json()
    assert Schema.from_json(values) == schema()
    for broken in (
        {},
        values | {"types": values["types"] * 2},
        values | {"relations": [values["relations"][0] | {"source": "journal"}]},
        values | {"relations": [values["relations"][0] | {"undirected": True}]},
        values | {"relations": [values["relations"][0] | {"num_edges": 1.5}]},
    ):
        with pytest.raises(RunError, match="damaged schema"):
            Schema.from_json(broken)


def test_a_relation_that_had_no_edges_cannot_have_some_later():
    later = Graph.from_edges({"paper": X}, {("paper", "cites", "paper"): [[0], [1]]})
    with pytest.raises(GraphError, match="paper:cites:paper had no edges in training"):
        schema().check(later)


def test_other_kinds_of_edges_are_refused():
    one_way = Graph.from_edges({"author": X}, {KNOWS: [[0], [1]]})
    with pytest.raises(GraphError, match="author:knows:author: undirected is False; in training"):
        schema().check(one_way)
