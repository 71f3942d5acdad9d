import dataclasses

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn

from graphcl.distributed import ALONE, Share
from graphcl.encoders import Layer, LayeredEncoder, build_encoder
from graphcl.encoders.paper import MeanPoolingEncoder
from graphcl.errors import ParameterError
from graphcl.graphs.tensors import prepare
from graphcl.seeding import generator
from graphcl.training import FullGraph
from graphcl.training.row_parallel import Division, can_divide
from graphcl.views import Drop
from tests.conftest import random_graph
from tests.groups import together
from tests.kernels.test_adjacency_rows import both, with_weights

CPU = torch.device("cpu")
DROP = Drop(0.2, 0.4)
SPARSE = random_graph(2).replace(x=scipy.sparse.csr_array(np.maximum(random_graph(2).x, 0)))
GRAPHS = {"dense": random_graph(), "sparse": SPARSE, "weighted": with_weights(random_graph(1))}


class Derived(Drop):
    """May draw in another way."""


class Normed(LayeredEncoder):
    def __init__(self, normalisation):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(12, 4))
        self.normalisation = normalisation

    def layer_specs(self):
        return (Layer(self.weight, normalisation=self.normalisation),)


class Rescaled(MeanPoolingEncoder):
    """More than its layers."""

    def forward(self, x, adjacency):
        h = super().forward(x, adjacency)
        return h / h.norm()


def whole_of(graph, batch_nodes=0):
    return part_of(graph, ALONE, batch_nodes)


def part_of(graph, share, batch_nodes=0):
    (prepared,) = prepare([graph], "row")
    return FullGraph.of(prepared, device=CPU, divided=share, batch_nodes=batch_nodes)


def dense(x):
    return x if isinstance(x, torch.Tensor) else x.to_dense()


def last_batch(source, share=ALONE):
    return list(source.epoch(0, 5, perturbation=DROP, share=share))[-1]


@pytest.mark.parametrize("world", [2, 3, 7])
@pytest.mark.parametrize("name", GRAPHS)
def test_each_process_draws_its_rows_of_the_views_that_one_would_draw(name, world):
    graph = GRAPHS[name]
    ((x, adjacency),) = last_batch(whole_of(graph)).views(torch.Generator().manual_seed(3))
    nodes = graph.num_nodes
    edges = torch.zeros(2 * nodes, 2 * nodes)
    edges[adjacency.edge_index()[1], adjacency.edge_index()[0]] = adjacency.weighted_edge_index()[1]
    for rank in range(world):
        share = Share(rank, world)
        batch = last_batch(part_of(graph, share), share)
        ((own_x, own),) = batch.views(torch.Generator().manual_seed(3))
        rows = share.rows(nodes)
        assert torch.equal(dense(own_x), both(dense(x), rows))
        # Columns are places in a gathered table; put back, they are nodes of both copies.
        division = Division(nodes, share)
        places = torch.from_numpy(division.place(np.arange(nodes)))
        found = torch.sparse_csr_tensor(
            own.indptr, own.indices, own.weight, size=(own.num_nodes, division.places)
        ).to_dense()
        found = found[:, torch.cat([places, places + division.height])]
        assert torch.equal(found, both(edges, rows))


@pytest.mark.parametrize(
    ("world", "batch_nodes"), [(1, 0), (2, 0), (3, 0), (1, 13), (2, 13), (3, 13), (4, 5)]
)
@pytest.mark.parametrize("encoder", ["mean", "residual"])
@pytest.mark.parametrize("dim", [8, 12, 20])  # of 12 features: pooled first, or multiplied first
@pytest.mark.parametrize("name", GRAPHS)
def test_embeddings_and_gradients_are_those_of_one_process(name, dim, encoder, world, batch_nodes):
    graph = GRAPHS[name]

    def result(source, share):
        module = build_encoder(
            encoder, graph.num_features, dim=dim, layers=3, generator=generator(0, "weights")
        )
        batch = last_batch(source, share)
        views = batch.views(torch.Generator().manual_seed(3))
        h = torch.stack(batch.encode(module, views))
        numbers = torch.arange(batch.num_nodes)[share.rows(batch.num_nodes)]
        (h * torch.sin(numbers + 1)[:, None]).sum().backward()
        gradients = [parameter.grad for parameter in module.parameters()]
        return batch.num_nodes, h.detach(), gradients

    count, h, gradients = result(whole_of(graph, batch_nodes), ALONE)
    found = together(world, lambda share: result(part_of(graph, share, batch_nodes), share))
    assert all(part[0] == count for part in found)
    torch.testing.assert_close(torch.cat([part[1] for part in found], dim=1), h)
    for number, gradient in enumerate(gradients):
        total = sum(part[2][number] for part in found)
        torch.testing.assert_close(total, gradient, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch_nodes", [0, 7, 25, 60])
def test_an_epoch_has_the_batches_of_one_process(graph, batch_nodes):
    whole, part = whole_of(graph, batch_nodes), part_of(graph, Share(1, 2), batch_nodes)
    assert part.steps_per_epoch == whole.steps_per_epoch
    for first in (0, 1):
        ours = list(part.epoch(1, 0, perturbation=DROP, first=first, share=Share(1, 2)))
        theirs = list(whole.epoch(1, 0, perturbation=DROP, first=first))
        assert [batch.num_nodes for batch in ours] == [batch.num_nodes for batch in theirs]
        for our, their in zip(ours, theirs, strict=True):
            assert (our.nodes is None and their.nodes is None) or torch.equal(
                our.nodes["node"], their.nodes["node"]
            )


@pytest.mark.parametrize("name", GRAPHS)
def test_a_process_holds_its_rows_alone(name):
    graph = GRAPHS[name]

    def held(*parts):
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        groups = [part for part in parts if isinstance(part, tuple)]
        below = [vars(part).values() for part in parts if dataclasses.is_dataclass(part)]
        return sum(one.nbytes for one in tensors) + sum(held(*group) for group in (*groups, *below))

    whole = held(*whole_of(graph).copies)
    part = part_of(graph, Share(1, 4))
    assert held(part.x, part.adjacency) < 0.35 * whole


def test_it_is_one_part_for_one_group(graph):
    part = part_of(graph, Share(0, 2))
    with pytest.raises(ParameterError, match="share must be Share"):
        next(part.epoch(0, 0, perturbation=DROP, share=Share(0, 3)))
    derived = Derived(0.1, 0.1)
    with pytest.raises(ParameterError, match="perturbation must be Drop; got 'Derived'"):
        next(part.epoch(0, 0, perturbation=derived, share=Share(0, 2)))
    with pytest.raises(ParameterError, match="the nodes must be as many as the 61 processes"):
        part_of(graph, Share(0, 61))
    with pytest.raises(ParameterError, match="batch_nodes"):
        part_of(graph, Share(0, 2), batch_nodes=-1)


def test_what_can_be_divided(generator):
    sizes = {"dim": 4, "layers": 1, "generator": generator}
    for name, expected in (("mean", True), ("residual", True), ("gcn", False)):
        assert can_divide(build_encoder(name, 12, **sizes), DROP) == expected
    for module, expected in (
        (None, True),
        (nn.LayerNorm(4), True),
        (nn.BatchNorm1d(4), False),
        (torch.nn.functional.normalize, False),
    ):
        assert can_divide(Normed(module), DROP) == expected
    assert not can_divide(Rescaled(12, **sizes), DROP)
    assert not can_divide(Normed(None), Derived(0.1, 0.1))
    assert not can_divide(Normed(None), lambda x, adjacency, _: (x, adjacency))
