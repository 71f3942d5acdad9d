import numpy as np
import pytest
import torch

from graphcl.errors import GraphError, ParameterError, TrainingError
from graphcl.estimator.fitted import Components
from graphcl.estimator.model import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.graphs.schema import Schema
from graphcl.recipes import load_recipe
from graphcl.settings import ENCODER_OPTIONS
from graphcl.training import SampledGraph, modes
from graphcl.training.modes import choose_mode, full_graph_bytes
from graphcl.views import Drop
from tests.conftest import random_graph

CPU = torch.device("cpu")
PERTURBATION = Drop(0.2, 0.5)


def footprint(graph, encoder="mean", **changes):
    plain = {**ENCODER_OPTIONS, "encoder": encoder, "dim": 64}
    recipe = load_recipe("default").replace(**plain | changes)
    return Components(recipe).footprint(Schema.plain(graph.num_features))


def chosen(graph, mode="auto", encoder="mean"):
    return choose_mode(graph, mode, footprint(graph, encoder), device=CPU)


def test_small_graphs_are_trained_whole(graph):
    assert chosen(graph).name == "full"
    assert "GB that are free" in chosen(graph).reason


def test_memory_decides(graph, monkeypatch):
    needed = full_graph_bytes(graph, footprint(graph))
    monkeypatch.setattr(modes, "available_memory_bytes", lambda _: int(1.5 * needed))
    assert chosen(graph).name == "full"
    monkeypatch.setattr(modes, "available_memory_bytes", lambda _: int(1.3 * needed))
    assert chosen(graph).name == "sampled"
    whole_only = "the encoder 'gat' or its views only see whole graphs"
    assert chosen(graph, encoder="gat") == ("full", whole_only)


def test_size_decides_on_a_cpu(graph, monkeypatch):
    monkeypatch.setattr(modes, "CPU_NODES", 59)
    assert chosen(graph) == ("sampled", "60 nodes are many for a CPU to encode per step")


def test_the_user_decides(graph, monkeypatch):
    monkeypatch.setattr(modes, "CPU_NODES", 1)
    assert chosen(graph, "full") == ("full", "as asked")
    assert chosen(graph, "sampled") == ("sampled", "as asked")
    with pytest.raises(ParameterError, match="mode 'sampled' is not possible: the encoder 'gin'"):
        chosen(graph, "sampled", encoder="gin")


@pytest.mark.parametrize("encoder", ["mean", "residual"])
@pytest.mark.parametrize("replace", [True, False])
def test_sampled_training_through_the_estimator(recipe, encoder, replace):
    graph = random_graph(num_nodes=90)
    sampled = recipe.replace(
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
    inductive = recipe.replace(mode=mode, inductive=True, fan_out=3, batch_nodes=20)
    models = [GraphCL(inductive, device="cpu").fit(one) for one in (graph, garbage)]
    first, second = (model.encoder_.state_dict() for model in models)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert len(models[0].transform(graph)) == graph.num_nodes
    with pytest.raises(GraphError, match="inductive training needs one"):
        GraphCL(inductive).fit(graph.replace(train_mask=None))


def test_large_graphs_are_embedded_layer_by_layer(graph, recipe, monkeypatch):
    model = GraphCL(recipe, device="cpu").fit(graph)
    whole = model.transform(graph)
    monkeypatch.setattr("graphcl.estimator.inference.LAYERWISE_NODES", 1)
    np.testing.assert_allclose(model.transform(graph), whole, rtol=1e-4, atol=1e-6)


def checked(graph, mode, **changes):
    encoder = {key: changes.pop(key) for key in ("encoder", "dim") if key in changes}
    options = {"batch_nodes": 256, "fan_out": 10, "feature_scaling": "none", "device": CPU}
    asked = modes.Mode(mode, "as asked")
    modes.check_memory(graph, asked, footprint(graph, **encoder), **options | changes)


def test_a_training_that_does_not_fit_is_refused_with_advice(graph, monkeypatch):
    checked(graph, "full")
    checked(graph, "sampled")
    monkeypatch.setattr(modes, "available_memory_bytes", lambda _: 2_000_000)
    checked(graph, "full", dim=8)
    with pytest.raises(
        TrainingError, match=r"mode sampled needs about .* batch_nodes=64 would fit"
    ):
        checked(graph, "sampled")
    monkeypatch.setattr(modes, "available_memory_bytes", lambda _: 1000)
    with pytest.raises(TrainingError, match="weights alone do not fit; set a smaller dim"):
        checked(graph, "full")
    monkeypatch.setattr(modes, "available_memory_bytes", lambda _: 100_000)
    with pytest.raises(TrainingError, match=r"0\.0 GB are free; set mode=sampled"):
        checked(graph, "full")
    with pytest.raises(TrainingError, match="set encoder=mean mode=sampled"):
        checked(graph, "full", encoder="gat")
    with pytest.raises(TrainingError, match="save the graph as a store"):
        checked(graph, "sampled", feature_scaling="row")


def test_the_estimate_can_be_overruled(graph, recipe, monkeypatch):
    monkeypatch.setattr(modes, "available_memory_bytes", lambda _: 1000)
    with pytest.raises(TrainingError, match="mode sampled needs"):
        GraphCL(recipe, device="cpu").fit(graph)
    GraphCL(recipe, device="cpu", ignore_memory=True, epochs=1).fit(graph)


@pytest.mark.parametrize("own", [False, True])
def test_the_estimate_covers_what_two_batches_hold(graph, own):
    source = SampledGraph.of(
        graph, device=CPU, fan_outs=5, layers=2, batch_nodes=30, own_features=own
    )
    batch = source.batch({"node": torch.arange(30)}, PERTURBATION, seed=0)
    parts = [part for view in batch.draw() for level in view.inputs for part in level.values()]
    every = [share for view in batch.draw() for level in view.shares for share in level["node"]]
    parts += [part for share in every for part in (share.children, share.own)]
    held = sum(part.nbytes for part in parts)
    size = footprint(graph, "residual" if own else "mean", dim=16)
    estimate = modes.sampled_bytes(12, size, 5, batch_nodes=30)
    assert 2 * held < estimate < 6 * held


def test_sampled_features_take_what_their_precision_says(graph):
    gpu, numbers = torch.device("cuda"), graph.num_nodes * graph.num_features
    held = {
        precision: modes.table_bytes(graph, feature_scaling="none", precision=precision, device=gpu)
        for precision in ("auto", "bf16", "tf32", "float32")
    }
    assert held["bf16"] == held["auto"]
    assert held["tf32"] == held["float32"] == held["auto"] + 2 * numbers
    assert modes.sampled_dtype(CPU, "auto") == torch.float32


def test_the_estimate_knows_the_processes(monkeypatch):
    graph = random_graph(num_nodes=3000)
    size = footprint(graph, "residual", dim=256)
    alone, two, four, eight = (full_graph_bytes(graph, size, world) for world in (1, 2, 4, 8))
    # All but the weights is divided. What is gathered comes on top, and the tables of two other
    # processes, which the loss holds: two views of the nodes each.
    divided = alone - size.training_bytes + 4 * 2 * (2 * 3000 * 256)
    assert 4 * (two - four) == pytest.approx(divided)
    assert 8 * (four - eight) == pytest.approx(divided)
    assert two < 0.75 * alone
    monkeypatch.setattr(modes, "available_memory_bytes", lambda _: int(1.2 * alone))
    for processes, expected in (
        ({}, "sampled"),
        ({"dividing": 8}, "full"),
        ({"dividing": 8, "beside": 8}, "sampled"),  # they fill one memory together
    ):
        mode = choose_mode(graph, "auto", size, device=CPU, **processes)
        assert mode.name == expected
    asked = {"batch_nodes": 256, "fan_out": 10, "feature_scaling": "none", "device": CPU}
    full = modes.Mode("full", "as asked")
    monkeypatch.setattr(modes, "available_memory_bytes", lambda _: alone // 2)
    modes.check_memory(graph, full, size, **asked, dividing=8)
    for processes in ({}, {"dividing": 8, "beside": 8}):
        with pytest.raises(TrainingError, match="mode full needs about"):
            modes.check_memory(graph, full, size, **asked, **processes)
