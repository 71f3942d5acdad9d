"""Nodes that are not in the graph yet, against the grown graph embedded whole."""

import threading

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.errors import GraphError
from graphcl.estimator import inference
from graphcl.estimator.model import GraphCL
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.store.columns import Names
from tests.conftest import configured
from tests.estimator.test_typed import library

NODES, MORE, WIDTH = 400, 3, 12


def world(seed=0):
    """Features and edges of a grown graph; the last three nodes are the new ones."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(NODES + MORE, WIDTH)).astype(np.float32)
    x[:, 3] = np.exp(3 * x[:, 3])  # a column with a heavy tail, which `auto` takes the logarithm of
    x[:, 4] = x[:, 4] > 0
    edges = random.integers(0, NODES, (2, 4 * NODES))
    neighbours = [random.choice(NODES, 10, replace=False), np.array([7]), np.zeros(0, np.int64)]
    return x, edges, neighbours, [(0, 1), (1, 2)]


def small(x, edges, **more):
    return Graph.from_edge_index(edges, x[:NODES], **more)


def whole(x, edges, neighbours, among, **more):
    ends = [
        *((NODES + i, v) for i, some in enumerate(neighbours) for v in some),
        *((NODES + a, NODES + b) for a, b in among),
    ]
    return Graph.from_edge_index(np.concatenate([edges, np.array(ends).T], axis=1), x, **more)


def fitted(graph, **settings):
    values = {"recipe": "cora", "dim": 24, "epochs": 1, "device": "cpu"} | settings
    return configured(**values).fit(graph)


SETTINGS = {
    "mean": {"encoder": "mean", "layers": 2},
    "mean of one layer": {"encoder": "mean", "layers": 1},
    "residual": {"encoder": "residual", "layers": 3},
    "row": {"feature_scaling": "row"},
    "default": {"recipe": "default", "dim": 40},
    "odd widths": {"recipe": "default", "dim": 37, "layers": 3},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_new_nodes_have_the_bits_of_the_grown_graph(settings):
    x, edges, neighbours, among = world()
    model = fitted(small(x, edges), **settings)
    expected = model.transform(whole(x, edges, neighbours, among))[NODES:]
    found = model.embed_new(x[NODES:], neighbours, graph=small(x, edges), edges=among)
    np.testing.assert_array_equal(found, expected)
    alone = model.transform(whole(x[:-2], edges, neighbours[:1], []))[NODES]
    one = model.embed_new(x[NODES], neighbours[0], graph=small(x, edges))
    assert one.shape == (expected.shape[1],)
    np.testing.assert_array_equal(one, alone)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), number=st.integers(1, 5), layers=st.integers(1, 3))
def test_any_new_nodes_on_any_graph(seed, number, layers):
    random = np.random.default_rng(seed)
    size = int(random.integers(1, 60))
    edges = random.integers(0, size, (2, int(random.integers(0, 90))))
    x = random.normal(size=(size + number, 5)).astype(np.float32)
    neighbours = [random.integers(0, size, random.integers(0, 6)) for _ in range(number)]
    among = random.integers(0, number, (int(random.integers(0, 4)), 2))
    ends = [(size + i, v) for i, some in enumerate(neighbours) for v in some]
    ends += [(size + a, size + b) for a, b in among]
    grown = np.concatenate([edges, np.array(ends, dtype=np.int64).reshape(-1, 2).T], axis=1)
    old = Graph.from_edge_index(edges, x[:size])
    model = fitted(old, encoder="residual", layers=layers, dim=8, feature_scaling="none")
    expected = model.transform(Graph.from_edge_index(grown, x))[size:]
    np.testing.assert_array_equal(
        model.embed_new(x[size:], neighbours, graph=old, edges=among), expected
    )


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_sparse_features_edge_weights_and_other_encoders():
    x, edges, neighbours, among = world()
    sparse = scipy.sparse.csr_array(np.where(np.abs(x) > 1, x, 0))
    random = np.random.default_rng(1)
    weight = random.uniform(0.5, 2, edges.shape[1])
    weights = [random.uniform(0.5, 2, len(some)) for some in neighbours]
    of_new = np.concatenate([*weights, np.ones(len(among))])
    both = np.concatenate([weight, of_new])
    cases = [
        (sparse, {}, {}, {"layers": 2}),
        (x, {"edge_weight": weight}, {"edge_weight": both}, {"recipe": "default"}),
        (x, {}, {}, {"encoder": "gcn", "layers": 2}),
    ]
    for table, of_small, of_whole, keys in cases:
        old = Graph.from_edge_index(edges, table[:NODES], **of_small)
        model = fitted(old, **keys)
        expected = model.transform(whole(table, edges, neighbours, among, **of_whole))[NODES:]
        given_weights = weights if of_small else None
        found = model.embed_new(
            table[NODES:], neighbours, graph=old, edges=among, weights=given_weights
        )
        close(found, expected)


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_a_mapped_store_gives_what_its_features_give(tmp_path, kind):
    x, edges, neighbours, among = world()
    small(x, edges).save(tmp_path / "store", features=kind)
    stored = Graph.open(tmp_path / "store")
    model = fitted(small(x, edges), recipe="default", dim=40)
    table = np.concatenate([np.asarray(stored.x[:NODES], np.float32), x[NODES:]])
    expected = model.transform(whole(table, edges, neighbours, among))[NODES:]
    found = model.embed_new(x[NODES:], neighbours, graph=stored, edges=among)
    np.testing.assert_array_equal(found, expected)


def test_threads_of_torch_change_no_bit_and_stay_as_they_were():
    x, edges, neighbours, among = world()
    graph = small(x, edges)
    model = fitted(graph, recipe="default", dim=40)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(model.embed_new(x[NODES:], neighbours, graph=graph, edges=among))
            assert torch.get_num_threads() == threads
            found.append(model.transform(whole(x, edges, neighbours, among))[NODES:])
    finally:
        torch.set_num_threads(before)
    for one in found:
        np.testing.assert_array_equal(one, found[0])


@pytest.mark.parametrize("kind", ["texts", "numbers", "names", "mixed", "none"])
def test_neighbours_by_id(kind):
    x, edges, neighbours, _ = world()
    ids = {
        "texts": np.array([f"node {row}" for row in range(NODES)]),
        "numbers": np.arange(NODES) * 7 - 100,
        "names": Names.of([f"nœud {row}" for row in range(NODES)]),
        "mixed": np.array([row if row % 2 else f"n{row}" for row in range(NODES)], dtype=object),
        "none": None,
    }[kind]
    graph = small(x, edges)
    graph = graph.replace(node_ids=ids)
    live = fitted(graph).live(graph)
    rows = neighbours[0]
    own = [row if ids is None else ids[int(row)] for row in rows]
    expected = live.embed_new(x[NODES], rows=rows)
    for names in (own, [str(one) for one in own]):
        assert live.rows_of(names).tolist() == rows.tolist()
        np.testing.assert_array_equal(live.embed_new(x[NODES], names), expected)
    for wrong in ("nobody", "-3", "1e3", "00", "٣", "9" * 30):
        with pytest.raises(GraphError, match="no node has the id"):
            live.rows_of([wrong])


def test_ids_with_equal_hashes_are_told_apart(monkeypatch):
    import builtins

    x, edges, _, _ = world()
    graph = small(x, edges, node_ids=[f"n{row}" for row in range(NODES)])
    live = fitted(graph).live(graph)
    monkeypatch.setattr(builtins, "hash", lambda _: 5)
    assert live.rows_of(["n3", "n399", "n0"]).tolist() == [3, 399, 0]


def test_several_threads_get_the_right_answers():
    x, edges, neighbours, _ = world()
    graph = small(x, edges)
    live = fitted(graph, recipe="default", dim=40).live(graph)
    expected = [live.embed_new(x[NODES + i], neighbours[i]) for i in range(MORE)]
    wrong = []

    def ask():
        found = [live.embed_new(x[NODES + turn % 3], neighbours[turn % 3]) for turn in range(20)]
        wrong.extend(
            turn for turn, z in enumerate(found) if not np.array_equal(z, expected[turn % 3])
        )

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_many_new_nodes_at_once(monkeypatch):
    x, edges, neighbours, among = world()
    graph = small(x, edges)
    model = fitted(graph, recipe="default", dim=40)
    expected = model.embed_new(x[NODES:], neighbours, graph=graph, edges=among)
    monkeypatch.setattr("graphcl.estimator.inference.MOST_ROWS", 2)  # the plain way
    found = model.embed_new(x[NODES:], neighbours, graph=graph, edges=among)
    np.testing.assert_array_equal(found, expected)


def test_what_does_not_fit_is_refused(tmp_path):
    x, edges, neighbours, _ = world()
    graph = small(x, edges)
    model = fitted(graph)
    with pytest.raises(GraphError, match="one list per node"):
        model.embed_new(x[NODES:], neighbours[0], graph=graph)
    with pytest.raises(GraphError, match="one list per node"):
        model.embed_new(x[NODES:], "abc", graph=graph)
    with pytest.raises(GraphError, match=r"no node has the id '1\.5'"):
        model.embed_new(x[NODES], [1.5], graph=graph)
    with pytest.raises(GraphError, match="no node has the id '400'"):
        model.embed_new(x[NODES], [400], graph=graph)
    with pytest.raises(GraphError, match="no row 400 among 400 nodes"):
        model.embed_new(x[NODES], rows=[400], graph=graph)
    with pytest.raises(GraphError, match="give neighbours, which are ids, or rows"):
        model.embed_new(x[NODES], graph=graph)
    with pytest.raises(GraphError, match="5 features; the model was trained on 12"):
        model.live(Graph.from_edge_index(edges, np.ones((NODES, 5))))
    several = GraphCollection((graph,), (), (), name="several")
    with pytest.raises(GraphError, match="join one graph"):
        model.live(several)
    with pytest.raises(Exception, match="call fit before live"):
        GraphCL().live(graph)


def test_weights_on_a_graph_without_weights_are_refused():
    x, edges, neighbours, among = world()
    old = small(x, edges)
    model = fitted(old, layers=2)
    weights = [np.ones(len(some)) for some in neighbours]
    with pytest.raises(GraphError, match="edges of graph have no weights; leave them out"):
        model.embed_new(x[NODES:], neighbours, graph=old, weights=weights)
    with pytest.raises(GraphError, match="have no weights"):
        model.embed_new(x[NODES:], neighbours, graph=old, edges=[(0, 1, 2.0)])
    # Weights that are all 1 are weights.
    ones = Graph.from_edge_index(edges, x[:NODES], edge_weight=np.ones(edges.shape[1]))
    found = model.embed_new(x[NODES:], neighbours, graph=ones, edges=among, weights=weights)
    close(found, model.embed_new(x[NODES:], neighbours, graph=old, edges=among))


@pytest.mark.parametrize("kind", ["paper", "author", "topic"])
def test_new_nodes_of_graphs_with_types_are_those_of_the_grown_graph(kind):
    """Types without features too: those of other nodes change with their new neighbours."""
    graph = library()
    model = GraphCL(dim=24, epochs=1, device="cpu").fit(graph)
    own = graph.nodes[kind]
    x = np.full((2, own.num_features), 0.3, np.float32)
    near = {
        "paper": [["cites/p3", "<cites/p7", "on/2"], []],
        "author": [[], []],
        "topic": [["on/p3", "p9"], ["on/p3"]],
    }[kind]
    weights = [[1.5, 2.0, 1.0], []] if kind == "paper" else None
    if kind == "paper":
        with pytest.raises(GraphError, match="edges of on have no weights"):
            model.embed_new(x, near, graph=graph, node_type=kind, weights=weights)
        weights = None
    z = model.embed_new(x, near, graph=graph, node_type=kind, weights=weights)
    nodes = {
        name: {"num_nodes": one.num_nodes, "x": one.x, "node_ids": one.node_ids}
        for name, one in graph.nodes.items()
    }
    n = own.num_nodes
    nodes[kind]["num_nodes"] = n + 2
    if own.x is not None:
        nodes[kind]["x"] = np.concatenate([own.x, x])
    if own.node_ids is not None:
        nodes[kind]["node_ids"] = [*own.node_ids.tolist(), "new", "newer"]
    more = {
        "paper": {"cites": [[n, 7], [3, n]], "on": [[n], [2]]},
        "author": {},
        "topic": {"on": [[3, 9, 3], [n, n, n + 1]]},
    }[kind]
    relations = {}
    for key, one in graph.relations.items():
        added = np.array(more.get(key[1], [[], []]), np.int64)
        ends = np.concatenate([one.edge_index(), added], axis=1)
        relations[key] = {"edge_index": ends, "edge_features": one.edge_features}
        if one.edge_weight is not None:
            ones = np.ones(added.shape[1])
            relations[key]["edge_weight"] = np.concatenate([one.edge_weight, ones])
    whole = model.transform(Graph.from_edges(nodes, relations), node_type=kind)
    np.testing.assert_array_equal(z, whole[n:])


def test_new_nodes_of_graphs_with_types_say_what_is_missing():
    graph = library()
    model = GraphCL(dim=16, epochs=1, device="cpu").fit(graph)
    paper = np.zeros(6)
    for near, message in (
        (["p3"], "by which relation is 'p3' linked"),
        (["cites/p999"], "no node has the id 'p999'"),
        (["cite/p3"], r"no relation 'cite'.*did you mean 'cites'"),
        (["writes/0"], "edges of writes have features"),
    ):
        with pytest.raises(GraphError, match=message):
            model.embed_new(paper, near, graph=graph, node_type="paper")
    with pytest.raises(GraphError, match="of which type are new nodes"):
        model.embed_new(paper, [], graph=graph)
    with pytest.raises(GraphError, match=r"features must be \[n, 6\]"):
        model.embed_new(np.zeros(5), [], graph=graph, node_type="paper")
    with pytest.raises(GraphError, match="does not join author"):
        model.embed_new(np.zeros(3), ["cites/p3"], graph=graph, node_type="author")


def test_ids_with_a_slash_are_ids_where_one_relation_is_meant():
    ids = ["a/1", "writes/2", "c"]
    nodes = {"author": {"x": np.eye(3), "node_ids": ids}, "paper": {"x": np.ones((4, 2))}}
    edges = {("author", "writes", "paper"): [[0, 1, 2, 0], [0, 1, 2, 3]]}
    graph = Graph.from_edges(nodes, edges)
    model = GraphCL(dim=8, epochs=1, device="cpu").fit(graph)
    live = model.live(graph, node_type="paper")
    x = np.ones(2)
    assert np.array_equal(live.embed_new(x, ["a/1"]), live.embed_new(x, ["writes/a/1"]))
    with pytest.raises(GraphError, match="no node has the id '2'"):  # the relation comes first
        live.embed_new(x, ["writes/2"])
    assert live.embed_new(x, ["writes/writes/2"]).shape == (8,)


def test_what_is_near_a_new_node_is_all_that_is_looked_at(monkeypatch):
    """In a graph of many parts, a new node of a type without features sees its own part alone."""
    number = 3000
    own, edge = np.arange(number), ("person", "buys", "good")
    graph = Graph.from_edges(
        {"person": {"x": (own % 9)[:, None] + 1.0}, "good": {"num_nodes": number}},
        {edge: np.stack([own, own])},
    )
    model = GraphCL(dim=8, epochs=1, device="cpu").fit(graph)
    seen, whole = [], inference.embed_fitted
    monkeypatch.setattr(
        inference, "embed_fitted", lambda *a, **k: seen.append(a[1].num_nodes) or whole(*a, **k)
    )
    found = model.embed_new(np.ones(1), ["7", "8"], graph=graph, node_type="person")
    assert seen[0] < 10
    ends = np.concatenate([np.stack([own, own]), [[number, number], [7, 8]]], axis=1)
    x = np.concatenate([graph.nodes["person"].x, np.ones((1, 1))])
    grown = Graph.from_edges({"person": {"x": x}, "good": {"num_nodes": number}}, {edge: ends})
    expected = model.transform(grown, node_type="person")[-1]
    np.testing.assert_allclose(found, expected, atol=1e-6)
