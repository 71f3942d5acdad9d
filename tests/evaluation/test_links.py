import networkx
import numpy as np
import pandas
import pytest
import scipy.sparse
from sklearn.metrics import average_precision_score, roc_auc_score

from graphcl import Graph, read_tables
from graphcl.errors import GraphError, ParameterError
from graphcl.evaluation.links import HITS, cosines, hold_out_edges, rank_edges, simple_scores
from graphcl.graphs.structural import structural_features
from tests.conftest import random_graph


def edges_of(graph):
    return {(int(u), int(v)) for u, v in graph.edge_index().T}


@pytest.fixture
def big():
    return random_graph(num_nodes=150)


def test_held_out_edges_are_gone_in_both_directions_and_nothing_else_is(big):
    held = hold_out_edges(big, share=0.2, negatives=7, seed=3)
    before, after = edges_of(big), edges_of(held.graph)
    removed = {(int(u), int(v)) for u, v in held.edges}
    assert len(removed) == len(held.edges) == round(0.2 * big.num_edges)
    assert removed.isdisjoint({(v, u) for u, v in removed})
    assert after == before - removed - {(v, u) for u, v in removed}
    np.testing.assert_array_equal(held.graph.x, big.x)
    rebuilt = Graph.from_edge_index(held.graph.edge_index(), big.x)
    np.testing.assert_array_equal(rebuilt.indptr, held.graph.indptr)
    np.testing.assert_array_equal(rebuilt.indices, held.graph.indices)
    again = hold_out_edges(big, share=0.2, negatives=7, seed=3)
    np.testing.assert_array_equal(again.edges, held.edges)
    np.testing.assert_array_equal(again.negatives, held.negatives)


def test_negatives_are_no_edges_of_the_whole_graph_and_cover_all_other_nodes(big):
    held = hold_out_edges(big, share=0.3, negatives=400)
    edges, drawn = edges_of(big), set()
    for (u, _), others in zip(held.edges, held.negatives, strict=True):
        assert u not in others
        assert not any((int(u), int(w)) in edges for w in others)
        drawn |= set(others.tolist())
    assert drawn == set(range(150))


def test_a_node_that_is_linked_to_all_others_is_no_source():
    star = Graph.from_edge_index([[4] * 9, [0, 1, 2, 3, 5, 6, 7, 8, 9]], np.eye(10))
    held = hold_out_edges(star, share=0.9, negatives=3)
    assert (held.edges[:, 1] == 4).all()
    assert not (held.negatives == 4).any()


def test_weights_stay_with_their_edges():
    random = np.random.default_rng(0)
    graph = random_graph()
    pairs = np.array([(u, v) for u, v in graph.edge_index().T if u < v]).T
    weighted = Graph.from_edge_index(pairs, graph.x, edge_weight=random.random(pairs.shape[1]) + 1)
    held = hold_out_edges(weighted)
    before = dict(
        zip(map(tuple, weighted.edge_index().T.tolist()), weighted.edge_weight, strict=True)
    )
    for pair, weight in zip(
        held.graph.edge_index().T.tolist(), held.graph.edge_weight, strict=True
    ):
        assert before[tuple(pair)] == weight


def test_ranks_are_those_of_a_plain_loop():
    random = np.random.default_rng(0)
    positive = random.integers(0, 5, 40).astype(float)  # with many ties
    negative = random.integers(0, 5, (40, 60)).astype(float)
    found = rank_edges(positive, negative)
    ranks = [
        1 + sum(n > p for n in row) + sum(n == p for n in row) / 2
        for p, row in zip(positive, negative, strict=True)
    ]
    assert found.mrr == pytest.approx(np.mean([1 / rank for rank in ranks]))
    assert found.hits == {k: np.mean([rank <= k for rank in ranks]) for k in HITS}
    truth = [1] * 40 + [0] * 2400
    scores = [*positive, *negative.ravel()]
    assert found.roc_auc == pytest.approx(roc_auc_score(truth, scores))
    assert found.average_precision == pytest.approx(average_precision_score(truth, scores))


def test_a_perfect_and_a_reversed_ranking():
    best = rank_edges(np.ones(5), np.zeros((5, 20)))
    assert (best.roc_auc, best.average_precision, best.mrr, best.hits[1]) == (1, 1, 1, 1)
    worst = rank_edges(np.zeros(5), np.ones((5, 20)))
    assert worst.roc_auc == 0
    assert worst.mrr == pytest.approx(1 / 21)
    # Of 21 ranks none is below 50: that all are among the first 50 says nothing.
    assert worst.hits == {1: 0, 10: 0}


def test_simple_scores_are_those_of_networkx(big, monkeypatch):
    monkeypatch.setattr("graphcl.evaluation.links._BLOCK", 100)
    held = hold_out_edges(big, negatives=5)
    z = np.random.default_rng(0).normal(size=(150, 4))
    seen = simple_scores(held, z)
    assert list(seen) == ["embeddings", "common_neighbours", "adamic_adar", "features"]
    first = np.repeat(held.edges[:, 0], 5)
    pairs = [*map(tuple, held.edges), *zip(first, held.negatives.ravel(), strict=True)]
    witness = networkx.Graph(map(tuple, held.graph.edge_index().T))
    witness.add_nodes_from(range(150))
    common = [len(list(networkx.common_neighbors(witness, u, v))) for u, v in pairs]
    adamic = [score for _, _, score in networkx.adamic_adar_index(witness, pairs)]
    np.testing.assert_allclose(seen["common_neighbours"], common)
    np.testing.assert_allclose(seen["adamic_adar"], adamic)
    for name, rows in (("embeddings", z), ("features", big.x)):
        expected = [
            rows[u] @ rows[v] / np.linalg.norm(rows[u]) / np.linalg.norm(rows[v]) for u, v in pairs
        ]
        np.testing.assert_allclose(seen[name], expected, rtol=1e-4, atol=1e-6)


def test_cosines_of_sparse_rows_and_of_zeros():
    x = np.array([[1.0, 0, 2], [0, 0, 0], [2, 0, 4], [0, 3, 0]])
    pairs = np.array([[0, 2], [0, 1], [0, 3], [3, 3]])
    for rows in (x, scipy.sparse.csr_array(x)):
        np.testing.assert_allclose(cosines(rows, pairs), [1, 0, 0, 1])
    assert cosines(x, np.zeros((0, 2), int)).shape == (0,)


def test_what_cannot_be_held_out():
    x = np.eye(3)
    with pytest.raises(GraphError, match="1 linked pair: too few"):
        hold_out_edges(Graph.from_edge_index([[0], [1]], x))
    full = Graph.from_edge_index([[0, 0, 1], [1, 2, 2]], x)
    for share in (0.1, 0.5):
        with pytest.raises(GraphError, match="every pair is already linked"):
            hold_out_edges(full, share=share)
    hubs = Graph.from_edge_index(
        [[0, 0, 0, 1, 1], [1, 2, 3, 2, 3]], np.eye(4), node_ids=list("abcd")
    )
    with pytest.raises(GraphError, match=r"node [ab] is linked to all others"):
        hold_out_edges(hubs, held=np.array([1]))  # a and b
    with pytest.raises(ParameterError, match=r"share must be in \(0, 1\)"):
        hold_out_edges(full, share=1.0)


def shop():
    """Customers buy products, some twice; a second relation is the first one read backwards."""
    rng = np.random.default_rng(0)
    codes = rng.choice(30 * 20, 200, replace=False)
    pairs = np.stack([codes // 20, codes % 20])
    rows = np.hstack([pairs, pairs[:, :90]])
    follows = rng.integers(0, 30, (2, 150))
    follows = np.hstack([follows, follows[::-1, :60]])
    met = {
        "edge_index": follows[:, :100],
        "edge_features": rng.random((100, 1)),
        "undirected": True,
    }
    return Graph.from_edges(
        {"customer": 30, "product": rng.normal(size=(20, 3))},
        {
            ("customer", "buys", "product"): {
                "edge_index": rows,
                "edge_features": rng.random((290, 1)),
            },
            ("product", "bought_by", "customer"): pairs[::-1],
            ("customer", "follows", "customer"): {"edge_index": follows, "undirected": False},
            ("customer", "met", "customer"): met,
            ("product", "like", "product"): np.array([[0, 1, 2], [3, 4, 5]]),
        },
    )


@pytest.mark.parametrize("name", ["buys", "bought_by", "follows", "met"])
def test_nothing_that_joins_a_held_out_pair_remains(name):
    graph = shop()
    held = hold_out_edges(graph, name, share=0.3, negatives=5, seed=1)
    judged = graph.relation(name)
    ends = (judged.source, judged.target)
    within = ends[0] == ends[1]

    def pairs(one):
        listed = one.edge_index().T.tolist()
        if (one.source, one.target) != ends:
            listed = [pair[::-1] for pair in listed]
        return [tuple(sorted(pair)) if within else tuple(pair) for pair in listed]

    gone = {tuple(sorted(pair)) if within else tuple(pair) for pair in held.edges.tolist()}
    assert len(gone) == len(held.edges) == round(0.3 * len(set(pairs(judged))))
    assert {tuple(pair) for pair in held.edges.tolist()} <= set(
        map(tuple, judged.edge_index().T.tolist())
    )
    linked = set()
    for key, one in graph.relations.items():
        rest = held.graph.relations[key]
        if {one.source, one.target} != set(ends):
            assert rest is one
            continue
        linked |= set(pairs(one))
        kept = [place for place, pair in enumerate(pairs(one)) if pair not in gone]
        assert pairs(rest) == [pairs(one)[place] for place in kept]
        if one.edge_features is not None:
            np.testing.assert_array_equal(rest.edge_features, one.edge_features[kept])
        if one.edge_ids is not None:
            assert np.bincount(rest.edge_ids).tolist() == [2] * rest.num_edges
    for source, targets in zip(held.edges[:, 0].tolist(), held.negatives.tolist(), strict=True):
        for target in targets:
            assert (tuple(sorted((source, target))) if within else (source, target)) not in linked
            assert not (within and source == target)


@pytest.mark.parametrize("kind", ["tables", "both", "float16", "typed"])
def test_features_from_edges_are_those_of_the_edges_that_remain(tmp_path, kind):
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 60, (300, 2))
    edges = pandas.DataFrame({"source": ends[:, 0], "target": ends[:, 1]})
    nodes = pandas.DataFrame({"id": np.arange(60), "size": rng.normal(size=60)})
    given = {"nodes": nodes, "features": "both"} if kind == "both" else {"features": "structural"}
    graph = read_tables(edges, **given)
    if kind == "float16":
        graph.save(tmp_path / "store", features=kind)
        graph = Graph.open(tmp_path / "store")
    if kind == "typed":
        graph = Graph.from_directed(graph.edge_index(), graph.x)
    held = hold_out_edges(graph, share=0.3)
    rest = held.graph
    expected = structural_features(held.relation.indptr, held.relation.indices)
    np.testing.assert_allclose(rest.x[:, -6:], expected, atol=2e-3 if kind == "float16" else 0)
    if kind == "both":
        np.testing.assert_array_equal(rest.x[:, :-6], graph.x[:, :-6])


def test_other_features_stay_as_they_are(big):
    assert hold_out_edges(big).graph.x is big.x
    # Four columns of the six, as a user may have them, are the user's.
    own = structural_features(big.indptr, big.indices)
    own[:, 4] = np.random.default_rng(0).normal(size=len(own))
    mixed = Graph.from_edge_index(big.edge_index(), own)
    assert hold_out_edges(mixed).graph.x is mixed.x
