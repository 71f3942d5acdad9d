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
from graphcl.graphs.tensors import graph_tensors, prepare
from graphcl.losses import NTXent, nt_xent
from graphcl.seeding import derive, generator
from graphcl.training import FullGraph, ManyGraphs, train
from graphcl.training.full_graph import Division, can_divide
from graphcl.views import Drop
from tests.conftest import random_collection, random_graph
from tests.groups import together
from tests.kernels.test_adjacency_rows import both, with_weights

CPU = torch.device("cpu")
PERTURBATION = Drop(0.2, 0.5)


def test_a_batch_is_two_copies_side_by_side(graph):
    """Perturbing and encoding both at once is perturbing and encoding each."""
    sparse = graph.replace(x=scipy.sparse.csr_array(graph.x * (graph.x > 0)))
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


class Entangled(LayeredEncoder):
    """Its last layer is normalised over the nodes: no row can be computed alone."""

    def __init__(self, num_features):
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.weights = torch.nn.ParameterList(
            torch.randn(shape, generator=draw) for shape in ((num_features, 6), (6, 4))
        )
        self.norm = torch.nn.BatchNorm1d(4)

    def layer_specs(self):
        first, last = self.weights
        return Layer(first), Layer(last, normalisation=self.norm)


@pytest.mark.parametrize("name", ["mean", "residual", "one layer", "entangled"])
@pytest.mark.parametrize("views", [1, 2])
def test_a_batch_is_encoded_as_in_the_whole_graph(graph, name, views):
    """The last layer computes the nodes of the batch alone; value and gradient are the same."""
    x, adjacency = graph_tensors(graph, device=CPU)
    encoder = (
        Entangled(graph.num_features)
        if name == "entangled"
        else build_encoder(
            "residual" if name == "one layer" else name,
            graph.num_features,
            dim=8,
            layers=1 if name == "one layer" else 3,
            generator=generator(0, "weights"),
        )
    )
    source = FullGraph(x, adjacency, 20)
    batch = next(source.epoch(0, 0, perturbation=PERTURBATION))
    drawn = batch.views(torch.Generator().manual_seed(0))
    if views == 2:
        drawn = [PERTURBATION(x, adjacency, torch.Generator().manual_seed(n)) for n in range(2)]
    grads = []
    for ours in (True, False):
        encoder.zero_grad()
        if ours:
            found = batch.encode(encoder, drawn)
        else:
            whole = encoder(*drawn[0]).chunk(2) if views == 1 else [encoder(*v) for v in drawn]
            for mine, theirs in zip(found, whole, strict=True):
                torch.testing.assert_close(mine, theirs[batch.nodes["node"]])
            found = tuple(h[batch.nodes["node"]] for h in whole)
        nt_xent(*found, 0.5).backward()
        grads.append([parameter.grad.clone() for parameter in encoder.parameters()])
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batch_nodes", [7, 25, 60, 100])
def test_an_epoch_visits_every_node_once(graph, batch_nodes):
    x, adjacency = graph_tensors(graph, device=CPU)
    source = FullGraph(x, adjacency, batch_nodes)
    batches = list(source.epoch(0, 0, perturbation=PERTURBATION))
    assert len(batches) == source.steps_per_epoch
    if len(batches) == 1:
        assert batches[0].num_nodes == graph.num_nodes
        return
    seen = torch.cat([batch.nodes["node"] for batch in batches]).tolist()
    assert sorted(seen) == list(range(graph.num_nodes))
    assert max(batch.num_nodes for batch in batches) <= batch_nodes
    later = source.epoch(1, 0, perturbation=PERTURBATION)
    assert seen != torch.cat([batch.nodes["node"] for batch in later]).tolist()


def source_of(graphs, batch_nodes=0):
    return ManyGraphs(
        tuple(
            FullGraph(*graph_tensors(graph, device=torch.device("cpu")), batch_nodes)
            for graph in graphs
        )
    )


def sizes(source, number=0, seed=0):
    return [batch.num_nodes for batch in source.epoch(number, seed, perturbation=PERTURBATION)]


def test_an_epoch_is_every_graph_once_whole_in_random_order():
    graphs = random_collection(splits=(8, 1, 1)).train
    source = source_of(graphs)
    assert source.steps_per_epoch == 8
    orders = [sizes(source, number, seed) for number, seed in ((0, 0), (1, 0), (0, 1))]
    for order in orders:
        assert sorted(order) == [graph.num_nodes for graph in graphs]
    assert len(set(map(tuple, orders))) == 3
    assert sizes(source) == orders[0]
    for batch in source.epoch(0, 0, perturbation=PERTURBATION):
        assert batch.nodes is None
        assert batch.graph.x.shape[0] == batch.graph.adjacency.num_nodes
    names = [
        {batch.recorded_as for batch in source.epoch(number, 0, perturbation=PERTURBATION)}
        for number in (0, 1)
    ]
    assert names[0] == names[1]  # a GPU records one step for each graph
    assert len(names[0]) == 8
    assert None not in names[0]


def test_graphs_may_be_cut_into_batches(collection):
    source = source_of(collection.train, batch_nodes=20)
    assert source.steps_per_epoch == len(sizes(source)) == 2 + 3 + 3
    assert sum(sizes(source)) == collection.split_nodes[0]
    batches = source.epoch(0, 0, perturbation=PERTURBATION)
    assert {batch.recorded_as for batch in batches} == {None}


def test_there_is_a_graph():
    with pytest.raises(ParameterError, match="graphs must be at least one"):
        ManyGraphs(())


def test_training_on_many_is_the_papers_steps(collection):
    """Two epochs against steps 1 to 4 written out, one graph a step."""

    def fresh():
        return build_encoder("residual", 12, dim=16, layers=3, generator=generator(0, "weights"))

    ours, plain = fresh(), fresh()
    source = source_of(collection.train)
    history = []
    train(
        ours,
        source,
        perturbation=PERTURBATION,
        loss=NTXent(0.5),
        epochs=2,
        on_epoch=history.append,
    )
    adam = torch.optim.Adam(plain.parameters(), lr=0.001)
    for epoch in range(2):
        losses = []
        for step, batch in enumerate(source.epoch(epoch, 0, perturbation=PERTURBATION)):
            draws = torch.Generator().manual_seed(derive(0, "views", epoch, step))
            loss = nt_xent(*batch.encode(plain, batch.views(draws)), 0.5)
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses.append(loss.item())
        assert history[epoch].loss == pytest.approx(sum(losses) / len(losses))
    for key, weight in ours.state_dict().items():
        torch.testing.assert_close(weight, plain.state_dict()[key])


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
