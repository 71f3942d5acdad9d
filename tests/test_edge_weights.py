"""What edge weights mean, from the constructors to the embeddings."""

import networkx
import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl.embedding import embed, embed_graph
from graphcl.encoders import build_encoder
from graphcl.errors import GraphError, ParameterError
from graphcl.estimator.model import GraphCL
from graphcl.graphs.collection import training_subgraph
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.adjacency import Adjacency, mean_pool
from graphcl.views import drop_edges
from tests.conftest import configured, random_graph

CPU = torch.device("cpu")


def weighted(graph, weights):
    """The graph with a weight per undirected edge, given in the order of its upper triangle."""
    sources, targets = graph.edge_index()
    upper = sources < targets
    return Graph.from_edge_index(
        graph.edge_index()[:, upper],
        graph.x,
        graph.y,
        edge_weight=weights,
        train_mask=graph.train_mask,
        val_mask=graph.val_mask,
        test_mask=graph.test_mask,
    )


@pytest.fixture
def heavy(graph):
    return weighted(graph, np.random.default_rng(0).uniform(0.2, 9, graph.num_edges))


def normalised(graph):
    """Â of the module `kernels.adjacency`, entry by entry."""
    dense = np.zeros((graph.num_nodes, graph.num_nodes))
    dense[tuple(graph.edge_index())] = graph.edge_weight
    for node in range(graph.num_nodes):
        degree = (dense[node] > 0).sum()
        own = dense[node].sum() / degree if degree else 1.0
        dense[node] /= own + dense[node].sum()
        dense[node, node] = 1 - dense[node].sum()
    return torch.tensor(dense)


def test_pooling_is_the_weighted_mean_value_and_gradient(heavy, generator):
    adjacency = Adjacency.from_csr(
        heavy.indptr, heavy.indices, heavy.edge_weight, device=CPU, dtype=torch.float64
    )
    h = torch.randn(heavy.num_nodes, 5, dtype=torch.float64, generator=generator)
    ours, dense = h.clone().requires_grad_(), h.clone().requires_grad_()
    pooled, expected = mean_pool(ours, adjacency), normalised(heavy) @ dense
    torch.testing.assert_close(pooled, expected, rtol=1e-6, atol=1e-6)
    pooled.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(ours.grad, dense.grad, rtol=1e-5, atol=1e-5)
    twice = mean_pool(torch.cat([h, 2 * h]), adjacency.twice())
    torch.testing.assert_close(twice, torch.cat([pooled.detach(), 2 * pooled.detach()]))


def test_a_node_has_the_share_of_itself_that_it_has_without_weights(heavy):
    degree = np.diff(heavy.indptr)
    np.testing.assert_allclose(normalised(heavy).diagonal(), 1 / (degree + 1))


def test_dropping_an_edge_leaves_self_weights_alone(heavy, generator):
    _, adjacency = graph_tensors(heavy, device=CPU)
    view = drop_edges(adjacency, 0.5, generator)
    assert torch.equal(view.self_weight, adjacency.self_weight)
    kept = view.weight > 0
    assert 0.3 < kept.float().mean() < 0.7
    assert torch.equal(view.weight[kept], adjacency.weight[kept])


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_weights_of_one_give_the_bits_of_an_unweighted_graph(graph, recipe, mode):
    ones = weighted(graph, np.ones(graph.num_edges))
    settings = {"mode": mode, "fan_out": 3, "batch_nodes": 20, "seed": 1, "device": "cpu"}
    plain = configured(recipe, **settings).fit_transform(graph)
    assert np.array_equal(plain, configured(recipe, **settings).fit_transform(ones))
    for with_replacement in (True, False):
        settings["sample_with_replacement"] = with_replacement
        of_both = [configured(recipe, **settings).fit_transform(one) for one in (graph, ones)]
        assert np.array_equal(*of_both)


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_only_ratios_of_weights_matter(heavy, graph, recipe, mode):
    eightfold = weighted(graph, 8 * heavy.edge_weight[_upper(heavy)])
    settings = {"mode": mode, "fan_out": 3, "batch_nodes": 20, "device": "cpu"}
    of_both = [configured(recipe, **settings).fit_transform(one) for one in (heavy, eightfold)]
    np.testing.assert_allclose(*of_both, atol=1e-5)
    plain = configured(recipe, **settings).fit_transform(graph)
    assert np.abs(plain - of_both[0]).max() > 1e-3


def _upper(graph):
    sources, targets = graph.edge_index()
    return sources < targets


@pytest.mark.parametrize("name", ["mean", "residual"])
def test_layer_by_layer_is_the_encoder(heavy, name, generator):
    encoder = build_encoder(name, heavy.num_features, dim=8, layers=2, generator=generator)
    x, adjacency = graph_tensors(heavy, device=CPU)
    whole = embed(encoder, x, adjacency)
    by_layer = embed_graph(encoder, heavy, device=CPU, block_rows=7)["node"]
    np.testing.assert_allclose(by_layer, whole, atol=1e-5)
    some = embed_graph(encoder, heavy, device=CPU, block_rows=7, nodes=slice(5, 20))["node"]
    np.testing.assert_allclose(some, whole[5:20], atol=1e-5)


def test_gcn_takes_weights_and_other_layers_say_they_do_not(heavy, graph, generator):
    shape = {"dim": 4, "layers": 1, "generator": generator}
    gcn = build_encoder("gcn", heavy.num_features, **shape)
    z, plain = (embed(gcn, *graph_tensors(one, device=CPU)) for one in (heavy, graph))
    assert np.abs(z - plain).max() > 1e-3
    gat = build_encoder("gat", heavy.num_features, **shape)
    with pytest.raises(ParameterError, match="takes no edge weights; use mean, residual or gcn"):
        embed(gat, *graph_tensors(heavy, device=CPU))


def test_the_training_subgraph_keeps_the_weights_of_its_edges(heavy):
    part = training_subgraph(heavy)
    nodes = part.node_ids
    whole, ours = (np.zeros((60, 60)) for _ in range(2))
    whole[tuple(heavy.edge_index())] = heavy.edge_weight
    ours[nodes[part.edge_index()[0]], nodes[part.edge_index()[1]]] = part.edge_weight
    mask = heavy.train_mask
    assert np.array_equal(ours, whole * mask[:, None] * mask[None, :])


@pytest.mark.parametrize("scale", [2e-38, 4e36])
def test_the_largest_and_smallest_weights_that_are_taken_train(graph, recipe, scale):
    random = np.random.default_rng(0)
    given = weighted(graph, random.uniform(1, 2, graph.num_edges) * scale)
    for mode in ("full", "sampled"):
        z = configured(recipe, mode=mode, fan_out=3, device="cpu").fit_transform(given)
        assert np.isfinite(z).all()


def test_weights_from_other_libraries_and_back(heavy):
    data = heavy.to_pyg()
    again = Graph.from_pyg(data)
    assert np.array_equal(again.edge_weight, heavy.edge_weight)
    sources, targets = heavy.edge_index()
    matrix = scipy.sparse.coo_array((heavy.edge_weight, (sources, targets)), shape=(60, 60))
    assert np.array_equal(Graph.from_scipy(matrix, heavy.x).edge_weight, heavy.edge_weight)
    assert Graph.from_scipy(matrix != 0, heavy.x).edge_weight is None
    there = networkx.Graph()
    there.add_nodes_from(range(60))
    listed = zip(sources.tolist(), targets.tolist(), heavy.edge_weight.tolist(), strict=True)
    there.add_weighted_edges_from(listed)
    ours = Graph.from_networkx(there, heavy.x, weight="weight")
    assert np.array_equal(ours.edge_weight, heavy.edge_weight)
    assert Graph.from_networkx(there, heavy.x).edge_weight is None
    with pytest.raises(GraphError, match=r"edge 0 – .* has no attribute 'cost'"):
        Graph.from_networkx(there, heavy.x, weight="cost")


def test_a_store_keeps_weights(heavy, tmp_path):
    heavy.save(tmp_path / "store")
    again = Graph.open(tmp_path / "store")
    assert np.array_equal(again.edge_weight, heavy.edge_weight)
    model = GraphCL(dim=8, epochs=1, device="cpu").fit(heavy)
    assert np.array_equal(model.transform(again), model.transform(heavy))


def test_large_inference_agrees_with_small(heavy, monkeypatch):
    model = GraphCL(dim=8, epochs=1, device="cpu").fit(heavy)
    small = model.transform(heavy)
    monkeypatch.setattr("graphcl.estimator.inference.LAYERWISE_NODES", 10)
    np.testing.assert_allclose(model.transform(heavy), small, atol=1e-5)
    assert random_graph().edge_weight is None
