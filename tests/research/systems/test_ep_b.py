import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl.evaluation import linear_probe
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.research.systems.ep_b import EPB, _LabelType
from graphcl.seeding import generator

CPU = torch.device("cpu")


@pytest.fixture
def bags():
    """A path 0-1-2-3 and node 4 alone; node 3 has no words; word 1 weighs double in node 0."""
    x = np.array([[1, 2, 0], [0, 1, 1], [1, 0, 0], [0, 0, 0], [0, 1, 0]], dtype=np.float32)
    return Graph.from_edge_index(np.array([[0, 1, 2], [1, 2, 3]]), scipy.sparse.csr_array(x))


def label_types(graph):
    x, adjacency = graph_tensors(graph, device=CPU)
    shared = {"adjacency": adjacency, "draw": generator(0, "test")}
    return _LabelType(x, 3, 4, **shared), _LabelType(None, 5, 4, **shared)


def test_embeddings_are_means_over_own_and_neighbours_labels(bags):
    words, identity = label_types(bags)
    e = words.table.detach().numpy()
    h, rebuilt = (part.detach().numpy() for part in words.embeddings())
    np.testing.assert_allclose(h[0], (e[0] + 2 * e[1]) / 3, rtol=1e-5)
    np.testing.assert_allclose(h[1], (e[1] + e[2]) / 2, rtol=1e-5)
    # Node 1's neighbours 0 and 2 have 3 + 1 words between them; each counts as often as it occurs.
    np.testing.assert_allclose(rebuilt[1], (e[0] + 2 * e[1] + e[0]) / 4, rtol=1e-5)
    representation = words.representation().detach().numpy()
    np.testing.assert_allclose(representation[3], e[0], rtol=1e-5)  # no words: the neighbour's
    e = identity.table.detach().numpy()
    h, rebuilt = (part.detach().numpy() for part in identity.embeddings())
    assert np.array_equal(h, e)
    np.testing.assert_allclose(rebuilt[1], (e[0] + e[2]) / 2, rtol=1e-5)


def test_the_loss_is_that_of_plain_loops(bags):
    words, _ = label_types(bags)
    h, rebuilt = (part.detach().numpy() for part in words.embeddings())
    u = [2, 0, 1, 0, 1]
    # Ranked: 0, 1 and 2. Node 3 has no words to be right about, node 4 no neighbours.
    losses = [
        max(0, 0.5 + np.linalg.norm(rebuilt[v] - h[v]) - np.linalg.norm(rebuilt[v] - h[u[v]]))
        for v in (0, 1, 2)
    ]
    found = words.loss(torch.tensor(u), 0.5).item()
    assert found == pytest.approx(np.mean(losses), rel=1e-5)
    assert found > 0


def test_it_learns(graph):
    bags = Graph.from_edge_index(
        graph.edge_index(),
        scipy.sparse.csr_array((graph.x > 1).astype(np.float32)),
        graph.y,
        train_mask=graph.train_mask,
        val_mask=graph.val_mask,
        test_mask=graph.test_mask,
    )
    z = EPB(dim=16, epochs=50).embed(bags, seed=0, device=CPU)
    assert z.shape == (60, 32)
    assert linear_probe(z, bags).accuracy > 0.7
