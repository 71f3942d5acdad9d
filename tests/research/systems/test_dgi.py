import math

import numpy as np
import pytest
import torch
from torch_geometric.nn import DeepGraphInfomax, GCNConv

from graphcl.errors import TrainingError
from graphcl.evaluation import linear_probe
from graphcl.graphs.tensors import graph_tensors
from graphcl.research.systems.dgi import DGI, Discriminator, _Encoder, infomax_loss
from graphcl.research.systems.fitting import Symmetric
from graphcl.seeding import generator

CPU = torch.device("cpu")


def test_the_loss_is_that_of_plain_loops():
    draw = generator(0, "test")
    discriminator = Discriminator(4, draw=draw)
    h, corrupted = (torch.randn(7, 4, generator=draw) for _ in range(2))
    s = [1 / (1 + math.exp(-float(h[:, k].mean()))) for k in range(4)]
    m = discriminator.weight.detach().numpy()
    total = 0.0
    for row, sign in [(row, 1) for row in h] + [(row, -1) for row in corrupted]:
        score = sum(float(row[a]) * m[a, b] * s[b] for a in range(4) for b in range(4))
        total += math.log1p(math.exp(-sign * score))
    found = infomax_loss(discriminator, h, corrupted).item()
    assert math.isclose(found, total / 14, rel_tol=1e-5)


def test_pyg_agrees(graph):
    x, adjacency = graph_tensors(graph, device=CPU)
    draw = generator(0, "test")
    encoder, discriminator = _Encoder(12, 8, draw=draw), Discriminator(8, draw=draw)
    order = torch.randperm(graph.num_nodes)
    h, corrupted = encoder.both(x, Symmetric.normalised(adjacency), order)
    conv = GCNConv(12, 8)
    conv.lin.weight.data = encoder.weight.detach().T.clone()
    edges = adjacency.edge_index()
    torch.testing.assert_close(h, torch.nn.functional.prelu(conv(x, edges), encoder.slope))
    theirs = torch.nn.functional.prelu(conv(x[order], edges), encoder.slope)
    torch.testing.assert_close(corrupted, theirs)
    infomax = DeepGraphInfomax(8, conv, lambda z: z.mean(0).sigmoid(), None)
    infomax.weight.data = discriminator.weight.detach().clone()
    loss = infomax.loss(h, corrupted, h.mean(0).sigmoid()) / 2  # theirs is the sum of two means
    torch.testing.assert_close(infomax_loss(discriminator, h, corrupted), loss, rtol=1e-4, atol=0)


def test_it_learns_and_stops_by_itself(graph):
    epochs = []
    z = DGI(dim=32, patience=10, learning_rate=0.01).embed(
        graph, seed=0, device=CPU, on_epoch=lambda done, _: epochs.append(done)
    )
    assert 20 < epochs[-1] < 10_000
    assert np.isfinite(z).all()
    assert linear_probe(z, graph).accuracy > 0.7


def test_a_training_that_runs_away_says_so(graph):
    with pytest.raises(TrainingError, match="dgi: the result is not finite"):
        DGI(dim=8, learning_rate=1e30, epochs=5).embed(graph, seed=0, device=CPU)
