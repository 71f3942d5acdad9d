import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl.errors import ParameterError
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import feature_tensor, graph_tensors, stored_features

CPU = torch.device("cpu")


def test_row_scaling(graph):
    x, _ = graph_tensors(graph, device=CPU, feature_scaling="row")
    np.testing.assert_allclose(x.abs().sum(1), 1, rtol=1e-5)
    holey = graph.x * (graph.x > 0.5)
    holey[3] = 0
    dense = Graph.from_edge_index([[0], [1]], holey)
    sparse = Graph.from_edge_index([[0], [1]], scipy.sparse.csr_array(holey))
    first, _ = graph_tensors(dense, device=CPU, feature_scaling="row")
    second, _ = graph_tensors(sparse, device=CPU, feature_scaling="row")
    torch.testing.assert_close(first, second.to_dense())
    assert (first[3] == 0).all()
    with pytest.raises(ParameterError, match="feature_scaling must be none or row or auto"):
        graph_tensors(graph, device=CPU, feature_scaling="max")


@pytest.mark.parametrize("features", ["float32", "float16", "int8"])
@pytest.mark.parametrize("width", [1, 12, 700])
def test_row_scaling_of_a_store_has_the_bits_of_memory(tmp_path, monkeypatch, features, width):
    monkeypatch.setattr("graphcl.kernels.stored_features._BLOCK_ELEMENTS", 7 * width)
    x = np.random.default_rng(0).normal(size=(50, width))
    x[3] = 0
    Graph.from_edge_index([[0], [1]], x, train_mask=[0, 1, 2]).save(
        tmp_path / "g", features=features
    )
    stored = Graph.open(tmp_path / "g")
    memory = Graph.from_edge_index([[0], [1]], np.asarray(stored.x))
    expected = feature_tensor(memory, device=CPU, feature_scaling="row")
    assert torch.equal(feature_tensor(stored, device=CPU, feature_scaling="row"), expected)
    ours = stored_features(stored, feature_scaling="row")
    assert torch.equal(ours.to_dense(CPU), expected)


@pytest.mark.parametrize("scaling", ["none", "row"])
@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "sparse"])
def test_some_rows_of_features_are_those_of_all(graph, tmp_path, kind, scaling):
    if kind == "sparse":
        holey = scipy.sparse.csr_array(np.maximum(graph.x, 0))
        given = graph.replace(x=holey)
    else:
        graph.save(tmp_path / "store", features=kind)
        given = Graph.open(tmp_path / "store")
    every, some = (
        feature_tensor(given, device=CPU, feature_scaling=scaling, rows=rows)
        for rows in (slice(None), slice(13, 40))
    )
    if kind == "sparse":
        every, some = every.to_dense(), some.to_dense()
    assert torch.equal(some, every[13:40])
