import numpy as np
import pytest
from numpy.linalg import norm

import graphcl
from graphcl.answers.link_model import RelationScores
from graphcl.answers.linking import ModelScores, evaluate_links, links
from graphcl.errors import GraphCLError, GraphError
from graphcl.estimator.model import GraphCL
from graphcl.evaluation.links import hold_out_edges
from graphcl.evaluation.unsupervised import build_index, unit_rows
from graphcl.graphs.graph import Graph
from graphcl.settings import LINKS_BY
from tests.conftest import random_collection, random_graph


@pytest.fixture
def z():
    return np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)


def absent(graph):
    edges = {tuple(pair) for pair in graph.edge_index().T.tolist()}
    return [(u, v) for u in range(60) for v in range(u + 1, 60) if (u, v) not in edges]


def cosine(z, u, v):
    return float(z[u] @ z[v] / np.linalg.norm(z[u]) / np.linalg.norm(z[v]))


def test_the_best_missing_links_are_those_of_brute_force(graph, z, monkeypatch):
    expected = sorted(absent(graph), key=lambda pair: -cosine(z, *pair))
    found = links(z, graph=graph, k=40, by="embeddings")
    assert list(map(tuple, found.pairs.tolist())) == expected[:40]
    np.testing.assert_allclose(
        found.scores, [cosine(z, *pair) for pair in expected[:40]], rtol=1e-4
    )
    monkeypatch.setattr("graphcl.answers.link_model._BLOCK_PAIRS", 7 * 60)
    small = links(z, graph=graph, k=40, by="embeddings")
    np.testing.assert_array_equal(small.pairs, found.pairs)
    assert len(links(z, graph=graph, k=10**6, by="embeddings")) == len(expected)


@pytest.mark.parametrize("indexed", [False, True])
def test_missing_links_of_nodes_are_those_of_brute_force(graph, z, indexed):
    index = build_index(unit_rows(z), threads=1) if indexed else None
    found = links(z, graph=graph, rows=[4, 17], k=6, index=index, by="embeddings")
    for node, part in ((4, slice(0, 6)), (17, slice(6, 12))):
        linked = set(graph.indices[graph.indptr[node] : graph.indptr[node + 1]].tolist())
        others = [v for v in range(60) if v != node and v not in linked]
        best = sorted(others, key=lambda v: -cosine(z, node, v))[:6]
        assert found.pairs[part, 0].tolist() == [node] * 6
        if not indexed:
            assert found.pairs[part, 1].tolist() == best
        else:
            assert len(set(found.pairs[part, 1].tolist()) & set(best)) >= 5


def test_a_large_graph_is_searched_by_an_index(graph, z, monkeypatch):
    index = build_index(unit_rows(z), threads=1)
    found = links(z, graph=graph, k=20, index=index, by="embeddings")
    expected = sorted(absent(graph), key=lambda pair: -cosine(z, *pair))[:20]
    assert len(set(map(tuple, found.pairs.tolist())) & set(expected)) >= 18
    assert (np.diff(found.scores) <= 0).all()
    assert set(map(tuple, found.pairs.tolist())) <= set(absent(graph))
    monkeypatch.setattr("graphcl.answers.link_model.EXACT_ROWS", 10)
    built = links(z, graph=graph, k=20, by="embeddings")
    assert len(set(map(tuple, built.pairs.tolist())) & set(expected)) >= 18


def test_pairs_are_scored_by_id_and_edges_are_marked(graph, z):
    ids = [f"n{n}" for n in range(60)]
    named = Graph.from_edge_index(graph.edge_index(), graph.x, node_ids=ids)
    u, v = graph.edge_index()[:, 0]
    w, y = absent(graph)[0]
    found = links(z, [(f"n{u}", f"n{v}"), (f"n{w}", f"n{y}")], graph=named, by="embeddings")
    np.testing.assert_allclose(found.scores, [cosine(z, u, v), cosine(z, w, y)], rtol=1e-5)
    assert found.linked.tolist() == [True, False]
    assert found.source.tolist() == [f"n{u}", f"n{w}"]
    assert list(found.columns()) == ["source", "target", "score", "linked"]
    assert len(links(z, [])) == 0
    plain = links(z, np.array([[0, 1]]))
    assert plain.linked is None


def test_a_node_that_is_linked_to_all_others_has_no_missing_link(z):
    star = Graph.from_edge_index([[0] * 59, list(range(1, 60))], np.ones((60, 1)))
    found = links(z, graph=star, nodes=[0, 5], k=100)
    assert (found.pairs[:, 0] == 5).all()
    assert len(found) == 58
    named = star.replace(node_ids=np.arange(60)[::-1])  # row 5 has the id 54
    for same in ({"nodes": [54]}, {"rows": [5]}, {"rows": np.arange(60) == 5}):
        assert links(z, graph=named, k=100, **same).pairs.tolist() == found.pairs.tolist()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pairs": [(0, 1, 2)]}, r"pairs must be pairs of ids"),
        ({"pairs": ["ab"]}, r"pairs must be pairs of ids"),
        ({"pairs": [(0, 60)]}, "no node has the id '60'"),
        ({}, "missing links need the graph"),
    ],
)
def test_bad_input(z, given, message):
    with pytest.raises(GraphError, match=message):
        links(z, **given)


def test_what_is_no_number_is_refused(graph, z):
    z[3, 1] = np.nan
    with pytest.raises(GraphError, match="embeddings must be finite numbers"):
        links(z, graph=graph)


def edges_of(graph):
    return {tuple(pair) for pair in graph.edge_index().T.tolist()}


def test_an_evaluation_trains_and_learns_without_the_held_out_edges():
    graph = random_graph(num_nodes=120)
    seen = {"fit": [], "transform": []}

    class Spy(GraphCL):
        def fit(self, given, y=None, **options):
            seen["fit"].append(given)
            return super().fit(given, y, **options)

        def transform(self, given, **options):
            seen["transform"].append(given)
            return super().transform(given, **options)

    model = Spy(dim=8, epochs=2, device="cpu")
    found = evaluate_links(model, graph, share=0.2, negatives=10, seed=1)
    held = hold_out_edges(graph, share=0.2, negatives=10, seed=1)
    assert found.held_out == len(held.edges) == round(0.2 * graph.num_edges)
    assert model._fitted is None  # a copy was trained
    assert [edges_of(one) for one in seen["fit"]] == [edges_of(held.graph)]
    assert len(seen["transform"]) > 2  # of what is left, and of parts of it for the model of links
    assert all(edges_of(one) <= edges_of(held.graph) for one in seen["transform"])
    assert list(found.scores) == [*LINKS_BY, "features"]
    # What is left, read anew, gives the same bits: nothing else of the whole graph has a part.
    rest = Graph.from_edge_index(held.graph.edge_index(), graph.x)
    fitted = GraphCL(dim=8, epochs=2, device="cpu").fit(rest)
    again = ModelScores.learn(fitted.transform(rest), rest, None, fitted.transform, seed=1)
    assert held.rank({"model": again.pairs(held.pairs)})["model"] == found.scores["model"]
    with pytest.raises(GraphError, match="takes one graph"):
        evaluate_links(model, random_collection())


@pytest.mark.parametrize("by", ["common_neighbours", "adamic_adar"])
def test_links_by_common_neighbours_are_those_of_plain_sets(graph, by, monkeypatch):
    near = {u: set() for u in range(60)}
    for u, v in graph.edge_index().T.tolist():
        near[u].add(v)

    def score(u, v):
        shared = near[u] & near[v]
        weights = [1 / np.log(len(near[w])) for w in shared]
        return len(shared) if by == "common_neighbours" else sum(weights)

    pairs = [(u, v) for u in range(60) for v in range(u + 1, 60) if v not in near[u]]
    expected = sorted((score(u, v) for u, v in pairs), reverse=True)[:20]
    whole = links(None, graph=graph, k=20, by=by)
    monkeypatch.setattr("graphcl.answers.link_model._BLOCK_PAIRS", 100)  # block by block
    found = links(None, graph=graph, k=20, by=by)
    np.testing.assert_array_equal(found.pairs, whole.pairs)
    np.testing.assert_allclose(found.scores, expected)
    for (u, v), value in zip(found.pairs.tolist(), found.scores, strict=True):
        assert v not in near[u]
        assert value == pytest.approx(score(u, v))
    of_two = links(None, graph=graph, nodes=[3, 7], k=4, by=by)
    for row, some in ((3, of_two.pairs[:4]), (7, of_two.pairs[4:])):
        assert some[:, 0].tolist() == [row] * 4
        best = sorted(score(row, v) for v in range(60) if v not in near[row] | {row})[-4:]
        np.testing.assert_allclose([score(*pair) for pair in some.tolist()], best[::-1])
    given = links(None, [[0, 1], [3, 3]], graph=graph, by=by)
    np.testing.assert_allclose(given.scores, [score(0, 1), score(3, 3)])
    with pytest.raises(
        GraphCLError, match="by must be one of model, embeddings, common_neighbours"
    ):
        links(None, graph=graph, by="cosine")
    with pytest.raises(GraphCLError, match="need the graph"):
        links(None, [[0, 1]], by=by)


def test_a_model_ranks_by_all_that_is_known(graph, z):
    found = links(z, graph=graph, k=20)
    assert found.by == "model"
    assert list(found.columns()) == ["source", "target", "score", "why"]
    assert ((found.scores > 0) & (found.scores < 1)).all()
    assert (np.diff(found.scores) <= 0).all()
    pairs = list(map(tuple, found.pairs.tolist()))
    assert set(pairs) <= set(absent(graph))
    # In so small a graph all pairs are weighed: they are the best of all.
    every = links(z, absent(graph), graph=graph)
    best = np.lexsort((np.arange(len(every)), -every.scores))[:20]
    assert [absent(graph)[place] for place in best] == pairs
    np.testing.assert_allclose(found.scores, every.scores[best])
    assert not every.linked.any()
    # (u, v) and (v, u) are one pair, of a node or of all.
    turned = links(z, [pair[::-1] for pair in pairs], graph=graph)
    np.testing.assert_allclose(turned.scores, found.scores, rtol=1e-5)
    of_nodes = links(z, graph=graph, nodes=[pairs[0][1], 7, 3], k=4)
    assert of_nodes.pairs[0].tolist() == list(pairs[0][::-1])
    assert of_nodes.source.tolist() == [pairs[0][1]] * 4 + [7] * 4 + [3] * 4
    again = links(z, graph=graph, k=20)
    assert again.scores.tobytes() == found.scores.tobytes()
    assert not np.array_equal(links(z, graph=graph, k=20, seed=1).scores, found.scores)
    index = build_index(unit_rows(z), threads=1)
    near = links(z, graph=graph, k=20, index=index)
    assert set(map(tuple, near.pairs.tolist())) <= set(absent(graph))


def test_with_its_encoder_pairs_are_learned_without_their_edges(graph):
    model = GraphCL(dim=8, epochs=2, device="cpu").fit(graph)
    z = model.transform(graph)
    whole = links(model, graph=graph, k=5)
    np.testing.assert_array_equal(whole.scores, links(z, graph=graph, model=model, k=5).scores)
    assert not np.array_equal(whole.scores, links(z, graph=graph, k=5).scores)


def test_a_node_that_is_linked_to_all_others_does_not_hinder_a_model(graph, z):
    more = [[0] * 59, list(range(1, 60))]
    hub = Graph.from_edge_index(np.hstack([graph.edge_index(), more]), graph.x)
    found = links(z, graph=hub)
    assert found.by == "model"
    assert (found.pairs != 0).all()


@pytest.mark.parametrize("edges", [[[0], [1]], [[], []], np.triu_indices(60, 1)])
def test_where_there_is_too_little_to_learn_the_embeddings_rank(z, edges):
    graph = Graph.from_edge_index(np.array(edges, np.int64).reshape(2, -1), np.ones((60, 1)))
    found, expected = links(z, graph=graph), links(z, graph=graph, by="embeddings")
    assert (found.by, found.why) == ("embeddings", None)
    np.testing.assert_array_equal(found.pairs, expected.pairs)
    two = Graph.from_edge_index([[0], [1]], np.ones((2, 1)))
    assert len(links(z[:2], graph=two)) == 0
    assert links(z, [[0, 1]]).by == "embeddings"  # without a graph


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def random_typed(rng, sources=7, targets=5, edges=12):
    pairs = rng.choice(sources * targets, edges, replace=False)
    listed = np.stack([pairs // targets, pairs % targets])
    nodes = {"s": rng.normal(size=(sources, 3)), "t": rng.normal(size=(targets, 4))}
    return Graph.from_edges(nodes, {("s", "buys", "t"): listed})


def by_loops(z, relation):
    """The equation of the module, pair by pair."""
    edges = relation.edge_index().T.tolist()
    unit = {name: rows / norm(rows, axis=1, keepdims=True) for name, rows in z.items()}
    first, second = unit[relation.source], unit[relation.target]
    found = np.zeros((len(first), len(second)))
    for u in range(len(first)):
        for v in range(len(second)):
            of_target = sum((first[w] for w, x in edges if x == v), np.zeros(first.shape[1]))
            of_source = sum((second[x] for w, x in edges if w == u), np.zeros(second.shape[1]))
            for own, other in ((first[u], of_target), (second[v], of_source)):
                if norm(other) > 0:
                    found[u, v] += 0.5 * own @ other / norm(other)
    return found


@pytest.mark.parametrize("within", [False, True])
def test_scores_and_links_are_those_of_plain_loops(rng, within):
    graph = random_typed(rng)
    relation = graph.relation("buys")
    z = {"s": rng.normal(size=(7, 6)), "t": rng.normal(size=(5, 6))}
    if within:
        edges = {("s", "buys", "s"): np.array([[0, 1, 2, 2], [1, 2, 3, 6]])}
        relation = Graph.from_edges({"s": 7}, edges).relation("buys")
    expected = by_loops(z, relation)
    scores = RelationScores.of(z, relation)
    count = len(z[relation.target])
    every = np.array([(u, v) for u in range(7) for v in range(count)])
    np.testing.assert_allclose(scores.pairs(every).reshape(7, count), expected, atol=1e-5)
    known = set(map(tuple, relation.edge_index().T.tolist()))
    free = [(u, v) for u, v in every.tolist() if (u, v) not in known and not (within and u == v)]
    free.sort(key=lambda pair: -expected[pair])
    found, values = scores.missing(None, 6)
    # Of equal scores either may come first.
    wanted = [expected[pair] for pair in free[:6]]
    np.testing.assert_allclose([expected[tuple(pair)] for pair in found], wanted, atol=1e-5)
    np.testing.assert_allclose(values, wanted, atol=1e-5)
    assert {tuple(pair) for pair in found.tolist()} <= set(free)
    assert len(np.unique(found, axis=0)) == 6
    of_two, values = scores.missing(np.array([4, 2]), 2)
    best = [[pair for pair in free if pair[0] == u][:2] for u in (4, 2)]
    wanted = [expected[pair] for some in best for pair in some]
    np.testing.assert_allclose(values, wanted, atol=1e-5)
    assert of_two[:, 0].tolist() == [4, 4, 2, 2]
    assert len(scores.missing(None, 1000)[0]) == len(free)


def test_an_evaluation_trains_without_the_edges_that_it_asks_for(rng):
    graph = random_typed(rng, 20, 15, 80)
    seen = []

    class Watched(GraphCL):
        def fit(self, graph, y=None, **options):
            seen.append(graph)
            return super().fit(graph, y, **options)

    found = evaluate_links(Watched(dim=4, epochs=1), graph, negatives=5, seed=1)
    assert (found.held_out, seen[0].relation("buys").num_edges) == (8, 72)
    whole = {tuple(pair) for pair in graph.relation("buys").edge_index().T.tolist()}
    rest = {tuple(pair) for pair in seen[0].relation("buys").edge_index().T.tolist()}
    assert rest < whole
    assert list(found.scores) == ["model", "embeddings", "popularity"]


def test_customers_of_one_taste_are_told_what_they_lack(rng):
    taste, kind = np.arange(40) % 2, np.arange(30) % 2
    pairs = [(u, v) for u in range(40) for v in range(30) if taste[u] == kind[v]]
    kept = [pair for pair in pairs if rng.random() < 0.4]
    nodes = {"customer": np.eye(2)[taste], "product": np.eye(2)[kind]}
    graph = Graph.from_edges(nodes, {("customer", "buys", "product"): np.array(kept).T})
    z = {name: one.x for name, one in graph.nodes.items()}
    for by in ("embeddings", "model"):
        found = links(z, graph=graph, k=100, by=by)
        assert found.by == by
        assert all(taste[u] == kind[v] for u, v in found.pairs)


def test_what_cannot_be_held_out_is_refused(rng):
    graph = random_typed(rng, 2, 2, 2)
    with pytest.raises(GraphCLError, match="too few to hold out"):
        evaluate_links(GraphCL(), graph)
    full = Graph.from_edges(
        {"s": 5, "t": 4}, {("s", "buys", "t"): np.stack([np.repeat(range(5), 4), [0, 1, 2, 3] * 5])}
    )
    with pytest.raises(GraphCLError, match="relation s:buys:t: every pair is already linked"):
        evaluate_links(GraphCL(), full)
    with pytest.raises(GraphCLError, match="share"):
        evaluate_links(GraphCL(), graph, relation="buys", share=2)


def test_links_takes_a_typed_graph_and_a_relation(rng):
    graph = random_typed(rng)
    z = {"s": rng.normal(size=(7, 6)), "t": rng.normal(size=(5, 6))}
    expected = by_loops(z, graph.relation("buys"))
    edges = set(map(tuple, graph.relation("buys").edge_index().T.tolist()))
    missing = {(u, v): expected[u, v] for u in range(7) for v in range(5) if (u, v) not in edges}
    found = graphcl.links(z, graph=graph, k=4, by="embeddings")
    best = sorted(missing, key=missing.get, reverse=True)[:4]
    assert list(map(tuple, found.pairs.tolist())) == best
    pairs = graphcl.links(z, [(2, 3), (0, 1)], graph=graph, relation="buys", by="embeddings")
    np.testing.assert_allclose(pairs.scores, [expected[2, 3], expected[0, 1]], rtol=1e-4)
    assert pairs.linked.tolist() == [(2, 3) in edges, (0, 1) in edges]
    of_one = graphcl.links(z, graph=graph.to_pyg(), nodes=[3], k=2)
    assert set(of_one.source.tolist()) == {3}
    by_row = graphcl.links(z, graph=graph, rows=[3], k=2)
    assert by_row.pairs.tolist() == of_one.pairs.tolist()
    model = GraphCL(dim=8, epochs=1, device="cpu").fit(graph)
    assert len(graphcl.links(model, graph=graph, k=3)) == 3
    judged = graphcl.evaluate_links(model, graph, share=0.2, negatives=2)
    assert set(judged.scores) == {"embeddings", "popularity"}  # too few edges for a model
    for options, message in (
        ({"graph": graph, "relation": "sells"}, "no relation 'sells'"),
        ({"graph": graph.flatten(), "relation": "buys"}, "is of a graph with types"),
        ({"graph": graph, "nodes": [77]}, "77"),
    ):
        with pytest.raises(GraphCLError, match=message):
            graphcl.links(z, **options)
    with pytest.raises(GraphCLError, match="a dictionary by type"):
        graphcl.links(z["s"], graph=graph)
