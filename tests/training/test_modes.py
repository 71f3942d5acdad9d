import dataclasses

import numpy as np
import pytest
import torch

from graphcl.errors import GraphError, ParameterError
from graphcl.estimator import GraphCL
from graphcl.graph import Graph
from graphcl.training import modes
from graphcl.training.modes import choose_mode, full_graph_bytes
from tests.conftest import random_graph

CPU = torch.device("cpu")


def chosen(graph, mode="auto", encoder="mean"):
    return choose_mode(graph, mode, encoder=encoder, dim=64, layers=2, device=CPU)


def test_small_graphs_are_trained_whole(graph):
    assert chosen(graph).name == "full"
    assert "GB that are free" in chosen(graph).reason


def test_memory_decides(graph, monkeypatch):
    needed = full_graph_bytes(graph, 64, 2)
    monkeypatch.setattr(modes, "available_memory_bytes", lambda _: int(1.5 * needed))
    assert chosen(graph).name == "full"
    monkeypatch.setattr(modes, "available_memory_bytes", lambda _: int(1.3 * needed))
    assert chosen(graph).name == "sampled"
    assert chosen(graph, encoder="gat") == ("full", "the encoder 'gat' only sees whole graphs")


def test_size_decides_on_a_cpu(graph, monkeypatch):
    monkeypatch.setattr(modes, "CPU_NODES", 59)
    assert chosen(graph) == ("sampled", "60 nodes are many for a CPU to encode per step")


def test_the_user_decides(graph, monkeypatch):
    monkeypatch.setattr(modes, "CPU_NODES", 1)
    assert chosen(graph, "full") == ("full", "as asked")
    assert chosen(graph, "sampled") == ("sampled", "as asked")
    with pytest.raises(ParameterError, match="mode 'sampled' needs the encoder mean or residual"):
        chosen(graph, "sampled", encoder="gin")


@pytest.mark.parametrize("encoder", ["mean", "residual"])
@pytest.mark.parametrize("replace", [True, False])
def test_sampled_training_through_the_estimator(recipe, encoder, replace):
    graph = random_graph(num_nodes=90)
    sampled = recipe.with_values(
        mode="sampled", encoder=encoder, fan_out=3, batch_nodes=40, sample_with_replacement=replace
    )
    model = GraphCL(sampled, device="cpu").fit(graph)
    assert model.mode_.name == "sampled"
    z = model.transform(graph)
    assert np.isfinite(z).all()
    assert np.array_equal(z, GraphCL(sampled, device="cpu").fit_transform(graph))


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_inductive_training_sees_training_nodes_alone(recipe, mode):
    graph = random_graph(num_nodes=90)
    hidden = ~graph.train_mask
    x = graph.x.copy()
    x[hidden] = 1e6
    edges = graph.edge_index()
    seen = graph.train_mask[edges].all(axis=0)
    others = np.flatnonzero(hidden)
    garbage = Graph.from_edge_index(
        np.concatenate([edges[:, seen], [others[:-1], others[1:]]], axis=1),
        x,
        train_mask=graph.train_mask,
    )
    inductive = recipe.with_values(mode=mode, inductive=True, fan_out=3, batch_nodes=20)
    models = [GraphCL(inductive, device="cpu").fit(one) for one in (graph, garbage)]
    first, second = (model.encoder_.state_dict() for model in models)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert len(models[0].transform(graph)) == graph.num_nodes
    with pytest.raises(GraphError, match="inductive training needs one"):
        GraphCL(inductive).fit(dataclasses.replace(graph, train_mask=None))


def test_large_graphs_are_embedded_layer_by_layer(graph, recipe, monkeypatch):
    model = GraphCL(recipe, device="cpu").fit(graph)
    whole = model.transform(graph)
    monkeypatch.setattr("graphcl.estimator.LAYERWISE_NODES", 1)
    np.testing.assert_allclose(model.transform(graph), whole, rtol=1e-4, atol=1e-6)
