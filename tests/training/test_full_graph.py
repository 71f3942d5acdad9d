import pytest
import scipy.sparse
import torch

from graphcl.encoders import Layer, LayeredEncoder, build_encoder
from graphcl.errors import ParameterError
from graphcl.graphs.tensors import graph_tensors
from graphcl.losses import NTXent, nt_xent
from graphcl.seeding import derive, generator
from graphcl.training import FullGraph, ManyGraphs, train
from graphcl.views import Drop
from tests.conftest import random_collection

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
