import numpy as np
import pytest
import torch

from graphcl.errors import GraphError, StoreError
from graphcl.evaluation.splits import compare_probe
from graphcl.research.tuning.objective import ClusterStability, build_objective


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


def test_several_labels_are_ranked_by_the_score_of_compare(graph):
    """One embedding tells of rare labels, below probability 0.5; the other of a frequent one."""
    random, cpu = np.random.default_rng(0), torch.device("cpu")
    n = 600
    y = (random.random((n, 4)) < [0.08, 0.08, 0.08, 0.5]).astype(np.int64)
    rare = np.hstack([y[:, :3] + random.normal(size=(n, 3)), random.normal(size=(n, 1))])
    frequent = np.hstack([random.normal(size=(n, 3)), y[:, 3:] + random.normal(size=(n, 1)) / 9])
    split = random.permutation(np.arange(n) % 3)
    masks = {f"{part}_mask": split == place for place, part in enumerate(("train", "val", "test"))}
    several = graph.from_edge_index([[0], [1]], np.ones((n, 1)), y, **masks)
    objective = build_objective(several, unsupervised=False, seed=0, device=cpu, probe_steps=300)
    assert objective.name == "validation mean label AUC"
    tuned, compared = (
        [score(z) for z in (rare, frequent)]
        for score in (
            lambda z: objective(lambda _: z),
            lambda z: compare_probe(z, several, device=cpu).val_score,
        )
    )
    assert tuned == pytest.approx(compared, abs=0.02)
    assert tuned[0] > tuned[1] + 0.05
