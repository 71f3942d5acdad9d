import numpy as np
import pytest

from graphcl.errors import GraphError, StoreError
from graphcl.tuning.objective import ClusterStability


def test_stability_is_that_of_two_versions_of_the_graph(graph):
    objective = ClusterStability.of(graph, seed=0)
    assert objective.data.y is None
    whole = set(map(tuple, graph.edge_index().T.tolist()))
    first, second = (set(map(tuple, v.edge_index().T.tolist())) for v in objective.versions)
    for kept in (first, second):
        assert kept < whole
        assert abs(len(kept) / len(whole) - 0.8) < 0.1
    assert first != second
    lost = [(version.x != graph.x).mean() for version in objective.versions]
    assert lost == pytest.approx([0.5, 0.5], abs=0.1)
    groups = np.eye(8)[np.arange(graph.num_nodes) % 8]
    assert objective(lambda version: groups) == 1
    random = np.random.default_rng(0)
    assert objective(lambda version: random.normal(size=(graph.num_nodes, 8))) < 0.3


def test_a_damaged_store_is_refused_before_it_is_read(graph, tmp_path):
    graph.save(tmp_path / "store")
    indices = np.load(tmp_path / "store/indices.npy", mmap_mode="r+")
    indices[0] = 10**9
    indices.flush()
    with pytest.raises(StoreError, match="indices holds 1000000000"):
        ClusterStability.of(graph.open(tmp_path / "store"), seed=0)


def test_few_nodes_have_no_clusters(graph):
    few = graph.from_edge_index([[0], [1]], np.eye(3))
    with pytest.raises(GraphError, match="3 nodes are too few to cluster; tuning needs labels"):
        ClusterStability.of(few, seed=0)
