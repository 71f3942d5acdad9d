import pytest
import torch

from graphcl.encoders import build_encoder
from graphcl.errors import ParameterError
from graphcl.graphs.tensors import graph_tensors
from graphcl.losses import NTXent, nt_xent
from graphcl.seeding import derive, generator
from graphcl.training import FullGraph, ManyGraphs, train
from graphcl.views import DropEdges, DropFeatures, Perturbation
from tests.conftest import random_collection

PERTURBATION = Perturbation(DropEdges(0.2), DropFeatures(0.3))


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
    assert (source.steps_per_epoch, source.constant) == (8, False)
    orders = [sizes(source, number, seed) for number, seed in ((0, 0), (1, 0), (0, 1))]
    for order in orders:
        assert sorted(order) == [graph.num_nodes for graph in graphs]
    assert len(set(map(tuple, orders))) == 3
    assert sizes(source) == orders[0]
    for batch in source.epoch(0, 0, perturbation=PERTURBATION):
        assert batch.nodes is None
        assert batch.graph.x.shape[0] == batch.graph.adjacency.num_nodes


def test_graphs_may_be_cut_into_batches(collection):
    source = source_of(collection.train, batch_nodes=20)
    assert source.steps_per_epoch == len(sizes(source)) == 2 + 3 + 3
    assert sum(sizes(source)) == collection.split_nodes[0]


def test_one_graph_is_constant(graph):
    assert source_of([graph]).constant
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
