import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl.errors import ParameterError
from graphcl.exporting.program import Scale
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import Scaling
from graphcl.graphs.tensors import (
    feature_tensor,
    graph_tensors,
    prepare,
    prepare_like,
    stored_features,
)

CPU = torch.device("cpu")


SIZES = {
    "row": lambda x: np.abs(np.asarray(x)).sum(1),
    "unit": lambda x: np.linalg.norm(np.asarray(x), axis=1),
}


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_rows_of_any_size_become_unit_rows(size):
    """Squares of such numbers are 0 or infinite in float32."""
    x = (size * np.random.default_rng(0).integers(0, 3, (20, 9))).astype(np.float32)
    x[4] = 0
    expected = (np.linalg.norm(x.astype(np.float64), axis=1) > 0).astype(float)
    tables = [
        feature_tensor(x, device=CPU, feature_scaling="unit"),
        feature_tensor(scipy.sparse.csr_array(x), device=CPU, feature_scaling="unit").to_dense(),
        stored_features(x, feature_scaling="unit").to_dense(CPU),
        Scale("unit")(torch.from_numpy(x)),
    ]
    for table in tables:
        np.testing.assert_allclose(np.linalg.norm(table.numpy(), axis=1), expected, rtol=1e-5)


@pytest.mark.parametrize("scaling", SIZES)
def test_row_scaling(graph, scaling):
    x, _ = graph_tensors(graph, device=CPU, feature_scaling=scaling)
    np.testing.assert_allclose(SIZES[scaling](x), 1, rtol=1e-5)
    np.testing.assert_allclose(x, graph.x / SIZES[scaling](graph.x)[:, None], rtol=1e-5)
    holey = graph.x * (graph.x > 0.5)
    holey[3] = 0
    dense = Graph.from_edge_index([[0], [1]], holey)
    sparse = Graph.from_edge_index([[0], [1]], scipy.sparse.csr_array(holey))
    first, _ = graph_tensors(dense, device=CPU, feature_scaling=scaling)
    second, _ = graph_tensors(sparse, device=CPU, feature_scaling=scaling)
    torch.testing.assert_close(first, second.to_dense())
    assert (first[3] == 0).all()
    assert second.shape == sparse.x.shape
    assert len(second.values) == sparse.x.nnz
    with pytest.raises(ParameterError, match="must be none or row or unit or auto; got 'max'"):
        graph_tensors(graph, device=CPU, feature_scaling="max")


@pytest.mark.parametrize("features", ["float32", "float16"])
@pytest.mark.parametrize("width", [1, 12, 700])
@pytest.mark.parametrize("scaling", SIZES)
def test_row_scaling_of_a_store_has_the_bits_of_memory(
    tmp_path, monkeypatch, features, width, scaling
):
    monkeypatch.setattr("graphcl.kernels.stored_features._BLOCK_ELEMENTS", 7 * width)
    x = np.random.default_rng(0).normal(size=(50, width))
    x[3] = 0
    Graph.from_edge_index([[0], [1]], x, train_mask=[0, 1, 2]).save(
        tmp_path / "g", features=features
    )
    stored = Graph.open(tmp_path / "g")
    memory = Graph.from_edge_index([[0], [1]], np.asarray(stored.x))
    expected = feature_tensor(memory.x, device=CPU, feature_scaling=scaling)
    assert not expected[3].any()
    np.testing.assert_allclose(np.delete(SIZES[scaling](expected), 3), 1, rtol=1e-5)
    assert torch.equal(feature_tensor(stored.x, device=CPU, feature_scaling=scaling), expected)
    ours = stored_features(stored.x, feature_scaling=scaling)
    assert torch.equal(ours.to_dense(CPU), expected)


@pytest.mark.parametrize("scaling", ["none", "row", "unit"])
@pytest.mark.parametrize("kind", ["float32", "float16", "sparse"])
def test_some_rows_of_features_are_those_of_all(graph, tmp_path, kind, scaling):
    if kind == "sparse":
        holey = scipy.sparse.csr_array(np.maximum(graph.x, 0))
        given = graph.replace(x=holey)
    else:
        graph.save(tmp_path / "store", features=kind)
        given = Graph.open(tmp_path / "store")
    every, some = (
        feature_tensor(x, device=CPU, feature_scaling=scaling) for x in (given.x, given.x[13:40])
    )
    if kind == "sparse":
        every, some = every.to_dense(), some.to_dense()
    assert torch.equal(some, every[13:40])


KEY = ("a", "r", "b")


def typed(seed=0):
    random = np.random.default_rng(seed)
    edges = {"edge_index": random.integers(0, 9, (2, 30)), "edge_features": random.normal(5, 2, 30)}
    return Graph.from_edges({"a": random.normal(100, 20, (9, 3)), "b": 9}, {KEY: edges})


def test_columns_of_nodes_and_edges_are_standardised_and_means_follow():
    (prepared,) = prepare([typed()], "auto")
    x, relations = prepared.tensors(CPU)
    assert np.allclose(x["a"].mean(0), 0, atol=1e-5)
    assert prepared.graph.nodes["a"].x is prepared.tables["a"]  # as it was given
    assert abs(float(relations[KEY].features.mean())) < 1e-5
    assert list(prepared.scaling.nodes) == ["a"]
    mean = relations[KEY].edge_mean()
    assert mean.shape == (9, 1)
    row = prepared.graph.relations[KEY].indices[: prepared.graph.relations[KEY].indptr[1]]
    assert np.allclose(x["b"][0], x["a"][row].mean(0), atol=1e-6)
    assert len(prepared.scaling.describe()) == 2


def test_another_graph_is_scaled_by_the_statistics_of_the_first():
    (prepared,), other = prepare([typed()], "auto"), typed(1)
    read = Scaling.read("auto", prepared.schema, prepared.scaling.tensors())
    found, _ = prepare_like(other, prepared.schema, read).tensors(CPU)
    scale = prepared.scaling.nodes["a"]
    expected = (other.nodes["a"].x - scale.shift) * scale.factor
    assert np.allclose(found["a"], expected, atol=1e-5)
    assert not np.allclose(found["a"].mean(0), 0, atol=1e-3)


def test_a_plain_graph_under_other_names_is_the_same_to_an_encoder(graph):
    about = {"x": graph.x, "y": graph.y}
    edges = {"edge_index": graph.edge_index(), "undirected": True}
    named = Graph.from_edges({"person": about}, {("person", "knows", "person"): edges})
    (plain,), (other,) = prepare([graph], "auto"), prepare([named], "auto")
    assert other.schema == plain.schema == prepare_like(named, plain.schema, plain.scaling).schema
    (x, adjacency), (other_x, other_adjacency) = plain.tensors(CPU), other.tensors(CPU)
    assert torch.equal(x, other_x)
    assert torch.equal(adjacency.indices, other_adjacency.indices)
    assert torch.equal(adjacency.edge_ids, other_adjacency.edge_ids)  # views draw by them
