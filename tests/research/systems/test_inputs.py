from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse

from graphcl.errors import GraphError
from graphcl.graphs.collection import disjoint_union
from graphcl.graphs.graph import Graph
from graphcl.research.systems.inputs import Labelled, training_graph, whole_graph
from tests.conftest import dense_adjacency, random_collection
from tests.research.systems.communities import (
    communities,
    with_other_unseen,
    with_other_unseen_nodes,
)


def test_a_union_is_the_blocks_of_its_graphs():
    collection = random_collection()
    union = disjoint_union(collection.graphs, "all")
    blocks = [dense_adjacency(graph) for graph in collection.graphs]
    expected = scipy.sparse.block_diag(blocks).toarray()
    np.testing.assert_array_equal(dense_adjacency(union), expected)
    np.testing.assert_array_equal(union.x, np.concatenate([g.x for g in collection.graphs]))
    np.testing.assert_array_equal(union.y, collection.y)


def test_a_union_of_sparse_features_is_sparse(graph):
    sparse = Graph.from_edge_index(graph.edge_index(), scipy.sparse.csr_array(graph.x))
    union = disjoint_union([sparse, sparse], "two")
    np.testing.assert_array_equal(union.x.toarray(), np.concatenate([graph.x, graph.x]))


def same(first, second):
    return all(
        np.array_equal(getattr(first, name), getattr(second, name))
        for name in ("indptr", "indices", "x")
    )


def test_what_is_learned_from_holds_no_label_and_nothing_unseen(graph):
    collection = communities()
    for inductive in (False, True):
        seen = training_graph(collection, inductive=inductive)
        assert seen.y is None
        assert seen.num_nodes == collection.split_nodes[0]
        other = training_graph(with_other_unseen(collection, val=True), inductive=inductive)
        assert same(seen, other)
    other = with_other_unseen_nodes(graph)
    assert not same(graph, other)
    assert same(training_graph(graph, inductive=True), training_graph(other, inductive=True))
    assert training_graph(graph, inductive=False).y is None
    assert whole_graph(graph) is graph


def test_labelled_nodes_are_found_where_training_sees_them(graph):
    whole = Labelled.of(graph, inductive=False, owner="t")
    np.testing.assert_array_equal(whole.nodes, np.flatnonzero(graph.train_mask))
    inside = Labelled.of(graph, inductive=True, owner="t")
    np.testing.assert_array_equal(inside.nodes, np.arange(graph.train_mask.sum()))
    np.testing.assert_array_equal(inside.graph.x[inside.nodes], graph.x[graph.train_mask])
    for found in (whole, inside):
        np.testing.assert_array_equal(found.y, graph.y[graph.train_mask])
        np.testing.assert_array_equal(found.val_y, graph.y[found.val])
    collection = random_collection()
    found = Labelled.of(collection, inductive=False, owner="t")
    np.testing.assert_array_equal(found.y, collection.y[: collection.split_nodes[0]])
    np.testing.assert_array_equal(whole_graph(collection).y[found.val], found.val_y)


def test_unlabelled_nodes_are_left_out(graph):
    y = graph.y.copy()
    gone = np.flatnonzero(graph.train_mask)[:5]
    y[gone] = -1
    for inductive in (False, True):
        found = Labelled.of(replace(graph, y=y), inductive=inductive, owner="t")
        assert len(found.nodes) == len(found.y) == graph.train_mask.sum() - 5
        assert (found.y >= 0).all()
        features = found.graph.x[found.nodes]
        np.testing.assert_array_equal(features, graph.x[graph.train_mask & (y >= 0)])


def test_what_is_missing_is_named(graph):
    with pytest.raises(GraphError, match="Gaan: random has no labels"):
        Labelled.of(replace(graph, y=None), inductive=False, owner="Gaan")
    with pytest.raises(GraphError, match="masks; validation and test nodes are given, train nodes"):
        Labelled.of(replace(graph, train_mask=None), inductive=False, owner="Gaan")
    free = replace(graph, train_mask=None, val_mask=None, test_mask=None)
    with pytest.raises(
        GraphError, match="Gaan: random needs train and validation masks; it has no"
    ):
        Labelled.of(free, inductive=False, owner="Gaan")
    nobody = np.zeros(graph.num_nodes, dtype=bool)
    with pytest.raises(GraphError, match="no labelled training or validation"):
        Labelled.of(replace(graph, val_mask=nobody), inductive=False, owner="Gaan")
    bare = replace(communities().train[0], y=None)
    with pytest.raises(GraphError, match="has no labels"):
        Labelled.of(
            replace(communities(), train=(bare,), val=(bare,), test=()),
            inductive=False,
            owner="Gaan",
        )
