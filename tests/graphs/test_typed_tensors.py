import numpy as np
import torch

from graphcl.graphs.graph import Graph
from graphcl.graphs.typed_tensors import TypedScaling, prepare, prepare_like, typed_tensors

CPU = torch.device("cpu")
KEY = ("a", "r", "b")


def graph(seed=0):
    random = np.random.default_rng(seed)
    edges = {"edge_index": random.integers(0, 9, (2, 30)), "edge_features": random.normal(5, 2, 30)}
    return Graph.from_edges({"a": random.normal(100, 20, (9, 3)), "b": 9}, {KEY: edges})


def test_columns_of_nodes_and_edges_are_standardised_and_means_follow():
    prepared = prepare(graph(), "auto")
    assert np.allclose(prepared.graph.nodes["a"].x.mean(0), 0, atol=1e-5)
    x, relations = typed_tensors(prepared.graph, device=CPU, scaling=prepared.scaling)
    assert abs(float(relations[KEY].features.mean())) < 1e-5
    assert list(prepared.scaling.nodes) == ["a"]
    mean = relations[KEY].edge_mean()
    assert mean.shape == (9, 1)
    row = prepared.graph.relations[KEY].indices[: prepared.graph.relations[KEY].indptr[1]]
    assert np.allclose(x["b"][0], prepared.graph.nodes["a"].x[row].mean(0), atol=1e-6)
    assert len(prepared.scaling.describe()) == 2


def test_another_graph_is_scaled_by_the_statistics_of_the_first():
    prepared, other = prepare(graph(), "auto"), graph(1)
    kept = prepared.scaling.tensors()
    read = TypedScaling.from_tensors(kept, prepared.schema)
    found = prepare_like(other, prepared.schema, read)
    scale = prepared.scaling.nodes["a"]
    expected = (other.nodes["a"].x - scale.shift) * scale.factor
    assert np.allclose(found.nodes["a"].x, expected, atol=1e-5)
    assert not np.allclose(found.nodes["a"].x.mean(0), 0, atol=1e-3)
