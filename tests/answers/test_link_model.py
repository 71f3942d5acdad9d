from itertools import product

import numpy as np
import pytest
from numpy.linalg import norm

from graphcl.answers.link_model import COLUMNS, LEAST, WITHIN, LinkModel, PairColumns
from graphcl.errors import GraphError
from graphcl.evaluation.links import hold_out_edges
from graphcl.graphs.graph import Graph
from tests.conftest import random_graph


def by_loops(z, relation, u, v):
    """The equations of the module, for one pair."""
    edges = set(map(tuple, relation.edge_index().T.tolist()))  # parallel edges are one
    first, second = z[relation.source], z[relation.target]

    def unit(row):
        return row / norm(row) if norm(row) else row

    def out(node):
        return {x for w, x in edges if w == node}

    def into(node):
        return {w for w, x in edges if x == node}

    likeness = [
        unit(first[u]) @ unit(sum((unit(first[w]) for w in into(v)), 0 * first[0])),
        unit(second[v]) @ unit(sum((unit(second[x]) for x in out(u)), 0 * second[0])),
    ]
    degrees = [np.log1p(len(out(u))), np.log1p(len(into(v)))]
    if relation.undirected:
        likeness, degrees = sorted(likeness), sorted(degrees)
    paths = sum(1 / np.sqrt(len(into(b)) * len(out(a))) for b in out(u) for a in into(b) & into(v))
    distance = 3 if paths else 4
    if relation.source != relation.target:
        return [*likeness, *degrees, np.log1p(paths), distance]

    def near(node):
        return out(node) | into(node)

    shared = near(u) & near(v)
    rare = sum(1 / np.log(max(2, len(near(w)))) for w in shared)
    dot = first[u] @ second[v]
    cosine = unit(first[u]) @ unit(second[v])
    distance = 2 if shared else distance
    within = [cosine, dot, np.log1p(len(shared)), np.log1p(rare)]
    return [*likeness, *degrees, np.log1p(paths), distance, *within]


def kinds():
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 9, (2, 14))
    twice = np.hstack([edges, edges[:, :5]])
    stars = rng.random((19, 1))
    yield Graph.from_edge_index(edges, rng.normal(size=(9, 2)))
    yield Graph.from_directed(edges, rng.normal(size=(9, 2)))
    listed = {"edge_index": twice, "edge_features": stars}
    yield Graph.from_edges({"s": 9, "t": 9}, {("s", "buys", "t"): listed})
    yield Graph.from_edges({"s": 9}, {("s", "met", "s"): {**listed, "undirected": True}})


@pytest.mark.parametrize("graph", list(kinds()), ids=["plain", "directed", "types", "parallel"])
def test_columns_are_those_of_plain_loops(graph, monkeypatch):
    relation = next(iter(graph.relations.values()))
    rng = np.random.default_rng(1)
    z = {name: rng.normal(size=(9, 3)).astype(np.float32) for name in graph.nodes}
    z[relation.source][4] = 0
    pairs = np.array(list(product(range(9), range(9))))[rng.permutation(81)]
    columns = PairColumns.of(z, relation)
    expected = [by_loops(z, relation, u, v) for u, v in pairs.tolist()]
    np.testing.assert_allclose(columns.table(pairs), expected, atol=1e-5)
    assert len(columns.names) == len(expected[0])
    monkeypatch.setattr("graphcl.answers.link_model._BLOCK", 7)
    monkeypatch.setattr("graphcl.answers.link_model._NUMBERS", 2 * 9)
    np.testing.assert_allclose(columns.table(pairs), expected, atol=1e-5)
    assert columns.table(pairs[:0]).shape == (0, len(columns.names))


def test_a_new_node_is_seen_as_if_it_were_in_the_graph():
    graph = random_graph()
    rng = np.random.default_rng(0)
    z = rng.normal(size=(61, 4)).astype(np.float32)
    joined = [3, 8, 8, 20]
    edges = np.hstack([graph.edge_index(), [[60] * 4, joined]])
    # The new node is nobody's neighbour yet, as far as the others' columns go.
    new = PairColumns.of(z[:60], graph.only_relation).of_new(z[60:], [np.array(joined)])
    others = np.setdiff1d(np.arange(60), joined)
    table = new.table(np.stack([np.zeros(len(others), int), others], axis=1))
    grown = Graph.from_edge_index(edges, np.ones((61, 1))).only_relation
    whole = PairColumns.of(z, grown).table(np.stack([np.full(len(others), 60), others], axis=1))
    same = [0, 1, 2, 3, 5, 6, 7, 8]
    np.testing.assert_allclose(table[:, same], whole[:, same], atol=1e-5)
    # Paths and Adamic–Adar divide by degrees of its neighbours, which lack the new edge.
    assert (table[:, [4, 9]] >= whole[:, [4, 9]] - 1e-6).all()
    np.testing.assert_array_equal(table[:, [4, 9]] > 0, whole[:, [4, 9]] > 0)


def learn(graph, embed, **how):
    def rivals(held, z, count):
        low, high = np.triu_indices(held.graph.num_nodes, 1)
        edges = set(map(tuple, held.graph.edge_index().T.tolist()))
        free = [pair for pair in zip(low.tolist(), high.tolist(), strict=True) if pair not in edges]
        return np.array(free)[:count]

    return LinkModel.fit(graph, None, embed, rivals, **how)


def test_what_is_learned_is_embedded_without_its_edges():
    graph, seen = random_graph(num_nodes=150), []
    z = np.random.default_rng(0).normal(size=(150, 4)).astype(np.float32)

    def embed(given):
        seen.append(given)
        return z

    learn(graph, embed, seed=5)
    for number, given in enumerate(seen):
        held = hold_out_edges(graph, share=0.1, negatives=20, seed=5 + number)
        np.testing.assert_array_equal(given.indices, held.graph.indices)
        assert given.num_edges == graph.num_edges - len(held.edges)
    assert len(seen) == 5  # so few edges are removed several times


def test_reasons_are_what_the_score_loses_without_them():
    graph = random_graph(num_nodes=150)
    z = np.random.default_rng(0).normal(size=(150, 4)).astype(np.float32)
    model = learn(graph, lambda _: z)
    columns = PairColumns.of(z, graph.only_relation)
    pairs = np.array(list(product(range(20), range(100, 150))))
    table = columns.table(pairs)
    reasons, scores = model.reasons(table), model.score(table)
    words = {"common": "common neighbour", "cosine": "cosine", "degrees": "degrees"}
    words |= {"likeness": "like the other's", "paths": "joined by"}
    assert set(words) == set(COLUMNS + WITHIN)
    for place in np.argsort(-scores)[:30].tolist():
        lost = {}
        for kind in words:
            row = table[place].copy()
            of_kind = [name == kind for name in model.names]
            row[of_kind] = model.usual[of_kind]
            lost[kind] = scores[place] - model.score(row[None])[0]
        named = [
            kind for part in reasons[place].split("; ") for kind in words if words[kind] in part
        ]
        assert named == sorted(named, key=lambda kind: -lost[kind])
        assert all(lost[kind] > 0 for kind in named)
        assert max(lost, key=lost.get) in named
        if "common neighbour" in reasons[place]:
            common = np.intersect1d(
                *(graph.indices[graph.indptr[u] : graph.indptr[u + 1]] for u in pairs[place])
            )
            assert f"{len(common)} common neighbour" in reasons[place]
    assert model.score(table[:0]).shape == (0,)
    assert len(model.reasons(table[:0])) == 0


def test_beyond_what_was_seen_nothing_is_guessed():
    graph = random_graph(num_nodes=150)
    z = np.random.default_rng(0).normal(size=(150, 4)).astype(np.float32)
    model = learn(graph, lambda _: z)
    far = np.stack([model.range[1], model.range[1] * 100, model.range[0], model.range[0] - 50])
    scores = model.score(far)
    assert scores[0] == scores[1]
    assert scores[2] == scores[3]


def test_too_few_edges_teach_nothing():
    graph = Graph.from_edge_index([list(range(20)), list(range(1, 21))], np.ones((40, 1)))
    assert LEAST > 5 * 2
    with pytest.raises(GraphError, match="10 linked pairs: too few to learn from"):
        learn(graph, lambda _: np.ones((40, 2)))
