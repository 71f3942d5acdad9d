"""The recorded step against the eager one; needs a GPU."""

import numpy as np
import pytest
import torch

from graphcl.estimator.model import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.kernels.recording import CudaGraphStep
from graphcl.recipes import load_recipe
from tests.test_sampling import typed_graph

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def eager(step, batch, key=None):
    return step._step(batch)


@pytest.mark.parametrize("mode", ["full", "sampled"])
@pytest.mark.parametrize("kind", ["plain", "weighted", "typed", "all types", "many"])
def test_a_replayed_step_is_an_eager_step(kind, mode, graph, collection, monkeypatch):
    values = {"dim": 32, "epochs": 12, "precision": "float32", "mode": mode, "batch_nodes": 0}
    if mode == "sampled":
        values |= {"batch_nodes": 20, "fan_out": 3}
    if kind == "weighted":
        random = np.random.default_rng(0)
        edges = graph.edge_index()[:, graph.edge_index()[0] < graph.edge_index()[1]]
        weight = random.random(edges.shape[1]) + 0.2
        graph = Graph.from_edge_index(edges, graph.x, graph.y, edge_weight=weight)
    elif kind == "many":
        if mode == "sampled":
            pytest.skip("several graphs train whole")
        graph = collection
    elif kind != "plain":
        graph = typed_graph(weighted=True)
        values |= {"batch_nodes": 4, "contrast": "all" if kind == "all types" else "each"}
    recipe = load_recipe("default").replace(**values)
    recorded = GraphCL(recipe, device="cuda").fit(graph)
    monkeypatch.setattr(CudaGraphStep, "__call__", eager)
    plain = GraphCL(recipe, device="cuda").fit(graph)
    for ours, theirs in zip(recorded.history_, plain.history_, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-4)
    for key, weight in recorded.encoder_.state_dict().items():
        torch.testing.assert_close(weight, plain.encoder_.state_dict()[key], rtol=1e-4, atol=1e-5)


def test_sampled_steps_are_those_of_a_cpu(graph):
    """The trees and views of a seed are the same; only rounding differs."""
    recipe = load_recipe("default").replace(
        dim=32, epochs=6, precision="float32", mode="sampled", batch_nodes=20, fan_out=3
    )
    gpu, cpu = (GraphCL(recipe, device=device).fit(graph) for device in ("cuda", "cpu"))
    for ours, theirs in zip(gpu.history_, cpu.history_, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-3)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_gpu_trains_as_a_cpu_does(graph, layers):
    recipe = load_recipe("default").replace(
        dim=32, layers=layers, epochs=8, edge_drop=0.0, feature_drop=0.0, precision="float32"
    )  # nothing is drawn but the weights, which do not depend on the device
    gpu, cpu = (GraphCL(recipe, device=device).fit(graph) for device in ("cuda", "cpu"))
    for ours, theirs in zip(gpu.history_, cpu.history_, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
        assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-3)
    np.testing.assert_allclose(gpu.transform(graph), cpu.transform(graph), rtol=1e-2, atol=1e-4)


def test_a_graph_on_a_gpu_goes_in(graph):
    data = graph.to_pyg().to("cuda")
    again = Graph.from_pyg(data)
    assert again.num_edges == graph.num_edges
