import math

import pytest
import torch

from graphcl.encoders import build_encoder
from graphcl.errors import ParameterError, TrainingError
from graphcl.graphs.tensors import graph_tensors
from graphcl.losses import NTXent, nt_xent
from graphcl.seeding import derive, generator
from graphcl.training import FullGraph, train
from graphcl.training.loop import batches_in, node_batches
from graphcl.views import Drop

SIZES = {"author": 10, "paper": 25, "topic": 3}


def every_node(batches):
    found = {name: [] for name in SIZES}
    for batch in batches:
        for name, rows in batch.items():
            found[name] += rows.tolist()
    return {name: sorted(rows) for name, rows in found.items()}


def test_an_epoch_visits_every_contrasted_node_once():
    whole = {name: list(range(size)) for name, size in SIZES.items()}
    for contrast in ("all", "each"):
        batches = node_batches(SIZES, contrast, 8, 0, 1)
        assert len(batches) == batches_in(SIZES, contrast, 8)
        assert every_node(batches) == whole
    some = node_batches(SIZES, "paper, topic", 8, 0, 1)
    assert every_node(some) == whole | {"author": []}
    assert len(some) == batches_in(SIZES, "paper,topic", 8) == 4


def test_all_mixes_types_and_each_does_not():
    assert max(len(batch) for batch in node_batches(SIZES, "all", 8, 0, 1)) > 1
    assert {len(batch) for batch in node_batches(SIZES, "each", 8, 0, 1)} == {1}
    first, again = (node_batches(SIZES, "all", 0, 0, 1)[0] for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in SIZES)
    other = node_batches(SIZES, "all", 0, 1, 1)[0]
    assert not torch.equal(first["paper"], other["paper"])


CPU = torch.device("cpu")
PERTURBATION = Drop(0.2, 0.5)


def trained(graph, *, seed=0, batch_nodes=0, epochs=4, **options):
    encoder = build_encoder(
        "mean", graph.num_features, dim=16, layers=2, generator=generator(seed, "weights")
    )
    x, adjacency = graph_tensors(graph, device=CPU)
    history = []
    options = {
        "perturbation": PERTURBATION,
        "loss": NTXent(0.5),
        "on_epoch": history.append,
    } | options
    train(encoder, FullGraph(x, adjacency, batch_nodes), epochs=epochs, seed=seed, **options)
    return encoder, history


@pytest.mark.parametrize("batch_nodes", [0, 25])
def test_same_seed_same_bits(graph, batch_nodes):
    first, history = trained(graph, batch_nodes=batch_nodes)
    torch.rand(7)  # the global stream is nobody's business
    second, again = trained(graph, batch_nodes=batch_nodes)
    other, _ = trained(graph, batch_nodes=batch_nodes, seed=1)
    for key, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[key])
        assert not torch.equal(weight, other.state_dict()[key])
    assert [m.loss for m in history] == [m.loss for m in again]


@pytest.mark.parametrize("batch_nodes", [0, 20])
def test_the_loop_is_the_papers_steps(graph, batch_nodes):
    """One epoch against steps 1 to 4 written out with a plain optimiser."""
    ours, (metrics,) = trained(graph, batch_nodes=batch_nodes, epochs=1, weight_decay=0.01)
    encoder = build_encoder(
        "mean", graph.num_features, dim=16, layers=2, generator=generator(0, "weights")
    )
    x, adjacency = graph_tensors(graph, device=CPU)
    adam = torch.optim.Adam(encoder.parameters(), lr=0.001, weight_decay=0.01)
    losses, norms = [], []
    source = FullGraph(x, adjacency, batch_nodes)
    for step, batch in enumerate(source.epoch(0, 0, perturbation=PERTURBATION)):
        draws = torch.Generator().manual_seed(derive(0, "views", 0, step))
        every = torch.arange(graph.num_nodes)
        nodes = (every if batch.nodes is None else batch.nodes["node"]).tolist()
        h = encoder(*PERTURBATION(*source.copies, draws))
        loss = nt_xent(h[nodes], h[[graph.num_nodes + node for node in nodes]], 0.5)
        adam.zero_grad()
        loss.backward()
        norms.append(math.sqrt(sum(float((p.grad**2).sum()) for p in encoder.parameters())))
        adam.step()
        losses.append(loss.item())
    for key, weight in ours.state_dict().items():
        torch.testing.assert_close(weight, encoder.state_dict()[key])
    assert metrics.loss == pytest.approx(sum(losses) / len(losses))
    assert metrics.gradient_norm == pytest.approx(sum(norms) / len(norms), rel=1e-4)
    size = batch_nodes or graph.num_nodes
    assert metrics.mi_bound == pytest.approx(math.log(2 * size - 2) - metrics.loss)


def test_the_loss_falls(graph):
    gentle = Drop(0.05, 0.1)
    _, history = trained(graph, epochs=60, learning_rate=0.01, perturbation=gentle)
    assert history[-1].loss < history[0].loss - 0.5
    assert [m.epoch for m in history] == list(range(1, 61))


def test_a_non_finite_loss_stops_training_with_advice(graph):
    with pytest.raises(TrainingError, match=r"the loss became nan in epoch \d+; try a lower"):
        trained(graph, learning_rate=1e30, epochs=10)


def test_an_exception_in_on_epoch_ends_training(graph):
    def stop(metrics):
        raise InterruptedError(metrics.epoch)

    with pytest.raises(InterruptedError, match="1"):
        trained(graph, on_epoch=stop)


def test_bad_arguments(graph):
    with pytest.raises(ParameterError, match="epochs must be at least 1; got 0"):
        trained(graph, epochs=0)
    with pytest.raises(ParameterError, match=r"batch_nodes must be 0 \(all.* or more; got -1"):
        trained(graph, batch_nodes=-1)
