import numpy as np
import pytest
import scipy.sparse

from graphcl.datasets.synthetic import SPLIT, synthetic_graph
from graphcl.errors import ParameterError
from graphcl.graphs.graph import Graph


@pytest.fixture(scope="module")
def generated():
    return synthetic_graph(3000, 40_000, 16, 7, seed=1)


def test_it_is_a_valid_graph(generated):
    """The same as the checked constructor makes of its edges."""
    checked = Graph.from_edge_index(generated.edge_index(), generated.x, generated.y)
    assert checked.num_edges == generated.num_edges == 40_000
    assert checked.self_loops_removed == 0
    np.testing.assert_array_equal(checked.indptr, generated.indptr)
    np.testing.assert_array_equal(checked.indices, generated.indices)
    assert generated.x.dtype == np.float32
    assert (generated.num_nodes, generated.num_features, generated.num_classes) == (3000, 16, 7)


def test_a_seed_decides_everything(generated):
    again, other = (synthetic_graph(3000, 40_000, 16, 7, seed=seed) for seed in (1, 2))
    for field in ("indptr", "indices", "x", "y", "train_mask", "val_mask", "test_mask"):
        assert np.array_equal(getattr(again, field), getattr(generated, field))
        assert not np.array_equal(getattr(other, field), getattr(generated, field))


def test_the_split_has_reddits_proportions(generated):
    masks = (generated.train_mask, generated.val_mask, generated.test_mask)
    assert [mask.sum() for mask in masks] == [count * 3000 // 232_965 for count in SPLIT]
    assert sum(mask.astype(int) for mask in masks).max() == 1


def test_communities_tails_and_weak_features(generated):
    degree = np.diff(generated.indptr)
    assert degree.max() > 8 * degree.mean()
    assert np.median(degree) < degree.mean()
    inside = np.repeat(generated.y, degree) == generated.y[generated.indices]
    assert 0.6 < inside.mean() < 0.85
    centres = np.stack([generated.x[generated.y == k].mean(0) for k in range(7)])
    nearest = ((generated.x[:, None] - centres) ** 2).sum(2).argmin(1)
    alone = (nearest == generated.y).mean()
    adjacency = scipy.sparse.csr_array(
        (np.ones(len(generated.indices)), generated.indices, generated.indptr)
    )
    smooth = (adjacency @ generated.x) / np.maximum(degree, 1)[:, None]
    together = (smooth @ centres.T - (centres**2).sum(1) / 2).argmax(1)
    assert 0.3 < alone < 0.9
    assert (together == generated.y).mean() > alone


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 0, 2, 1), "num_nodes must be at least 2; got 1"),
        ((10, 30, 2, 2), r"num_edges must be in \[0, 22\].*got 30"),
        ((10, 5, 0, 2), "num_features must be at least 1"),
        ((10, 5, 2, 11), r"num_classes must be in \[1, num_nodes\]; got 11"),
    ],
)
def test_bad_sizes(arguments, message):
    with pytest.raises(ParameterError, match=message):
        synthetic_graph(*arguments)


def test_no_edges_and_half_of_all_edges():
    assert synthetic_graph(5, 0, 2, 2).num_edges == 0
    assert synthetic_graph(20, 95, 2, 2).num_edges == 95
