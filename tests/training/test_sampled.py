import numba
import numpy as np
import pytest
import torch

from graphcl.encoders import build_encoder
from graphcl.errors import GraphError, ParameterError
from graphcl.graphs.collection import training_subgraph
from graphcl.graphs.graph import Graph
from graphcl.losses import NTXent, nt_xent
from graphcl.seeding import derive, generator
from graphcl.training import train
from graphcl.training.sampled import SampledGraph, one_ahead
from graphcl.views import Drop
from tests.conftest import dense_adjacency, random_graph

CPU = torch.device("cpu")
PERTURBATION = Drop(0.1, 0.3)


def source_of(graph, **options):
    options = {"device": CPU, "batch_nodes": 16, "fan_outs": 3, "layers": 2} | options
    if options.pop("inductive", False):
        graph = training_subgraph(graph)
    return SampledGraph.of(graph, **options)


def trained(graph, *, name="residual", seed=0, epochs=2, perturbation=PERTURBATION, **options):
    own = name == "residual"
    source = source_of(graph, own_features=own, **options)
    encoder = build_encoder(
        name, graph.num_features, dim=8, layers=2, generator=generator(seed, "weights")
    )
    history = []
    train(
        encoder,
        source,
        perturbation=perturbation,
        loss=NTXent(0.5),
        epochs=epochs,
        learning_rate=0.01,
        seed=seed,
        on_epoch=history.append,
    )
    return encoder, history


def same_weights(first, second):
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_an_epoch_visits_every_node_once(graph):
    source = source_of(graph)
    batches = list(source.epoch(0, 0, perturbation=PERTURBATION))
    assert len(batches) == source.steps_per_epoch == 4
    assert [batch.num_nodes for batch in batches] == [15] * 4
    seen = torch.cat([batch.nodes["node"] for batch in batches]).tolist()
    assert sorted(seen) == list(range(graph.num_nodes))
    assert (
        seen
        != torch.cat(
            [batch.nodes["node"] for batch in source.epoch(1, 0, perturbation=PERTURBATION)]
        ).tolist()
    )


@pytest.mark.parametrize("name", ["mean", "residual"])
def test_same_seed_same_bits(graph, name):
    first, history = trained(graph, name=name)
    second, again = trained(graph, name=name)
    other, _ = trained(graph, name=name, seed=1)
    assert same_weights(first, second)
    assert not same_weights(first, other)
    assert [m.loss for m in history] == [m.loss for m in again]


def test_the_loop_is_the_papers_steps(graph):
    ours, (metrics,) = trained(graph, epochs=1)
    encoder = build_encoder(
        "residual", graph.num_features, dim=8, layers=2, generator=generator(0, "weights")
    )
    adam = torch.optim.Adam(encoder.parameters(), lr=0.01)
    source, losses = source_of(graph), []
    order = torch.randperm(graph.num_nodes, generator=generator(0, "batches", 0))
    for step, nodes in enumerate(order.tensor_split(4)):  # step 1
        seed = derive(0, "sampled", 0, step)
        batch = source.batch({"node": nodes}, PERTURBATION, seed=seed)  # step 2
        loss = nt_xent(*batch.encode(encoder, batch.draw()), 0.5)  # step 3
        adam.zero_grad()
        loss.backward()  # step 4
        adam.step()
        losses.append(loss.item())
    assert metrics.loss == pytest.approx(sum(losses) / 4, rel=1e-5)
    for a, b in zip(ours.parameters(), encoder.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_loss_falls():
    _, history = trained(random_graph(num_nodes=200), epochs=12, batch_nodes=50)
    assert history[-1].loss < history[0].loss - 0.3


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="needs two cores")
def test_any_number_of_threads_gives_the_same_bits(monkeypatch):
    """Batches are made right here: every Python thread has its own number of numba's threads."""
    monkeypatch.setattr("graphcl.training.sampled.one_ahead", lambda works: (w() for w in works))
    found, before = [], numba.get_num_threads()
    try:
        for threads in (1, 2):
            numba.set_num_threads(threads)
            batches = source_of(random_graph()).epoch(0, 5, perturbation=PERTURBATION)
            trees = [view for batch in batches for view in batch.draw()]
            found.append([level["node"].double() for view in trees for level in view.inputs])
    finally:
        numba.set_num_threads(before)
    assert len(found[0]) == len(found[1]) > 5
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


def test_training_sees_training_nodes_and_the_edges_among_them(graph):
    inside = training_subgraph(graph)
    nodes = np.flatnonzero(graph.train_mask)
    assert inside.num_nodes == len(nodes)
    assert inside.node_ids.tolist() == nodes.tolist()
    assert inside.y is None
    np.testing.assert_array_equal(
        dense_adjacency(inside), dense_adjacency(graph)[np.ix_(nodes, nodes)]
    )
    np.testing.assert_array_equal(inside.x, graph.x[nodes])
    for u in range(inside.num_nodes):
        assert (np.diff(inside.indices[inside.indptr[u] : inside.indptr[u + 1]]) > 0).all()


def test_nothing_of_a_validation_or_test_node_enters(graph):
    """Other features, other labels and other edges there: the same weights, bit for bit."""
    seen = graph.train_mask
    edges = graph.edge_index()
    among = edges[:, seen[edges].all(0)]
    unseen = np.flatnonzero(~seen)
    garbage = np.stack([unseen, np.roll(unseen, 1)])
    touching = np.stack([unseen, np.resize(np.flatnonzero(seen), len(unseen))])
    changed = Graph.from_edge_index(
        np.concatenate([among, garbage, touching], axis=1),
        np.where(seen[:, None], graph.x, 1e6),
        train_mask=seen,
    )
    ours, _ = trained(graph, inductive=True)
    theirs, _ = trained(changed, inductive=True)
    whole, _ = trained(graph)
    assert same_weights(ours, theirs)
    assert not same_weights(ours, whole)


def test_a_graph_without_a_training_mask(graph):
    with pytest.raises(GraphError, match="random: has no train_mask; inductive training needs one"):
        training_subgraph(graph.replace(train_mask=None))


def test_the_graphs_memory_is_shared_and_stays(graph):
    source = source_of(graph)
    (edges,) = source.topology.into["node"]
    assert source.topology.x["node"].data_ptr() == graph.x.ctypes.data
    assert edges.indices.data_ptr() == graph.indices.ctypes.data
    before = graph.x.copy(), graph.indices.copy()
    trained(graph)
    np.testing.assert_array_equal(before[0], graph.x)
    np.testing.assert_array_equal(before[1], graph.indices)


def test_one_ahead_keeps_order_and_passes_errors_on():
    assert list(one_ahead([lambda n=n: n for n in range(5)])) == list(range(5))

    def fail():
        raise InterruptedError("here")

    with pytest.raises(InterruptedError, match="here"):
        list(one_ahead([lambda: 1, fail, lambda: 2]))


def test_bad_arguments(graph):
    with pytest.raises(ParameterError, match="batch_nodes must be at least 1; got 0"):
        source_of(graph, batch_nodes=0)
    with pytest.raises(ParameterError, match="fan_out must be at least 1; got 0"):
        source_of(graph, fan_outs=0)
    with pytest.raises(ParameterError, match="'sampled' draws views by 'drop' alone; got func"):
        trained(graph, perturbation=lambda x, adjacency, _: (x, adjacency))


def test_the_views_are_drawn_from_what_trains(graph):
    """A source has no rates of its own: another perturbation gives other weights."""
    ours, _ = trained(graph)
    other, _ = trained(graph, perturbation=Drop(0.5, 0.5))
    assert not same_weights(ours, other)
