import math

import numpy as np
import pytest
import torch
from torch_geometric.nn import GATConv

from graphcl.errors import ParameterError
from graphcl.evaluation import probe
from graphcl.evaluation.probe import linear_probe
from graphcl.graphs.tensors import graph_tensors
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.graphmae import (
    GraphMAE,
    _Attention,
    draw_masking,
    hide,
    scaled_cosine_error,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("exponent", [1.0, 3.0])
def test_the_error_is_that_of_plain_loops(generator, exponent):
    rebuilt, x = (torch.randn(5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    expected = 0.0
    for a, b in zip(rebuilt.tolist(), x.tolist(), strict=True):
        dot = sum(left * right for left, right in zip(a, b, strict=True))
        expected += (1 - dot / (math.hypot(*a) * math.hypot(*b))) ** exponent / 5
    found = scaled_cosine_error(rebuilt, x, exponent).item()
    assert math.isclose(found, expected, rel_tol=1e-10)


def test_the_masking_has_its_rates(generator):
    masking = draw_masking(200, 0.5, 0.1, generator)
    assert [len(part) for part in masking] == [100, 90, 10, 10]
    assert len(masking.hidden.unique()) == 100
    assert set(masking.hidden.tolist()) == {*masking.token.tolist(), *masking.replaced.tolist()}
    assert len(draw_masking(200, 0.5, 0.0, generator).replaced) == 0
    assert len(draw_masking(2, 0.1, 0.0, generator).hidden) == 1
    again = draw_masking(200, 0.5, 0.1, generator)
    assert not torch.equal(again.hidden, masking.hidden)


def test_hidden_nodes_get_the_token_or_the_donors_features(generator):
    x, token = torch.arange(40.0).view(20, 2), torch.tensor([-1.0, -2.0])
    masking = draw_masking(20, 0.5, 0.4, generator)
    found = hide(x, token, masking).tolist()
    donor = dict(zip(masking.replaced.tolist(), masking.donors.tolist(), strict=True))
    assert len(donor) == 4
    for u in range(20):
        if u in masking.token.tolist():
            assert found[u] == [-1, -2]
        else:
            assert found[u] == x[donor.get(u, u)].tolist()
    assert float(x.min()) == 0


def test_a_layer_is_pygs(graph, generator):
    layer = _Attention(12, 8, heads=2, draw=generator)
    conv = GATConv(12, 4, heads=2)
    with torch.no_grad():
        layer.bias.uniform_(-1, 1, generator=generator)
    conv.lin.weight.data = layer.weight.detach().T.clone()
    conv.att_dst.data, conv.att_src.data = layer.receiving.data[None], layer.giving.data[None]
    conv.bias.data = layer.bias.detach().clone()
    x, adjacency = graph_tensors(graph, device=CPU)
    found = layer(x, adjacency, None)
    torch.testing.assert_close(found, conv(x, adjacency.edge_index()), rtol=1e-4, atol=1e-5)


def test_decoding_some_nodes_is_the_layer_itself(graph, generator):
    layer = _Attention(12, 7, heads=1, draw=generator)
    x, adjacency = graph_tensors(graph, device=CPU)
    nodes = torch.tensor([3, 40, 7])
    found = layer.decode(x, nodes, adjacency, (0.0, 0.0), generator)
    torch.testing.assert_close(found, layer(x, adjacency, None)[nodes], rtol=1e-4, atol=1e-5)


def test_it_learns(graph, monkeypatch):
    monkeypatch.setattr(probe, "REDRAWN", 5)  # as elsewhere: few nodes are scored here
    method = GraphMAE(dim=16, heads=2, epochs=60, learning_rate=0.01, feature_scaling="none")
    z = method.embed(graph, seed=0, device=CPU)
    assert z.shape == (graph.num_nodes, 16)
    assert np.isfinite(z).all()
    assert linear_probe(z, graph).accuracy > 0.7


def test_settings_are_the_published_ones():
    assert SYSTEMS["graphmae"].method("") == SYSTEMS["graphmae"].method("cora")
    assert SYSTEMS["graphmae"].method("citeseer").exponent == 1
    assert SYSTEMS["graphmae"].method("pubmed").dim == 1024


def test_the_width_must_hold_the_heads():
    with pytest.raises(ParameterError, match=r"graphmae: dim must be a multiple of heads \(4\)"):
        GraphMAE(dim=30)
