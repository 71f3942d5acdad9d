import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphcl.errors import GraphError, ParameterError, StoreError
from graphcl.graphs.graph import Graph
from tests.conftest import dense_adjacency

X = np.eye(3)


@st.composite
def edge_lists(draw):
    num_nodes = draw(st.integers(1, 12))
    node = st.integers(0, num_nodes - 1)
    return num_nodes, draw(st.lists(st.tuples(node, node), max_size=40))


@given(edge_lists())
def test_structure_is_the_set_of_pairs_given(case):
    num_nodes, edges = case
    graph = Graph.from_edge_index(
        np.array(edges, dtype=int).reshape(-1, 2).T, np.ones((num_nodes, 1))
    )
    pairs = {frozenset(edge) for edge in edges if edge[0] != edge[1]}
    found = graph.edge_index()
    assert {frozenset(edge) for edge in found.T.tolist()} == pairs
    assert graph.num_edges == len(pairs)
    assert found.shape[1] == 2 * len(pairs)
    assert graph.self_loops_removed == sum(u == v for u, v in edges)
    for node in range(num_nodes):
        row = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
        assert (np.diff(row) > 0).all()
    assert np.array_equal(dense_adjacency(graph), dense_adjacency(graph).T)


def test_one_of_a_thing_is_said_in_the_singular():
    lonely = Graph.from_edge_index([[0], [1]], np.ones((2, 1)), np.zeros(2, int), name="pair")
    assert repr(lonely) == "Graph('pair': 2 nodes, 1 edge, 1 dense feature, 1 class)"
    wide = Graph.from_edge_index([[0, 1], [1, 2]], scipy.sparse.csr_array(X), name="path")
    assert repr(wide) == "Graph('path': 3 nodes, 2 edges, 3 sparse features)"


def test_it_is_immutable_and_leaves_its_input_alone():
    edges, x = np.array([[0, 1], [1, 2]]), X.astype(np.float32)
    graph = Graph.from_edge_index(edges, x, [0, 1, 2], train_mask=[True, False, False])
    for array in (graph.indptr, graph.indices, graph.x, graph.y, graph.train_mask):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError):
        graph.y = None
    x[0] = 9
    assert graph.x[0, 0] == 1
    assert x.flags.writeable


def test_sparse_features_stay_sparse_and_read_only():
    for sparse in (scipy.sparse.csr_array(X), scipy.sparse.coo_matrix(X), torch.eye(3).to_sparse()):
        graph = Graph.from_edge_index([[0], [1]], sparse)
        assert scipy.sparse.issparse(graph.x)
        assert np.array_equal(graph.x.toarray(), X)
        with pytest.raises(ValueError, match="read-only"):
            graph.x.data[0] = 2


@pytest.mark.parametrize(
    "x",
    [
        [[1], [2], [3]],
        np.array([[1], [2], [3]], dtype=np.uint8),
        torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64),
        torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.bfloat16, requires_grad=True),
    ],
)
def test_any_number_type_becomes_float32(x):
    graph = Graph.from_edge_index([[0], [1]], x)
    assert graph.x.dtype == np.float32
    assert graph.x[:, 0].tolist() == [1, 2, 3]


def test_masks_may_be_booleans_flags_or_node_numbers():
    for mask in ([False, True, True], [0, 1, 1], np.array([1, 2]), torch.tensor([2, 1])):
        graph = Graph.from_edge_index([[0], [1]], X, train_mask=mask)
        assert graph.train_mask.tolist() == [False, True, True]


def test_a_single_node_and_no_edges_make_a_graph():
    graph = Graph.from_edge_index([], [[1.0]])
    assert (graph.num_nodes, graph.num_edges) == (1, 0)


def wide_masks(count=2):
    """Masks of four nodes with a column per split: each node moves on by one part."""
    parts = np.array([0, 1, 2, 2])
    return {
        name: np.stack([(parts + split) % 3 == code for split in range(count)], 1)
        for code, name in enumerate(("train_mask", "val_mask", "test_mask"))
    }


def test_several_splits():
    edges, x = [[0, 1, 2], [1, 2, 3]], np.eye(4)
    graph = Graph.from_edge_index(edges, x, **wide_masks(3))
    assert graph.num_splits == 3
    assert graph.splits.shape == (3, 3, 4)
    assert graph.train_mask.tolist() == graph.split(0).train_mask.tolist()
    for number in range(3):
        one = graph.split(number)
        assert (one.num_splits, one.splits) == (1, None)
        for name, mask in wide_masks(3).items():
            assert getattr(one, name).tolist() == mask[:, number].tolist()
    with pytest.raises(ValueError, match="read-only"):
        graph.splits[0, 0, 0] = True
    with pytest.raises(ParameterError, match=r"number must be in \[0, 3\); got 3"):
        graph.split(3)
    with pytest.raises(ParameterError, match="0: there are no others; got 1"):
        graph.split(0).split(1)


def test_a_mask_of_one_dimension_holds_in_every_split():
    masks = wide_masks(2)
    test = np.array([False, False, False, True])
    masks["train_mask"][3] = masks["val_mask"][3] = False
    graph = Graph.from_edge_index([[0], [1]], np.eye(4), **masks | {"test_mask": test})
    assert all(graph.split(i).test_mask.tolist() == test.tolist() for i in range(2))


def test_one_column_is_one_split():
    graph = Graph.from_edge_index([[0], [1]], np.eye(4), **wide_masks(1))
    assert (graph.num_splits, graph.splits) == (1, None)
    assert graph.train_mask.ndim == 1


def test_a_missing_mask_is_missing_in_every_split():
    masks = wide_masks(2) | {"val_mask": None}
    graph = Graph.from_edge_index([[0], [1]], np.eye(4), **masks)
    assert graph.val_mask is None
    assert graph.split(1).val_mask is None


def test_splits_that_do_not_fit_are_refused():
    masks = wide_masks(2)
    with pytest.raises(GraphError, match="as many columns, one per split; got train_mask 2, val"):
        Graph.from_edge_index([[0], [1]], np.eye(4), **masks | {"val_mask": np.zeros((4, 3), bool)})
    shared = masks["val_mask"] | masks["train_mask"]
    with pytest.raises(GraphError, match="train_mask and val_mask share node 0"):
        Graph.from_edge_index([[0], [1]], np.eye(4), **masks | {"val_mask": shared})


def test_pyg_keeps_the_splits_and_a_store_says_that_it_holds_one(tmp_path):
    graph = Graph.from_edge_index([[0], [1]], np.eye(4), **wide_masks(2))
    again = Graph.from_pyg(graph.to_pyg())
    assert np.array_equal(again.splits, graph.splits)
    with pytest.raises(StoreError, match=r"has 2 splits and a store holds one; save graph.split"):
        graph.save(tmp_path / "store")
    graph.split(1).save(tmp_path / "store")
    assert Graph.open(tmp_path / "store").train_mask.tolist() == [False, False, True, True]
