"""Exported encoders against ours: by onnxruntime and by torch.export, on graphs of three sizes."""

import io
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from graphcl.encoders import Layer, LayeredEncoder
from graphcl.errors import MissingExtraError, ParameterError
from graphcl.estimator.model import GraphCL
from graphcl.exporting.program import GraphProgram, exported, write_program
from graphcl.graphs.graph import Graph
from tests.conftest import configured
from tests.estimator.test_typed import library

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
SIZES, MOST = (1, 40, 3000), 1e-5
MODELS = {
    "mean": {"recipe": "cora", "encoder": "mean", "layers": 2, "dim": 16},
    "residual": {"recipe": "cora", "encoder": "residual", "layers": 3, "dim": 16},
    "default": {"recipe": "default", "dim": 40},
}


def graph_of(number, *, weighted=False, words=0):
    random = np.random.default_rng(number)
    x = random.normal(size=(number, 9)).astype(np.float32)
    x[:, 3] = np.exp(3 * x[:, 3])  # `auto` takes the logarithm
    x[:, 4] = x[:, 4] > 0
    if words:
        x = np.concatenate([x, random.random((number, words)) < 0.15], axis=1)
    edges = random.integers(0, number, (2, 4 * number))
    weight = random.uniform(0.5, 2, edges.shape[1]) if weighted else None
    return Graph.from_edge_index(edges, x, edge_weight=weight)


def inputs_of(graph):
    edges = graph.edge_index()
    weight = np.ones(edges.shape[1], np.float32)
    if graph.edge_weight is not None:
        weight = graph.edge_weight
    return {"x": np.array(graph.x), "edge_index": edges, "edge_weight": np.array(weight)}


def tensors_of(graph):
    return [torch.from_numpy(value) for value in inputs_of(graph).values()]


@pytest.fixture(scope="module", params=MODELS)
def files(request, tmp_path_factory):
    """A model and its two files."""
    model = GraphCL(**MODELS[request.param], epochs=1, device="cpu").fit(graph_of(200))
    folder = tmp_path_factory.mktemp("exported")
    for kind, name in (("onnx", "model.onnx"), ("torch", "model.pt2")):
        write_program(folder / name, kind, model._fitted)
    return model, folder


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_both_files_give_our_embeddings(files, weighted):
    model, folder = files
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    program = torch.export.load(folder / "model.pt2").module()
    for number in SIZES:
        graph = graph_of(number, weighted=weighted)
        if graph.num_edges == 0:
            continue
        expected = model.transform(graph)
        (found,) = session.run(None, inputs_of(graph))
        assert np.abs(found - expected).max() <= MOST
        found = program(*tensors_of(graph)).detach().numpy()
        assert np.abs(found - expected).max() <= MOST


def test_the_plain_encoder_on_every_size(files):
    model, _ = files
    plain = GraphProgram(model._fitted)
    for number in SIZES:  # also a node without edges
        graph = graph_of(number)
        with torch.no_grad():
            found = plain(*tensors_of(graph)).numpy()
        assert np.abs(found - model.transform(graph)).max() <= MOST


def test_names_and_free_sizes(files):
    session = onnxruntime.InferenceSession(files[1] / "model.onnx")
    assert [one.name for one in session.get_inputs()] == ["x", "edge_index", "edge_weight"]
    assert [one.name for one in session.get_outputs()] == ["z"]
    nodes, features = session.get_inputs()[0].shape
    assert isinstance(nodes, str)
    assert features == 9


@pytest.mark.parametrize("scaling", ["none", "row", "unit", "auto"])
def test_every_scaling_of_features(scaling):
    graph = graph_of(300, words=60)
    if scaling in ("row", "unit"):
        x = graph.x.copy()
        x[3] = 0  # there is nothing to divide by
        graph = graph.replace(x=x)
    model = GraphCL("cora", feature_scaling=scaling, epochs=1, dim=8, device="cpu").fit(graph)
    program = exported(model._fitted)[0].module()
    found, expected = program(*tensors_of(graph)).detach().numpy(), model.transform(graph)
    assert np.abs(found - expected).max() <= MOST * max(1, np.abs(expected).max())


class Odd(LayeredEncoder):
    """States its layers, one of which no program can hold."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(9, 4))

    def layer_specs(self):
        return (Layer(self.weight, activation=lambda h: h * float(h.detach().numpy().sum())),)


def test_encoders_that_cannot_be_exported(tmp_path):
    fitted = GraphCL("cora", epochs=1, dim=8, device="cpu").fit(graph_of(50))._fitted
    with pytest.raises(ParameterError, match="states its layers"):
        write_program(tmp_path / "a.onnx", "onnx", replace(fitted, encoder=nn.Linear(9, 4)))
    with pytest.raises(ParameterError, match="cannot be exported"):
        write_program(tmp_path / "a.onnx", "onnx", replace(fitted, encoder=Odd()))
    assert list(tmp_path.iterdir()) == []


def test_exporters_stay_quiet(capsys):
    model = GraphCL("cora", epochs=1, dim=8, device="cpu").fit(graph_of(50))
    program = exported(model._fitted)[0]
    torch.export.save(program, io.BytesIO())
    assert capsys.readouterr() == ("", "")


def test_the_extra_is_named_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    model = GraphCL("cora", epochs=1, dim=8, device="cpu").fit(graph_of(50))
    with pytest.raises(MissingExtraError, match=r"graphcl\[export\]"):
        write_program(tmp_path / "a.onnx", "onnx", model._fitted)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("recipe", [{}, {"side_by_side": False, "own_features": 0.0}])
def test_graphs_with_types(tmp_path, recipe):
    """Types without features, vectors and weights of edges, on graphs of two sizes."""
    graph, other = library(), library(3, papers=70, authors=31)
    model = configured(dim=24, epochs=1, device="cpu", **recipe).fit(graph)
    names = write_program(tmp_path / "a.onnx", "onnx", model._fitted)
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    assert names[:4] == ["x_author", "x_paper", "x_topic", "edge_index_writes"]
    assert [one.name for one in session.get_outputs()] == ["z_author", "z_paper", "z_topic"]
    for some in (graph, other):
        given = {
            f"x_{name}": np.zeros((one.num_nodes, 1), np.float32) if one.x is None else one.x
            for name, one in some.nodes.items()
        }
        for (_, name, _), one in some.relations.items():
            ones = np.ones(len(one.indices), np.float32)
            given[f"edge_index_{name}"] = one.edge_index()
            given[f"edge_weight_{name}"] = ones if one.edge_weight is None else one.edge_weight
            if one.edge_features is not None:
                given[f"edge_features_{name}"] = one.edge_features
        found = session.run(None, given)
        expected = model.transform(some)
        for rows, wanted in zip(found, expected.values(), strict=True):
            assert np.abs(rows - wanted).max() <= MOST * max(1, np.abs(wanted).max())
