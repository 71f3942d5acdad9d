"""The inductive systems on a GPU: the same draws as on a CPU, and a whole training there."""

import numpy as np
import pytest
import torch

from graphcl.kernels.adjacency import Adjacency
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.layers import dot_attention, neighbour_max
from graphcl.research.systems.system import Unsupervised
from tests.research.systems.communities import CPU, communities

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
GPU = torch.device("cuda")

SAGE = {"dim": 8, "samples_1": 4, "samples_2": 3, "epochs": 1}
GATED = {"dim": 16, "embed_dim": 8, "heads": 2, "epochs": 8, "dropout": 0.1}
SMALL = {
    "graphsage-gcn": SAGE,
    "graphsage-mean": SAGE,
    "graphsage-lstm": SAGE,
    "graphsage-pool": SAGE,
    "dgi-inductive": {"dim": 16, "epochs": 1},
    "gaan": GATED,
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("one_graph", [False, True])
def test_it_runs_on_a_gpu(name, one_graph, graph):
    data = graph if one_graph else communities()
    method = SYSTEMS[name].method("", inductive=one_graph, **SMALL[name])
    if isinstance(method, Unsupervised):
        z = method.embed(data, seed=0, device=GPU)
        assert np.isfinite(z).all()
        assert len(z) == data.num_nodes
    else:
        assert method.fit_predict(data, seed=0, device=GPU).shape == data.y.shape


@pytest.mark.parametrize("name", [name for name in SMALL if name.startswith("graphsage")])
def test_graphsage_draws_the_same_on_both(name):
    method = SYSTEMS[name].method("", **SAGE)
    rows = [method.embed(communities(), seed=0, device=device) for device in (CPU, GPU)]
    np.testing.assert_allclose(*rows, atol=0.02)


def test_attention_is_the_same_on_both(graph):
    draws = torch.Generator().manual_seed(0)
    tables = [torch.randn(60, 2, width, generator=draws) for width in (3, 3, 4)]
    found = []
    for device in (CPU, GPU):
        adjacency = Adjacency.from_csr(graph.indptr, graph.indices, device=device)
        q, k, v = (table.to(device).requires_grad_() for table in tables)
        out = dot_attention(q, k, v, adjacency).flatten(1) + neighbour_max(v.flatten(1), adjacency)
        gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
        found.append([tensor.cpu() for tensor in (out.detach(), *gradients)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_gaan_learns_the_same_on_both():
    data = communities()
    method = SYSTEMS["gaan"].method("", **GATED | {"dropout": 0.0, "validate_every": 8})
    ours, theirs = (method.fit_predict(data, seed=0, device=device) for device in (GPU, CPU))
    assert (ours == theirs).mean() > 0.98  # 8 epochs: eager steps, a recording, replays
