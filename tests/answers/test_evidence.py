import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import graphcl
from graphcl import Graph, GraphCL
from graphcl.answers import evidence as module
from graphcl.answers.evidence import (
    EMBEDDING,
    FAR,
    FIRST_HOP,
    NEAR,
    NEIGHBOURS,
    OWN,
    OWN_SCALED,
    TOGETHER,
    UNSCALED,
    embedding_parts,
    gather_evidence,
)
from graphcl.answers.learning import SMOOTHED


def a_graph(x, edges=200, seed=0):
    ends = np.random.default_rng(seed).integers(0, x.shape[0], (2, edges))
    return Graph.from_edge_index(ends[:, ends[0] != ends[1]], x)


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def proportional(found, expected):
    scale = np.sqrt((found**2).sum() / max((expected**2).sum(), 1e-30))
    np.testing.assert_allclose(found, scale * expected, atol=1e-3 * np.abs(found).max())


@given(
    sparse=st.booleans(), columns=st.sampled_from([3, 40]), seed=st.integers(0, 5), data=st.data()
)
def test_tables_have_the_inner_products_of_the_columns_themselves(sparse, columns, seed, data):
    """A regression with a penalty sees nothing but inner products with labelled rows."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(30, columns)) * (random.random((30, columns)) < 0.4)
    x[random.integers(0, 30)] = 0
    labelled = np.sort(random.choice(30, data.draw(st.integers(2, 12)), replace=False))
    given = scipy.sparse.csr_array(x.astype(np.float32)) if sparse else x.astype(np.float32)
    graph = a_graph(given)
    z = random.normal(size=(30, 6)).astype(np.float32)
    tables = gather_evidence(z, labelled, graph=graph).tables
    own = unit(x)
    proportional(tables[OWN] @ tables[OWN][labelled].T, own @ own[labelled].T)
    scaled = (x - (0 if sparse else x.mean(axis=0))) / np.maximum(x.std(axis=0), 1e-12)
    scaled[:, x.std(axis=0) == 0] = 0
    proportional(tables[OWN_SCALED] @ tables[OWN_SCALED][labelled].T, scaled @ scaled[labelled].T)
    relation, far = graph.only_relation, own
    for _ in range(2):  # means of means, as plain loops
        neighbours = (
            relation.indices[a:b]
            for a, b in zip(relation.indptr[:-1], relation.indptr[1:], strict=True)
        )
        far = np.stack([far[some].mean(axis=0) if len(some) else far[0] * 0 for some in neighbours])
    proportional(tables[NEIGHBOURS] @ tables[NEIGHBOURS][labelled].T, far @ far[labelled].T)


def test_many_columns_become_few(monkeypatch):
    monkeypatch.setattr(module, "MOST_COLUMNS", 5)
    random = np.random.default_rng(0)
    graph, z = a_graph(random.normal(size=(50, 40))), random.normal(size=(50, 8))
    found = gather_evidence(z, np.arange(30), graph=graph).tables
    assert found[OWN].shape == found[NEIGHBOURS].shape == (50, 5)
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    assert set(gather_evidence(z, np.arange(30), graph=graph).tables) == {EMBEDDING, UNSCALED}


def test_what_there_is_decides_what_is_looked_at():
    random = np.random.default_rng(0)
    z, labelled = random.normal(size=(20, 8)), np.arange(6)
    assert set(gather_evidence(z, labelled).tables) == {EMBEDDING, UNSCALED}
    found = gather_evidence(z, labelled, parts={NEAR: slice(2, 5)})
    assert found.tables[FIRST_HOP].tolist() == z[:, 2:5].tolist()
    typed = Graph.from_edges(
        {"a": random.normal(size=(20, 3)), "b": 4}, {("b", "to", "a"): [[0, 1], [2, 3]]}
    )
    assert set(gather_evidence(z, labelled, graph=typed.nodes["a"]).tables) == {
        EMBEDDING,
        UNSCALED,
        OWN,
        OWN_SCALED,
        TOGETHER,
    }
    assert OWN not in gather_evidence(z[:4], labelled[:2], graph=typed.nodes["b"]).tables


def test_the_first_hop_is_where_the_encoder_has_it():
    recipe = graphcl.Recipe("default", dim=16)
    parts = embedding_parts(vars(recipe), 100)
    assert parts["own columns"] == slice(0, 6)
    assert parts[NEAR] == slice(6, 10)
    assert parts[FAR] == slice(10, 16)
    one_layer = embedding_parts(vars(recipe.replace(layers=1)), 100)
    assert (one_layer[NEAR], FAR in one_layer) == (slice(6, 16), False)
    assert NEAR not in embedding_parts(vars(graphcl.Recipe("cora")), 100)
    graph = a_graph(np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32))
    model = GraphCL("default", dim=16, epochs=1, device="cpu").fit(graph)
    alone = replace_edges(graph, drop_beyond_one_hop_of=3)
    both = [one.transform(some)[3] for one, some in ((model, graph), (model, alone))]
    same = np.isclose(*both, atol=1e-6)
    near = embedding_parts(vars(recipe), 5)[NEAR]
    assert near.stop - near.start == 4
    assert same[: near.stop].all()  # own columns and one hop see nothing of what changed
    assert not same[near.stop : -2].any()
    assert not same[-2:].any()  # smoothed features, two hops


def replace_edges(graph, drop_beyond_one_hop_of):
    """Returns the graph with the edges of a node alone; its neighbours lose all others."""
    ends = graph.edge_index()
    return Graph.from_edge_index(ends[:, (ends == drop_beyond_one_hop_of).any(axis=0)], graph.x)


@pytest.mark.parametrize("decides", ["own columns", "embedding"])
def test_noise_does_not_drown_what_tells(decides):
    random = np.random.default_rng(0)
    y = np.arange(200) % 2
    tells = np.eye(2)[y].repeat(4, axis=1) + random.normal(size=(200, 8)) * 0.4
    noise = random.normal(size=(200, 300))
    x, z = (tells, noise) if decides == "own columns" else (noise, tells)
    labels = np.where(np.arange(200) < 40, y, -1)
    found = graphcl.predict(z, a_graph(x), labels)
    right = np.mean(np.array(found.labels) == y[found.rows])
    assert right > 0.95
    assert sum(share for name, share in found.evidence.items() if decides in name) > 0.9
    alone = graphcl.predict(z, None, labels)
    assert set(alone.evidence) == {EMBEDDING, UNSCALED, SMOOTHED}
    assert alone.evidence[SMOOTHED] == 0
    if decides == "own columns":
        assert np.mean(np.array(alone.labels) == y[alone.rows]) < 0.7
