import dataclasses
import math

import pytest
import scipy.sparse
import torch

from graphcl.encoders import build_encoder
from graphcl.errors import ParameterError, TrainingError
from graphcl.graphs.tensors import graph_tensors
from graphcl.losses import nt_xent
from graphcl.seeding import derive, generator
from graphcl.training import FullGraph, train
from graphcl.training.progress import PlainProgress, duration, progress
from graphcl.views import DropEdges, DropFeatures, Perturbation

CPU = torch.device("cpu")
PERTURBATION = Perturbation(DropEdges(0.2), DropFeatures(0.5))


def trained(graph, *, seed=0, batch_nodes=0, epochs=4, **options):
    encoder = build_encoder(
        "mean", graph.num_features, dim=16, layers=2, generator=generator(seed, "weights")
    )
    x, adjacency = graph_tensors(graph, device=CPU)
    history = []
    options = {
        "perturbation": PERTURBATION,
        "temperature": 0.5,
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
    for step, batch in enumerate(FullGraph(x, adjacency, batch_nodes).epoch(0, 0)):
        draws = torch.Generator().manual_seed(derive(0, "views", 0, step))
        nodes = list(range(graph.num_nodes)) if batch.nodes is None else batch.nodes.tolist()
        h = encoder(*PERTURBATION(batch.x, batch.adjacency, draws))
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


def test_a_batch_is_two_copies_side_by_side(graph):
    """Perturbing and encoding both at once is perturbing and encoding each."""
    sparse = dataclasses.replace(graph, x=scipy.sparse.csr_array(graph.x * (graph.x > 0)))
    for source in (graph, sparse):
        x, adjacency = graph_tensors(source, device=CPU)
        encoder = build_encoder(
            "mean", graph.num_features, dim=8, layers=2, generator=generator(0, "weights")
        )
        (batch,) = FullGraph(x, adjacency).epoch(0, 0)
        for h in batch.pairs(encoder(batch.x, batch.adjacency)):
            torch.testing.assert_close(h, encoder(x, adjacency))
        views = PERTURBATION(batch.x, batch.adjacency, torch.Generator().manual_seed(0))
        halves = views[1].weight.chunk(2)
        assert not torch.equal(*halves)
        for half, h in zip(halves, batch.pairs(encoder(batch.x, views[1])), strict=True):
            torch.testing.assert_close(h, encoder(x, adjacency.with_weight(half)))
        encoder(*views).square().sum().backward()
        ours = encoder.weights[0].grad.clone()
        encoder.zero_grad()
        dense = views[0] if isinstance(views[0], torch.Tensor) else views[0].to_dense()
        for part, half in zip(dense.chunk(2), halves, strict=True):
            encoder(part, adjacency.with_weight(half)).square().sum().backward()
        torch.testing.assert_close(ours, encoder.weights[0].grad)


def test_the_loss_falls(graph):
    gentle = Perturbation(DropEdges(0.05), DropFeatures(0.1))
    _, history = trained(graph, epochs=60, learning_rate=0.01, perturbation=gentle)
    assert history[-1].loss < history[0].loss - 0.5
    assert [m.epoch for m in history] == list(range(1, 61))


@pytest.mark.parametrize("batch_nodes", [7, 25, 60, 100])
def test_an_epoch_visits_every_node_once(graph, batch_nodes):
    x, adjacency = graph_tensors(graph, device=CPU)
    source = FullGraph(x, adjacency, batch_nodes)
    batches = list(source.epoch(0, 0))
    assert len(batches) == source.steps_per_epoch
    if len(batches) == 1:
        assert batches[0].num_nodes == graph.num_nodes
        return
    seen = torch.cat([batch.nodes for batch in batches]).tolist()
    assert sorted(seen) == list(range(graph.num_nodes))
    assert max(batch.num_nodes for batch in batches) <= batch_nodes
    assert seen != torch.cat([batch.nodes for batch in source.epoch(1, 0)]).tolist()


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
    with pytest.raises(ParameterError, match="batch_nodes must be 0 or more; got -1"):
        trained(graph, batch_nodes=-1)


def test_plain_progress_says_rate_and_eta(graph, capsys):
    with progress(4, label="cora") as show:
        assert isinstance(show, PlainProgress)
        trained(graph, on_epoch=show)
    lines = capsys.readouterr().err.splitlines()
    assert "cora: epoch 1/4" in lines[0]
    assert "epochs/s  ETA" in lines[0]
    assert "epoch 4/4" in lines[-1]


def test_durations():
    assert [duration(s) for s in (0.4, 61, 7300)] == ["0 s", "1 min 01 s", "2 h 01 min"]


def test_streams_are_independent_and_stable():
    assert derive(0, "views", 1) == derive(0, "views", 1)
    seeds = {derive(s, name, n) for s in range(3) for name in ("a", "b") for n in range(50)}
    assert len(seeds) == 300
    assert all(0 <= seed < 2**63 for seed in seeds)
