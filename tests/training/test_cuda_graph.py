"""The recorded step against the eager one; needs a GPU."""

import numpy as np
import pytest
import torch

from graphcl.encoders.paper import MeanPoolingEncoder
from graphcl.estimator import GraphCL
from graphcl.recipes import load_recipe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def trained(graph, monkeypatch, *, recordable):
    monkeypatch.setattr(MeanPoolingEncoder, "recordable", recordable)
    recipe = load_recipe("default").with_values(dim=32, epochs=12, precision="float32")
    return GraphCL(recipe, device="cuda").fit(graph)


def test_a_replayed_step_is_an_eager_step(graph, monkeypatch):
    recorded = trained(graph, monkeypatch, recordable=True)
    eager = trained(graph, monkeypatch, recordable=False)
    for ours, theirs in zip(recorded.history_, eager.history_, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-4)
    for key, weight in recorded.encoder_.state_dict().items():
        torch.testing.assert_close(weight, eager.encoder_.state_dict()[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_gpu_trains_as_a_cpu_does(graph, layers):
    recipe = load_recipe("default").with_values(
        dim=32, layers=layers, epochs=8, edge_drop=0.0, feature_drop=0.0, precision="float32"
    )  # nothing is drawn but the weights, which do not depend on the device
    gpu, cpu = (GraphCL(recipe, device=device).fit(graph) for device in ("cuda", "cpu"))
    for ours, theirs in zip(gpu.history_, cpu.history_, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
        assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-3)
    np.testing.assert_allclose(gpu.transform(graph), cpu.transform(graph), rtol=1e-2, atol=1e-4)


def test_a_graph_on_a_gpu_goes_in(graph):
    from graphcl.graphs.graph import Graph

    data = graph.to_pyg().to("cuda")
    again = Graph.from_pyg(data)
    assert again.num_edges == graph.num_edges
