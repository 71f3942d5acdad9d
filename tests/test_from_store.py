"""Training and embedding from a store, against the same graph in memory."""

import numpy as np
import pytest
import torch

from graphcl import Graph, GraphCL
from graphcl.embedding import embed_graph
from graphcl.encoders import build_encoder
from graphcl.kernels.stored_features import StoredFeatures
from graphcl.training import SampledGraph
from graphcl.views import Drop
from tests.conftest import configured, random_graph

CPU = torch.device("cpu")
PERTURBATION = Drop(0.2, 0.4)


def stored(tmp_path, features="float32"):
    graph = random_graph()
    graph.save(tmp_path / features, features=features)
    return Graph.open(tmp_path / features)


def in_memory(graph):
    return Graph.from_edge_index(graph.edge_index(), np.asarray(graph.x), graph.y)


@pytest.mark.parametrize("features", ["float32", "float16"])
@pytest.mark.parametrize("scaling", ["none", "row", "unit"])
@pytest.mark.parametrize("own", [False, True])
def test_batches_are_those_of_the_graph_in_memory(tmp_path, features, scaling, own):
    graph = stored(tmp_path, features)
    options = {
        "device": CPU,
        "feature_scaling": scaling,
        "fan_outs": 4,
        "layers": 2,
        "own_features": own,
    }
    ours = SampledGraph.of(graph, **options)
    theirs = SampledGraph.of(in_memory(graph), **options)
    assert isinstance(ours.topology.x["node"], StoredFeatures)
    kind = getattr(torch, features)
    assert ours.topology.x["node"].values.dtype == kind  # nothing was converted ahead
    nodes = {"node": torch.tensor([3, 40, 3, 59])}
    one, other = (source.batch(nodes, PERTURBATION, seed=7).draw() for source in (ours, theirs))
    for view, expected in zip(one, other, strict=True):
        for one_level, other_level in zip(view.inputs, expected.inputs, strict=True):
            part, wanted = one_level["node"], other_level["node"]
            assert torch.equal(part, wanted)
        for part, wanted in zip(view.shares, expected.shares, strict=True):
            assert torch.equal(part["node"][0].children, wanted["node"][0].children)


@pytest.mark.parametrize("mode", ["full", "sampled"])
@pytest.mark.parametrize("features", ["float32", "float16"])
def test_training_from_a_store(tmp_path, recipe, mode, features):
    graph = stored(tmp_path, features)
    losses = [
        GraphCL(recipe, mode=mode, batch_nodes=20, seed=1, device="cpu").fit(one).history_[-1].loss
        for one in (graph, in_memory(graph))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("features", ["float32", "float16"])
@pytest.mark.parametrize("name", ["mean", "residual"])
@pytest.mark.parametrize("layers", [1, 3])
def test_embedding_of_some_nodes_is_that_of_all(tmp_path, monkeypatch, features, name, layers):
    graph = stored(tmp_path, features)
    generator = torch.Generator().manual_seed(0)
    encoder = build_encoder(name, 12, dim=8, layers=layers, generator=generator)
    options = {"device": CPU, "feature_scaling": "row", "block_rows": 7}
    whole = embed_graph(encoder, in_memory(graph), **options)["node"]
    np.testing.assert_allclose(
        embed_graph(encoder, graph, **options)["node"], whole, rtol=1e-5, atol=1e-6
    )
    monkeypatch.setattr("graphcl.embedding.available_memory_bytes", lambda _: 100)
    for nodes in (slice(0, 1), slice(13, 29), slice(59, 60), slice(0, 60)):
        some = embed_graph(encoder, graph, nodes=nodes, **options, scratch=tmp_path)["node"]
        np.testing.assert_allclose(some, whole[nodes], rtol=1e-5, atol=1e-6)
    assert [file.name for file in tmp_path.iterdir()] == [features]


def test_a_range_needs_no_more_rows_than_its_neighbourhood(graph):
    """A path: nodes 10 to 12 need one more on each side per layer."""
    path = np.stack([np.arange(49), np.arange(1, 50)])
    graph = Graph.from_edge_index(path, np.random.default_rng(0).normal(size=(50, 3)))
    generator = torch.Generator().manual_seed(0)
    encoder = build_encoder("mean", 3, dim=4, layers=3, generator=generator)
    totals = []
    embed_graph(
        encoder,
        graph,
        device=CPU,
        nodes=slice(10, 13),
        on_rows=lambda done, total: totals.append((done, total)),
    )
    assert totals == [(7, 15), (12, 15), (15, 15)]


@pytest.mark.parametrize("mode", ["full", "sampled"])
@pytest.mark.parametrize("scaling", ["none", "row"])
def test_unseen_features_do_not_move_inductive_training(tmp_path, recipe, mode, scaling):
    graph = random_graph()
    loud = np.where(graph.train_mask[:, None], graph.x, -50 * graph.x).astype(np.float32)
    weights = []
    for name, x in (("quiet", graph.x), ("loud", loud)):
        graph.replace(x=x).save(tmp_path / name, features="float16")
        model = configured(recipe, mode=mode, inductive=True, feature_scaling=scaling, device="cpu")
        model.fit(Graph.open(tmp_path / name))
        weights.append([value.numpy().tobytes() for value in model.encoder_.state_dict().values()])
    assert weights[0] == weights[1]
