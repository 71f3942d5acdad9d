import dataclasses

import pytest
import scipy.sparse
import torch

from graphcl.encoders import build_encoder
from graphcl.graphs.tensors import graph_tensors
from graphcl.seeding import generator
from graphcl.training import FullGraph
from graphcl.views import DropEdges, DropFeatures, Perturbation

CPU = torch.device("cpu")
PERTURBATION = Perturbation(DropEdges(0.2), DropFeatures(0.5))


def test_a_batch_is_two_copies_side_by_side(graph):
    """Perturbing and encoding both at once is perturbing and encoding each."""
    sparse = dataclasses.replace(graph, x=scipy.sparse.csr_array(graph.x * (graph.x > 0)))
    for given in (graph, sparse):
        x, adjacency = graph_tensors(given, device=CPU)
        encoder = build_encoder(
            "mean", graph.num_features, dim=8, layers=2, generator=generator(0, "weights")
        )
        source = FullGraph(x, adjacency)
        (batch,) = source.epoch(0, 0, perturbation=PERTURBATION)
        for h in batch.encode(encoder, [source.copies]):
            torch.testing.assert_close(h, encoder(x, adjacency))
        (views,) = batch.views(torch.Generator().manual_seed(0))
        halves = views[1].weight.chunk(2)
        assert not torch.equal(*halves)
        both = batch.encode(encoder, [(source.copies[0], views[1])])
        for half, h in zip(halves, both, strict=True):
            torch.testing.assert_close(h, encoder(x, adjacency.with_weight(half)))
        encoder(*views).square().sum().backward()
        ours = encoder.weights[0].grad.clone()
        encoder.zero_grad()
        dense = views[0] if isinstance(views[0], torch.Tensor) else views[0].to_dense()
        for part, half in zip(dense.chunk(2), halves, strict=True):
            encoder(part, adjacency.with_weight(half)).square().sum().backward()
        torch.testing.assert_close(ours, encoder.weights[0].grad)


@pytest.mark.parametrize("batch_nodes", [7, 25, 60, 100])
def test_an_epoch_visits_every_node_once(graph, batch_nodes):
    x, adjacency = graph_tensors(graph, device=CPU)
    source = FullGraph(x, adjacency, batch_nodes)
    batches = list(source.epoch(0, 0, perturbation=PERTURBATION))
    assert len(batches) == source.steps_per_epoch
    if len(batches) == 1:
        assert batches[0].num_nodes == graph.num_nodes
        return
    seen = torch.cat([batch.nodes for batch in batches]).tolist()
    assert sorted(seen) == list(range(graph.num_nodes))
    assert max(batch.num_nodes for batch in batches) <= batch_nodes
    later = source.epoch(1, 0, perturbation=PERTURBATION)
    assert seen != torch.cat([batch.nodes for batch in later]).tolist()
