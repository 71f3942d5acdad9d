import networkx
import numpy as np
import pytest
import scipy.sparse
from sklearn.metrics import average_precision_score, roc_auc_score

from graphcl.errors import GraphError, ParameterError
from graphcl.evaluation.links import HITS, cosines, hold_out_edges, judge_links, rank_edges
from graphcl.graphs.graph import Graph
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


def test_simple_scores_are_those_of_networkx(big, monkeypatch):
    seen = {}

    def spy(positive, negative):
        seen[len(seen)] = np.concatenate([positive, negative.ravel()])
        return original(positive, negative)

    from graphcl.evaluation import links as module

    original = module.rank_edges
    monkeypatch.setattr(module, "rank_edges", spy)
    monkeypatch.setattr(module, "_BLOCK", 100)
    held = hold_out_edges(big, negatives=5)
    z = np.random.default_rng(0).normal(size=(150, 4))
    assert list(judge_links(held, z)) == [
        "embeddings",
        "common_neighbours",
        "adamic_adar",
        "features",
    ]
    first = np.repeat(held.edges[:, 0], 5)
    pairs = [*map(tuple, held.edges), *zip(first, held.negatives.ravel(), strict=True)]
    witness = networkx.Graph(map(tuple, held.graph.edge_index().T))
    witness.add_nodes_from(range(150))
    common = [len(list(networkx.common_neighbors(witness, u, v))) for u, v in pairs]
    adamic = [score for _, _, score in networkx.adamic_adar_index(witness, pairs)]
    np.testing.assert_allclose(seen[1], common)
    np.testing.assert_allclose(seen[2], adamic)
    for place, rows in ((0, z), (3, big.x)):
        expected = [
            rows[u] @ rows[v] / np.linalg.norm(rows[u]) / np.linalg.norm(rows[v]) for u, v in pairs
        ]
        np.testing.assert_allclose(seen[place], expected, rtol=1e-4, atol=1e-6)


def test_cosines_of_sparse_rows_and_of_zeros():
    x = np.array([[1.0, 0, 2], [0, 0, 0], [2, 0, 4], [0, 3, 0]])
    pairs = np.array([[0, 2], [0, 1], [0, 3], [3, 3]])
    for rows in (x, scipy.sparse.csr_array(x)):
        np.testing.assert_allclose(cosines(rows, pairs), [1, 0, 0, 1])
    assert cosines(x, np.zeros((0, 2), int)).shape == (0,)


def test_what_cannot_be_held_out():
    x = np.eye(3)
    with pytest.raises(GraphError, match="1 edges are too few"):
        hold_out_edges(Graph.from_edge_index([[0], [1]], x))
    full = Graph.from_edge_index([[0, 0, 1], [1, 2, 2]], x)
    with pytest.raises(GraphError, match="is linked to all others"):
        hold_out_edges(full, share=0.5)
    with pytest.raises(ParameterError, match=r"share must be in \(0, 1\)"):
        hold_out_edges(full, share=1.0)
