"""Groups and links of the same nodes are the same, wherever the rows of the tables stand."""

import numpy as np
import pytest

import graphcl
from graphcl.answers.grouping import cluster
from graphcl.answers.linking import evaluate_links, links
from graphcl.answers.ordering import id_order, in_id_order
from graphcl.evaluation.unsupervised import build_index, unit_rows
from graphcl.graphs.graph import Graph
from graphcl.settings import LINKS_BY
from tests.conftest import random_graph
from tests.store.test_partition import typed_graph

NODES = 60
IDS = np.array([f"n{number:02d}" for number in range(NODES)])


def renumbered(order):
    """Returns the same plain graph with its nodes, and its edges, in other rows."""
    graph = random_graph()
    places = np.argsort(order)
    random = np.random.default_rng(1)
    edges = places[graph.edge_index()]
    edges = edges[:, random.permutation(edges.shape[1])]
    return Graph.from_edge_index(
        edges, graph.x[order], graph.y[order], node_ids=IDS[order], name="random"
    )


@pytest.fixture(scope="module")
def order():
    return np.random.default_rng(0).permutation(NODES)


@pytest.fixture(scope="module")
def z():
    return np.random.default_rng(0).normal(size=(NODES, 5)).astype(np.float32)


def told(groups):
    """Returns all that is said of groups, by id."""
    names = groups.ids.tolist()
    return (
        dict(zip(names, groups.assigned.tolist(), strict=True)),
        {name: str(cosine) for name, cosine in zip(names, groups.closeness, strict=True)},
        [groups.ids[rows].tolist() for rows in groups.typical],
        groups.stability,
        groups.silhouette,
    )


def test_a_graph_in_the_order_of_ids_is_the_graph_of_ordered_arrays(order):
    ordered, orders = in_id_order(renumbered(order))
    straight = renumbered(np.arange(NODES))
    np.testing.assert_array_equal(orders["node"], np.argsort(order))
    np.testing.assert_array_equal(ordered.x, straight.x)
    np.testing.assert_array_equal(ordered.y, straight.y)
    np.testing.assert_array_equal(ordered.indptr, straight.indptr)
    np.testing.assert_array_equal(ordered.indices, straight.indices)
    assert in_id_order(straight)[0] is straight
    assert id_order(np.arange(5)) is None
    assert id_order(np.array([10, 9, 100])).tolist() == [1, 0, 2]  # as numbers


def test_nodes_of_a_typed_graph_keep_their_edges(order):
    graph = typed_graph()
    shuffled = {
        name: np.array([f"{name}{number}" for number in order if number < nodes.num_nodes])
        for name, nodes in graph.nodes.items()
    }
    nodes = {
        name: {"x": one.x, "num_nodes": one.num_nodes, "node_ids": shuffled[name]}
        for name, one in graph.nodes.items()
        if len(shuffled[name]) == one.num_nodes
    }
    if len(nodes) < len(graph.nodes):
        pytest.skip("a type has more nodes than the order")
    given = {key: {"edge_index": one.edge_index()} for key, one in graph.relations.items()}
    named = Graph.from_edges(nodes, given)
    ordered, _ = in_id_order(named)
    for key, one in named.relations.items():
        ends = [named.nodes[kind].ids for kind in key[::2]]
        other = [ordered.nodes[kind].ids for kind in key[::2]]
        before, after = one.edge_index(), ordered.relations[key].edge_index()
        pairs = set(zip(ends[0][before[0]].tolist(), ends[1][before[1]].tolist(), strict=True))
        assert pairs == set(
            zip(other[0][after[0]].tolist(), other[1][after[1]].tolist(), strict=True)
        )


@pytest.mark.parametrize("how", [{}, {"count": 3}, {"method": "hdbscan", "least": 3}])
def test_groups_do_not_depend_on_the_order_of_rows(order, z, how):
    first = cluster(z, ids=IDS, **how)
    second = cluster(z[order], ids=IDS[order], **how)
    assert told(first) == told(second)


def test_the_nodes_nearest_to_a_centre_are_by_id_if_they_are_equally_near(order):
    z = np.repeat(np.eye(4, 5, dtype=np.float32), NODES // 4, axis=0)
    z[-1] = [0, 0, 1, 1, 0]  # k-means takes fewer groups than there are distinct rows
    for ids, rows in ((IDS, z), (IDS[order], z[order])):
        groups = cluster(rows, 3, ids=ids)
        for number, nearest in enumerate(groups.typical):
            members = np.flatnonzero(groups.assigned == number).tolist()
            best = sorted(members, key=lambda row: (-groups.closeness[row], groups.ids[row]))
            assert nearest.tolist() == best[:5]


@pytest.mark.parametrize("by", LINKS_BY)
def test_links_do_not_depend_on_the_order_of_rows(order, z, by):
    straight, other = renumbered(np.arange(NODES)), renumbered(order)
    for how in ({"k": 25}, {"k": 4, "nodes": ["n07", "n33"]}):
        first = links(z, graph=straight, by=by, **how)
        second = links(z[order], graph=other, by=by, **how)
        assert first.source.tolist() == second.source.tolist()
        assert first.target.tolist() == second.target.tolist()
        np.testing.assert_array_equal(first.scores, second.scores)
        np.testing.assert_array_equal(IDS[order][second.pairs[:, 0]], second.source)
    chosen = [("n01", "n40"), ("n40", "n01"), ("n09", "n10")]
    first = links(z, chosen, graph=straight, by=by)
    second = links(z[order], chosen, graph=other, by=by)
    np.testing.assert_array_equal(first.scores, second.scores)
    assert second.source.tolist() == [source for source, _ in chosen]
    rows = [7, 33]
    assert set(links(z[order], graph=other, rows=rows, k=2, by=by).source) == set(IDS[order][rows])


def test_an_index_over_other_rows_finds_the_same(order, z):
    other = renumbered(order)
    index = build_index(unit_rows(z[order]), threads=1)
    found = links(z[order], graph=other, index=index, by="embeddings", k=5, nodes=["n07"])
    best = links(z, graph=renumbered(np.arange(NODES)), by="embeddings", k=5, nodes=["n07"])
    assert set(found.target.tolist()) == set(best.target.tolist())


def test_an_evaluation_of_links_does_not_depend_on_the_order_of_rows(order):
    model = graphcl.GraphCL(epochs=1, dim=8, encoder="mean")
    first, second = (
        evaluate_links(model, renumbered(rows), negatives=5) for rows in (np.arange(NODES), order)
    )
    assert first.scores == second.scores


def test_tables_with_shuffled_rows_have_the_same_groups_and_links(tmp_path):
    random = np.random.default_rng(3)
    people = [f"p{number},{number % 3 * 10 + random.random():.4f}" for number in range(45)]
    pairs = {tuple(sorted(random.integers(0, 45, 2).tolist())) for _ in range(150)}
    calls = [f"p{one},p{other}" for one, other in pairs if one != other]
    answers = []
    model = None
    for shuffled in (False, True):
        rows, edges = people, calls
        if shuffled:
            rows, edges = random.permutation(people), random.permutation(calls)
        (tmp_path / "people.csv").write_text("\n".join(["id,age", *rows]) + "\n")
        (tmp_path / "calls.csv").write_text("\n".join(["source,target", *edges]) + "\n")
        graph = graphcl.read_tables(tmp_path / "calls.csv", tmp_path / "people.csv")
        if model is None:
            model = graphcl.GraphCL(epochs=2, dim=8, seed=0).fit(graph)
        z = model.transform(graph)
        groups = cluster(z, 3, graph=graph)
        found = links(z, graph=graph, model=model, k=10)
        assigned = dict(zip(groups.ids.tolist(), groups.assigned.tolist(), strict=True))
        ends = list(zip(found.source.tolist(), found.target.tolist(), strict=True))
        answers.append((assigned, ends, [list(map(str, one)) for one in groups.profiles]))
    assert answers[0] == answers[1]
