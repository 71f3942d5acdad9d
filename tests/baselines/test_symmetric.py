import numpy as np
import torch

from graphcl.baselines.symmetric import Symmetric
from graphcl.tensors import graph_tensors
from tests.conftest import dense_adjacency


def test_products_and_gradients_are_the_dense_ones(graph):
    a = dense_adjacency(graph)
    loops = a + np.eye(len(a))
    scale = 1 / np.sqrt(loops.sum(1))
    dense = {"plain": a, "normalised": scale[:, None] * loops * scale}
    _, adjacency = graph_tensors(graph, device=torch.device("cpu"))
    for kind, matrix in dense.items():
        sparse = getattr(Symmetric, kind)(adjacency)
        witness = torch.tensor(matrix, dtype=torch.float32)
        h = torch.randn(graph.num_nodes, 5, requires_grad=True)
        weight = torch.randn(graph.num_nodes, 5)
        torch.testing.assert_close(sparse @ h, witness @ h)
        (ours,) = torch.autograd.grad((sparse @ h * weight).sum(), h)
        (theirs,) = torch.autograd.grad((witness @ h * weight).sum(), h)
        torch.testing.assert_close(ours, theirs)
