import numpy as np
import torch

from graphcl.baselines.fitting import Symmetric
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from tests.conftest import dense_adjacency


def test_a_weighted_graph_is_normalised_by_its_weights(graph):
    edges = graph.edge_index()
    heavy = Graph.from_edge_index(edges, graph.x, edge_weight=1.0 + edges.sum(0) % 3)
    _, adjacency = graph_tensors(heavy, device=torch.device("cpu"))
    a = np.zeros((graph.num_nodes, graph.num_nodes))
    a[tuple(heavy.edge_index())] = heavy.edge_weight
    degree = np.maximum((a > 0).sum(1), 1)
    a += np.diag(np.where(a.sum(1) > 0, a.sum(1) / degree, 1))
    scale = 1 / np.sqrt(a.sum(1))
    h = torch.randn(graph.num_nodes, 3)
    witness = torch.tensor(scale[:, None] * a * scale, dtype=torch.float32) @ h
    torch.testing.assert_close(Symmetric.normalised(adjacency) @ h, witness)


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
