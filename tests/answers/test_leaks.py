"""On random graphs nothing can be known of a removed edge, so every score of links is 0.5.

Here are the kinds whose scores showed a leak. Other directions, relations read backwards and typed
graphs with structural features move scores by less than chance does; tests/evaluation/test_links.py
compares what remains of them with what must, exactly.
"""

import numpy as np
import pytest

from graphcl import Graph, GraphCL, evaluate_links
from graphcl.answers.link_model import PairColumns
from graphcl.graphs.structural import structural_features

SEEDS = range(3)
NODES, EDGES = 300, 1500


def random_pairs(rng, sources, targets, count, *, within=False):
    codes = rng.permutation(sources * targets)
    pairs = np.stack([codes // targets, codes % targets])
    return (pairs[:, pairs[0] < pairs[1]] if within else pairs)[:, :count]


def plain(rng, **about):
    edges = random_pairs(rng, NODES, NODES, EDGES, within=True)
    return Graph.from_edge_index(edges, rng.normal(size=(NODES, 6)), **about)


def weighted(rng):
    return plain(rng, edge_weight=rng.random(EDGES) + 0.1)


def structural(rng, also=lambda x: x):
    graph = plain(rng)
    x = also(structural_features(graph.indptr, graph.indices))
    return Graph.from_edge_index(graph.edge_index(), np.hstack([rng.normal(size=(NODES, 2)), x]))


def scaled_structural(rng):
    return structural(rng, lambda x: ((x - x.mean(0)) / x.std(0)).astype(np.float16))


def shop(rng, *, rows=1):
    pairs = random_pairs(rng, NODES, 100, EDGES)
    listed = np.repeat(pairs, rows, axis=1)
    stars = rng.integers(1, 6, (listed.shape[1], 1)).astype(np.float32)
    relations = {("customer", "buys", "product"): {"edge_index": listed, "edge_features": stars}}
    nodes = {"customer": rng.normal(size=(NODES, 4)), "product": rng.normal(size=(100, 4))}
    return Graph.from_edges(nodes, relations)


def parallel(rng):
    return shop(rng, rows=3)


def undirected_parallel(rng):
    edges = np.repeat(random_pairs(rng, NODES, NODES, EDGES, within=True), 3, axis=1)
    given = {"edge_index": edges, "edge_features": rng.random((3 * EDGES, 1)), "undirected": True}
    return Graph.from_edges({"user": rng.normal(size=(NODES, 4))}, {("user", "met", "user"): given})


KINDS = (
    plain,
    weighted,
    structural,
    scaled_structural,
    shop,
    parallel,
    undirected_parallel,
)


def judged_scores(kind):
    """The mean ROC-AUC of each score over random graphs, and how far chance may take it."""
    found, held = {}, 0
    for seed in SEEDS:
        graph = kind(np.random.default_rng(seed))
        relation = "buys" if "buys" in str(graph) else None
        model = GraphCL(dim=8, epochs=3, seed=seed, device="cpu")
        judged = evaluate_links(model, graph, relation=relation, share=0.3, negatives=20, seed=seed)
        held += judged.held_out
        for name, one in judged.scores.items():
            found.setdefault(name, []).append(one.roc_auc)
    # The rank of an edge among its pairs is uniform: variance 1/12. Edges that share a node are
    # not independent, which is why the bound is 4 standard errors of as many that are.
    return {name: np.mean(each) for name, each in found.items()}, 4 * np.sqrt(1 / (12 * held))


@pytest.mark.parametrize("kind", KINDS)
def test_links_of_a_random_graph_cannot_be_found(kind):
    found, bound = judged_scores(kind)
    assert "model" in found
    for name, mean in found.items():
        assert abs(mean - 0.5) < bound, (name, mean)


def test_a_model_that_saw_the_removed_edges_is_told(monkeypatch):
    """A leak that is planted: of removed pairs, the model sees the columns of the whole graph."""
    graphs = []

    def leaking(rng):
        graphs.append(plain(rng))
        return graphs[-1]

    honest = PairColumns.of.__func__

    def of(cls, z, relation):
        whole = graphs[-1].only_relation
        rest = round(0.7 * EDGES)
        return honest(cls, z, whole if relation.num_edges == rest else relation)

    monkeypatch.setattr(PairColumns, "of", classmethod(of))
    found, bound = judged_scores(leaking)
    assert abs(found["model"] - 0.5) > 2 * bound
    assert abs(found["embeddings"] - 0.5) < bound
