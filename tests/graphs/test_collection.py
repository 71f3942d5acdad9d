import dataclasses

import numpy as np
import pytest

from graphcl.errors import GraphError
from graphcl.graphs.collection import GraphCollection, fingerprint
from graphcl.graphs.graph import Graph
from tests.conftest import random_graph


def test_figures_are_those_of_all_graphs(collection):
    graphs = collection.graphs
    assert graphs == (*collection.train, *collection.val, *collection.test)
    assert collection.num_nodes == sum(graph.num_nodes for graph in graphs)
    assert collection.num_edges == sum(graph.num_edges for graph in graphs)
    assert (collection.num_features, collection.num_classes) == (12, 5)
    assert collection.split_nodes == (40 + 43 + 46, 49 + 52, 55)
    assert collection.self_loops_removed == 0
    assert np.array_equal(collection.y, np.concatenate([graph.y for graph in graphs]))
    assert collection.node_ids is None
    assert repr(collection) == (
        "GraphCollection('tissues': 3/2/1 train/val/test graphs, 285 nodes, "
        f"{collection.num_edges:,} edges, 12 features, 5 classes)"
    )


def test_it_cannot_be_changed(collection):
    with pytest.raises(dataclasses.FrozenInstanceError):
        collection.train = ()
    listed = [random_graph()]
    taken = GraphCollection(listed)
    listed.append(random_graph(1))
    assert len(taken.train) == 1
    assert taken.y is not None


def test_node_ids_and_labels_of_graphs_that_have_them():
    named = [Graph.from_edge_index([], np.eye(2), node_ids=[f"{c}0", f"{c}1"]) for c in "ab"]
    together = GraphCollection(tuple(named))
    assert together.node_ids.tolist() == ["a0", "a1", "b0", "b1"]
    assert together.y is None
    assert "classes" not in repr(together)


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        ([], "graphs: no training graph; pass at least one"),
        ([random_graph(), 3], "graphs: graph 1 is not a graphcl.Graph but int"),
        (
            [random_graph(), random_graph(num_features=5)],
            "graphs: graph 1 (random) has 5 features, but the graphs before it have 12 features",
        ),
        (
            [random_graph(), random_graph().replace(y=None)],
            "has no labels, but the graphs before it have one class per node",
        ),
        (
            [Graph.from_edge_index([], np.eye(3), np.eye(3, n, dtype=int)) for n in (4, 2)],
            "has 2 labels per node, but the graphs before it have 4 labels per node",
        ),
    ],
)
def test_graphs_that_do_not_agree(graphs, message):
    with pytest.raises(GraphError) as caught:
        GraphCollection(tuple(graphs))
    assert message in str(caught.value)


def test_unseen_graphs_must_agree_too(graph):
    with pytest.raises(GraphError, match="has 5 features"):
        GraphCollection((graph,), test=(random_graph(num_features=5),))


def test_the_fingerprint_tells_graphs_apart(graph):
    one = fingerprint((graph,))
    assert one == fingerprint((random_graph(),))
    assert one != fingerprint((graph, graph))
    assert one != fingerprint((random_graph(2),))
