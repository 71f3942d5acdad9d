"""A graph and what changes in it, against the same change made to a plain list of edges."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.errors import GraphError
from graphcl.graphs.changing import (
    Delta,
    EdgeDelta,
    NodeDelta,
    affected_rows,
    change_graph,
    check_pairs,
)
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import EDGE, NODE


def plain(**given):
    """What changes in a plain graph."""
    of_edges = {key: given.pop(key) for key in ("added", "weight", "dropped") if key in given}
    x = given.get("x")
    nodes = NodeDelta(**given, new=0 if x is None else len(x))
    return Delta({NODE: nodes}, {EDGE: EdgeDelta(**of_edges)})


def pairs_of(edges):
    return np.array(sorted(edges), dtype=np.int64).reshape(-1, 2)


@st.composite
def cases(draw):
    """An old graph, a change, and the graph that plain lists make of both."""
    size, new = draw(st.integers(1, 14)), draw(st.integers(0, 3))
    node = st.integers(0, size - 1)
    pair = st.tuples(node, node).filter(lambda one: one[0] < one[1])
    old = draw(st.sets(pair, max_size=20)) if size > 1 else set()
    removed = draw(st.sets(node, max_size=size - 1))
    stays = [u for u in range(size + new) if u not in removed]
    dropped = draw(st.sets(st.sampled_from(sorted(old)), max_size=4)) if old else set()
    end = st.sampled_from(stays)
    added = draw(st.sets(st.tuples(end, end).filter(lambda one: one[0] < one[1]), max_size=8))
    changed = sorted(draw(st.sets(st.sampled_from(stays), max_size=3)))
    changed = [u for u in changed if u < size]
    x = np.arange(2 * (size + new), dtype=np.float32).reshape(-1, 2)
    weighted = draw(st.booleans())
    weights = {one: 1.0 + (3 * one[0] + one[1]) % 5 for one in old}
    given_weights = {one: 2.0 + (one[0] + 5 * one[1]) % 3 for one in added}
    graph = Graph.from_edge_index(
        pairs_of(old).T,
        x[:size],
        edge_weight=[weights[one] for one in sorted(old)] if weighted else None,
    )
    delta = plain(
        x=x[size:] if new else None,
        changed=np.array(changed, np.int64),
        changed_x=-x[changed] if changed else None,
        removed=np.array(sorted(removed), np.int64),
        added=pairs_of(added),
        weight=np.array([given_weights[one] for one in sorted(added)], np.float32)
        if weighted
        else None,
        dropped=pairs_of(dropped),
    )
    left = {one: w for one, w in weights.items() if one not in dropped}
    left = {one: w for one, w in left.items() if not removed & set(one)} | given_weights
    number = {u: row for row, u in enumerate(stays)}
    wide = x.copy()
    wide[changed] = -x[changed]
    listed = [(number[a], number[b]) for a, b in left]
    expected = Graph.from_edge_index(
        np.array(listed, dtype=np.int64).reshape(-1, 2).T,
        wide[stays],
        edge_weight=list(left.values()) if weighted else None,
    )
    return graph, delta, expected


@settings(max_examples=200, deadline=None)
@given(case=cases())
def test_it_is_the_graph_that_plain_lists_make(case):
    graph, delta, expected = case
    changed = change_graph(graph, delta)
    found = changed.graph
    assert np.array_equal(found.indptr, expected.indptr)
    assert np.array_equal(found.indices, expected.indices)
    assert np.array_equal(found.x, expected.x)
    if expected.edge_weight is None:
        assert found.edge_weight is None
    else:
        assert np.array_equal(found.edge_weight, expected.edge_weight)
    stays = [u for u in range(graph.num_nodes) if u not in set(delta.nodes[NODE].removed.tolist())]
    assert changed.kept[NODE].tolist() == stays


def trees(graph, hops):
    """All that the embedding of each node depends on, as nested tuples."""
    rows = [
        sorted(graph.indices[graph.indptr[u] : graph.indptr[u + 1]].tolist())
        for u in range(graph.num_nodes)
    ]
    weight = graph.edge_weight if graph.edge_weight is not None else np.ones(len(graph.indices))
    weights = [
        weight[graph.indptr[u] : graph.indptr[u + 1]].tolist() for u in range(graph.num_nodes)
    ]
    level = [tuple(row) for row in graph.x.tolist()]
    for _ in range(hops):
        level = [
            (level[u], tuple(zip((level[v] for v in rows[u]), weights[u], strict=True)))
            for u in range(graph.num_nodes)
        ]
    return level


@settings(max_examples=200, deadline=None)
@given(case=cases(), hops=st.integers(1, 3))
def test_affected_rows_hold_all_whose_surroundings_differ(case, hops):
    graph, delta, _ = case
    changed = change_graph(graph, delta)
    found = set(affected_rows(changed, hops)[-1][NODE].tolist())
    before, after = trees(graph, hops), trees(changed.graph, hops)
    for row in range(changed.graph.num_nodes):
        is_new = row >= len(changed.kept[NODE])
        if is_new or before[changed.kept[NODE][row]] != after[row]:
            assert row in found


def path(length):
    edges = np.stack([np.arange(length - 1), np.arange(1, length)])
    return Graph.from_edge_index(edges, np.arange(length, dtype=np.float32)[:, None])


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        (plain(changed=np.array([5]), changed_x=np.array([[9.0]], np.float32)), [3, 4, 5, 6, 7]),
        (plain(changed=np.array([5]), changed_x=np.array([[5.0]], np.float32)), []),
        (plain(dropped=np.array([[5, 4]])), [3, 4, 5, 6]),
        (plain(added=np.array([[4, 5]])), []),
        (plain(added=np.array([[0, 9]])), [0, 1, 8, 9]),
        (plain(removed=np.array([5])), [3, 4, 5, 6]),
        (plain(x=np.ones((1, 1), np.float32)), [10]),
        (plain(x=np.ones((1, 1), np.float32), added=np.array([[10, 9]])), [8, 9, 10]),
    ],
)
def test_nothing_else_is_affected(delta, expected):
    assert affected_rows(change_graph(path(10), delta), 2)[-1][NODE].tolist() == expected


def test_what_cannot_be():
    with pytest.raises(GraphError, match="every node would be removed"):
        change_graph(path(3), plain(removed=np.arange(3)))
    with pytest.raises(GraphError, match="no edge joins 0 and 2"):
        change_graph(path(3), plain(dropped=np.array([[0, 2]])))
    with pytest.raises(GraphError, match="added to a node that is removed"):
        change_graph(path(3), plain(removed=np.array([1]), added=np.array([[1, 2]])))
    with pytest.raises(GraphError, match="2 edges are not in the graph, first 'n0' – 'n2'"):
        check_pairs(
            path(4).only_relation,
            np.array([[0, 2], [1, 2], [1, 3]]),
            lambda pair: [f"n{row}" for row in pair],
            "old.csv",
        )


@pytest.mark.parametrize("features", ["float32", "float16", "sparse"])
def test_features_keep_their_form(features, tmp_path):
    random = np.random.default_rng(0)
    x = random.integers(-100, 100, (8, 3)).astype(np.float32)
    table = scipy.sparse.csr_array(x) if features == "sparse" else x
    Graph.from_edge_index([[0, 1], [1, 2]], table).save(
        tmp_path / "store", features="float32" if features == "sparse" else features
    )
    graph = Graph.open(tmp_path / "store")
    changed = change_graph(
        graph,
        plain(
            x=np.array([[1, 2, 3], [400, -3, 0]], np.float32),
            changed=np.array([1, 4]),
            changed_x=np.stack([x[1], [7, 8, 9]]),
            removed=np.array([0]),
        ),
    )
    found = changed.graph.x
    assert type(found) is type(graph.x) or isinstance(found, np.ndarray)
    wide = np.asarray(found.toarray() if features == "sparse" else found, dtype=np.float32)
    expected = np.concatenate([x[1:], [[1, 2, 3], [400, -3, 0]]])
    expected[3] = [7, 8, 9]
    np.testing.assert_array_equal(wide, expected)
    moved = changed.moved[NODE].tolist()
    assert moved == [3, 7, 8]


def test_a_number_that_float16_cannot_hold_is_refused(tmp_path):
    path(4).save(tmp_path / "store", features="float16")
    delta = plain(x=np.full((1, 1), 1e6, np.float32))
    with pytest.raises(GraphError, match="does not fit in float16"):
        change_graph(Graph.open(tmp_path / "store"), delta)


# Graphs with types

CITES, KNOWS = ("paper", "cites", "paper"), ("author", "knows", "author")
WRITES = ("author", "writes", "paper")


def library(seed=0, *, features=True):
    random = np.random.default_rng(seed)
    writes = {"edge_index": random.integers(0, 9, (2, 30))}
    if features:
        writes["edge_features"] = random.normal(size=(30, 2))
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
            KNOWS: {"edge_index": random.integers(0, 9, (2, 12)), "undirected": True},
        },
    )


def pairs(graph, key):
    one = graph.relations[key]
    weight = [1.0] * len(one.indices) if one.edge_weight is None else one.edge_weight.tolist()
    return sorted(zip(*one.edge_index().tolist(), np.round(weight, 5), strict=True))


def same_edges(found, expected):
    assert (found.undirected, found.num_edges) == (expected.undirected, expected.num_edges)
    for name in ("indptr", "indices", "edge_weight", "edge_features"):
        wanted = getattr(expected, name)
        if wanted is not None:
            np.testing.assert_allclose(getattr(found, name), wanted, rtol=1e-5)


def test_nothing_changes_nothing():
    graph = library()
    again = change_graph(graph, Delta()).graph
    for key, one in graph.relations.items():
        assert again.relations[key] is one
    for name, own in graph.nodes.items():
        assert again.nodes[name].x is own.x


@pytest.mark.parametrize("seed", range(5))
def test_relations_against_dictionaries_of_pairs(seed):
    graph, random = library(seed, features=False), np.random.default_rng(seed)
    gone = np.sort(random.choice(9, 2, replace=False))
    there = graph.relations[CITES].edge_index()
    drop = there[:, random.choice(there.shape[1], 3, replace=False)].T
    new = np.array([[9, 3], [0, 9], [9, 10], [4, 4]])
    kept = [row for row in range(9) if row not in gone]
    new = new[~np.isin(new, gone).any(axis=1)]
    changed = change_graph(
        graph,
        Delta(
            {"paper": NodeDelta(new=2, x=np.ones((2, 2), np.float32), removed=gone)},
            {CITES: EdgeDelta(new, np.full(len(new), 7, np.float32), dropped=drop)},
        ),
    )
    expected = {(s, t): w for s, t, w in pairs(graph, CITES)}
    for pair in drop.tolist():
        expected.pop(tuple(pair), None)
    expected = {pair: w for pair, w in expected.items() if not set(pair) & set(gone.tolist())}
    expected |= {tuple(pair): 7.0 for pair in new.tolist() if pair[0] != pair[1]}
    number = {old: place for place, old in enumerate([*kept, 9, 10])}
    found = changed.graph
    listed = sorted((number[s], number[t], w) for (s, t), w in expected.items())
    assert pairs(found, CITES) == listed
    wrote = [(s, t) for s, t, _ in pairs(graph, WRITES) if t in kept]
    assert [(s, t) for s, t, _ in pairs(found, WRITES)] == sorted((s, number[t]) for s, t in wrote)
    again = Graph.from_edges(
        {name: {"x": one.x} for name, one in found.nodes.items()},
        {
            CITES: {
                "edge_index": np.array([one[:2] for one in listed]).T,
                "edge_weight": [one[2] for one in listed],
                "undirected": False,
            }
        },
    )
    same_edges(found.relations[CITES], again.relations[CITES])


def test_an_edge_with_features_is_an_edge_more_and_goes_with_its_like():
    graph = library()
    source, target = graph.relations[WRITES].edge_index()[:, 4].tolist()
    before = sum((s, t) == (source, target) for s, t, _ in pairs(graph, WRITES))
    delta = EdgeDelta(np.array([[source, target]]), features=np.full((1, 2), 5, np.float32))
    grown = change_graph(graph, Delta(edges={WRITES: delta})).graph
    own = grown.relations[WRITES]
    place = int(np.flatnonzero((own.edge_features == 5).all(axis=1))[0])
    assert own.edge_index()[:, place].tolist() == [source, target]
    assert sum((s, t) == (source, target) for s, t, _ in pairs(grown, WRITES)) == before + 1
    dropped = Delta(edges={WRITES: EdgeDelta(dropped=np.array([[source, target]]))})
    found = change_graph(grown, dropped).graph
    assert (source, target) not in [(s, t) for s, t, _ in pairs(found, WRITES)]
    assert found.relations[WRITES].num_edges == own.num_edges - before - 1


def test_edges_keep_one_number_in_both_directions():
    edges = np.array([[0, 0, 1, 2], [1, 1, 2, 3]])
    about = {"edge_index": edges, "edge_features": np.arange(4.0)[:, None], "undirected": True}
    graph = Graph.from_edges({"author": {"num_nodes": 4}}, {KNOWS: about})
    delta = EdgeDelta(np.array([[3, 1]]), features=np.array([[9.0]], np.float32))
    found = change_graph(graph, Delta(edges={KNOWS: delta})).graph.relations[KNOWS]
    listed = {}
    for ends, number, (value,) in zip(
        found.edge_index().T.tolist(), found.edge_ids.tolist(), found.edge_features, strict=True
    ):
        listed.setdefault(number, []).append((sorted(ends), float(value)))
    assert sorted(listed) == list(range(5))
    assert all(len(two) == 2 and two[0] == two[1] for two in listed.values())


@pytest.mark.parametrize("hops", [1, 2])
def test_affected_rows_of_types_hold_all_whose_surroundings_differ(hops):
    graph = library(2)
    first = graph.relations[CITES].edge_index()[:, 0]
    delta = Delta(
        {"author": NodeDelta(changed=np.array([3]), changed_x=np.zeros((1, 3), np.float32))},
        {CITES: EdgeDelta(dropped=first[None])},
    )
    changed = change_graph(graph, delta)
    found = affected_rows(changed, hops)[-1]

    def level(one):
        tables = {name: [tuple(row) for row in own.x.tolist()] for name, own in one.nodes.items()}
        for _ in range(hops):
            above = {name: [[(row,)] for row in rows] for name, rows in tables.items()}
            for relation in one.relations.values():
                for source, target in relation.edge_index().T.tolist():
                    above[relation.target][target].append((tables[relation.source][source],))
                    above[relation.source][source].append((tables[relation.target][target],))
            tables = {
                name: [(row[0], *sorted(map(repr, row[1:]))) for row in rows]
                for name, rows in above.items()
            }
        return tables

    before, after = level(graph), level(changed.graph)
    for name, rows in after.items():
        differ = {row for row, tree in enumerate(rows) if before[name][row] != tree}
        assert differ <= set(found[name].tolist())
        assert hops > 1 or differ == set(found[name].tolist())


def test_undirected_edges_are_removed_whichever_end_is_named_first():
    graph = library()
    first, second = graph.relations[KNOWS].edge_index()[:, 0]
    for ends in ([[first, second]], [[second, first]]):
        delta = Delta(edges={KNOWS: EdgeDelta(dropped=np.array(ends))})
        found = change_graph(graph, delta).graph
        assert found.relations[KNOWS].num_edges == graph.relations[KNOWS].num_edges - 1


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        ({"paper": NodeDelta(removed=np.arange(9))}, {}, "every node of type 'paper'"),
        ({}, {KNOWS: EdgeDelta(dropped=np.array([[0, 0]]))}, "no edge joins 0 and 0"),
        (
            {"author": NodeDelta(removed=np.array([1]))},
            {KNOWS: EdgeDelta(np.array([[1, 2]]))},
            "added to a node that is removed",
        ),
        ({}, {CITES: EdgeDelta(np.array([[1, 2]]))}, "edges have edge_weight"),
        (
            {},
            {KNOWS: EdgeDelta(np.array([[1, 2]]), np.ones(1, np.float32))},
            "edges have no edge_weight",
        ),
        ({"paper": NodeDelta(new=1)}, {}, "new nodes of type 'paper' lack features"),
    ],
)
def test_what_does_not_fit_is_refused(nodes, edges, message):
    with pytest.raises(GraphError, match=message):
        change_graph(library(), Delta(nodes, edges))
