"""Graphs with types that change, against sets and dictionaries."""

import numpy as np
import pytest

from graphcl import Graph
from graphcl.errors import GraphError
from graphcl.graphs.rebuilding import TypedDelta, rebuild

CITES, KNOWS = ("paper", "cites", "paper"), ("author", "knows", "author")
WRITES = ("author", "writes", "paper")


def library(seed=0, *, features=True):
    random = np.random.default_rng(seed)
    writes = {"edge_index": random.integers(0, 9, (2, 30)) * np.array([[1], [1]])}
    if features:
        writes["edge_features"] = random.normal(size=(30, 2))
    knows = {"edge_index": random.integers(0, 9, (2, 12)), "undirected": True}
    return Graph.from_edges(
        {
            "author": {"x": random.normal(size=(9, 3)), "node_ids": [f"a{n}" for n in range(9)]},
            "paper": {"x": random.normal(size=(9, 2)), "y": random.integers(0, 2, 9)},
        },
        {
            WRITES: writes,
            CITES: {
                "edge_index": random.integers(0, 9, (2, 25)),
                "edge_weight": random.random(25) + 0.5,
                "undirected": False,
            },
            KNOWS: knows,
        },
    )


def pairs(graph, key):
    one = graph.relations[key]
    weight = [1.0] * len(one.indices) if one.edge_weight is None else one.edge_weight.tolist()
    return sorted(zip(*one.edge_index().tolist(), np.round(weight, 5), strict=True))


@pytest.mark.parametrize("features", [True, False])
def test_nothing_changes_nothing(features):
    graph = library(features=features)
    again = rebuild(graph, TypedDelta())
    for key, one in graph.relations.items():
        other = again.relations[key]
        assert (one.undirected, one.num_edges) == (other.undirected, other.num_edges)
        for name in ("indptr", "indices", "edge_weight", "edge_features"):
            wanted = getattr(one, name)
            if wanted is not None:
                np.testing.assert_array_equal(getattr(other, name), wanted)
    for name, own in graph.nodes.items():
        np.testing.assert_array_equal(again.nodes[name].x, own.x)
    assert again.nodes["author"].node_ids.tolist() == graph.nodes["author"].node_ids.tolist()


@pytest.mark.parametrize("seed", range(5))
def test_against_dictionaries_of_pairs(seed):
    graph, random = library(seed, features=False), np.random.default_rng(seed)
    gone = random.choice(9, 2, replace=False)
    there = graph.relations[CITES].edge_index()
    drop = there[:, random.choice(there.shape[1], 3, replace=False)]
    new = np.array([[9, 0, 9], [3, 9, 9 + 1]])
    kept = [row for row in range(9) if row not in gone]
    new = new[:, ~np.isin(new, gone).any(axis=0)]
    delta = TypedDelta(
        nodes={"paper": {"num_nodes": 2, "x": np.ones((2, 2)), "y": [1, -1]}},
        removed={"paper": gone},
        edges={CITES: {"edge_index": new, "edge_weight": np.full(new.shape[1], 7.0)}},
        dropped={CITES: drop},
    )
    expected = {(s, t): w for s, t, w in pairs(graph, CITES)}
    for pair in drop.T.tolist():
        expected.pop(tuple(pair), None)
    expected = {pair: w for pair, w in expected.items() if not set(pair) & set(gone.tolist())}
    expected |= {tuple(pair): 7.0 for pair in new.T.tolist()}
    number = {old: place for place, old in enumerate([*kept, 9, 10])}
    found = rebuild(graph, delta)
    assert pairs(found, CITES) == sorted(
        (number[s], number[t], w) for (s, t), w in expected.items() if s != t
    )
    assert found.nodes["paper"].y.tolist() == [*graph.nodes["paper"].y[kept].tolist(), 1, -1]
    wrote = [(s, t) for s, t, _ in pairs(graph, WRITES) if t in kept]
    assert [(s, t) for s, t, _ in pairs(found, WRITES)] == sorted((s, number[t]) for s, t in wrote)


def test_undirected_edges_are_removed_whichever_end_is_named_first():
    graph = library()
    first, second = graph.relations[KNOWS].edge_index()[:, 0]
    for ends in ([[first], [second]], [[second], [first]]):
        found = rebuild(graph, TypedDelta(dropped={KNOWS: np.array(ends)}))
        assert found.relations[KNOWS].num_edges == graph.relations[KNOWS].num_edges - 1


@pytest.mark.parametrize(
    ("delta", "message"),
    [
        (TypedDelta(removed={"paper": np.arange(9)}), "every node of type 'paper'"),
        (TypedDelta(dropped={KNOWS: np.array([[0], [0]])}), "edge to remove is not there"),
        (
            TypedDelta(
                removed={"author": np.array([1])}, edges={KNOWS: {"edge_index": [[1], [2]]}}
            ),
            "added to a node that is removed",
        ),
        (TypedDelta(edges={CITES: {"edge_index": [[1], [2]]}}), "edges have edge_weight"),
        (
            TypedDelta(edges={KNOWS: {"edge_index": [[1], [2]], "edge_weight": [1.0]}}),
            "edges have no edge_weight",
        ),
        (TypedDelta(nodes={"paper": {"num_nodes": 1}}), "new nodes lack x"),
    ],
)
def test_what_does_not_fit_is_refused(delta, message):
    with pytest.raises(GraphError, match=message):
        rebuild(library(), delta)
