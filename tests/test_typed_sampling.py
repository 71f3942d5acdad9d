import numpy as np
import pytest
import torch

from graphcl.encoders.typed import TypedEncoder
from graphcl.graphs.typed import TypedGraph
from graphcl.graphs.typed_tensors import prepare, typed_tensors
from graphcl.kernels.relation import relation_mean
from graphcl.training.typed_sampled import TypedSampledGraph, fan_outs_of
from graphcl.typed_sampling import encode_group, sample_group
from graphcl.views import DropTyped

CPU = torch.device("cpu")
NOTHING = DropTyped(0.0, 0.0)


def graph(weighted=False):
    random = np.random.default_rng(0)
    writes = random.integers(0, (8, 12), (40, 2)).T
    cites, knows = random.integers(0, 12, (2, 30)), random.integers(0, 8, (2, 12))
    weight = {"edge_weight": random.random(30) + 0.2} if weighted else {}
    return TypedGraph.from_edges(
        {"author": random.normal(size=(8, 3)), "paper": random.normal(size=(12, 4))},
        {
            ("author", "writes", "paper"): {
                "edge_index": writes,
                "edge_features": random.normal(size=(40, 2)),
            },
            ("paper", "cites", "paper"): {"edge_index": cites, **weight},
            ("author", "knows", "author"): {"edge_index": knows, "undirected": True},
        },
    )


def source(prepared, fan_out, *, replace, layers=2):
    channels = prepared.schema.channels()
    return TypedSampledGraph.of(
        prepared,
        device=CPU,
        batch_nodes=4,
        fan_outs=dict.fromkeys(channels, fan_out),
        layers=layers,
        replace=replace,
    )


def sampled(given, name, nodes, *, seed, depth=1, perturbation=NOTHING, first=0):
    return sample_group(
        name,
        nodes,
        given.x,
        given.directions,
        perturbation,
        depth=depth,
        replace=given.replace,
        seed=seed,
        first=first,
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("replace", [True, False])
def test_the_sampled_mean_is_unbiased_per_relation(replace, weighted):
    if weighted and not replace:
        pytest.skip("unbiased in the limit of many draws only: see sample_tree")
    prepared = prepare(graph(weighted), "none")
    given = source(prepared, 2, replace=replace)
    x, relations = typed_tensors(prepared.graph, device=CPU)
    for name in ("author", "paper"):
        nodes = torch.arange(len(x[name])).repeat_interleave(6000)
        group = sampled(given, name, nodes, seed=1)
        for one in group.children:
            channel = one.direction.channel
            relation = relations[channel.relation]
            exact = relation_mean(x[channel.sender], relation, backwards=channel.backwards)
            means = one.inputs[0].view(len(x[name]), 6000, -1)
            error = (means.mean(1) - exact).abs() / (means.std(1) / 6000**0.5 + 1e-6)
            assert float(error.max()) < 5
            if one.vectors is not None:
                exact = relation.edge_mean(channel.backwards)
                means = one.vectors[0].view(len(x[name]), 6000, -1)
                error = (means.mean(1) - exact).abs() / (means.std(1) / 6000**0.5 + 1e-6)
                assert float(error.max()) < 5


@pytest.mark.parametrize("weighted", [False, True])
def test_a_tree_of_all_neighbours_is_encoded_as_the_whole_graph(weighted):
    prepared = prepare(graph(weighted), "none")
    given = source(prepared, 30, replace=False)
    encoder = TypedEncoder(
        prepared.schema,
        dim=6,
        layers=2,
        generator=torch.Generator().manual_seed(0),
        normalisation="layer",
    )
    exact = encoder(*typed_tensors(prepared.graph, device=CPU))
    for name, rows in exact.items():
        group = sampled(given, name, torch.arange(len(rows)), seed=0, depth=2)
        torch.testing.assert_close(encode_group(group, encoder, 1), rows, rtol=1e-4, atol=1e-5)


def test_an_edge_is_dropped_in_both_directions_wherever_it_occurs_and_rates_are_per_relation():
    prepared = prepare(graph(), "none")
    given = source(prepared, 30, replace=False)
    rates = DropTyped(0.5, 0.0, {("paper", "cites", "paper"): 0.0})
    group = sampled(given, "paper", torch.zeros(400, dtype=torch.int64), seed=3, depth=2,
                    perturbation=rates)  # fmt: skip
    by = {one.direction.channel: one for one in group.children}
    writes = next(one for channel, one in by.items() if channel.relation[1] == "writes")
    back = next(
        one for one in writes.group.children if one.direction.channel.relation[1] == "writes"
    )
    seeds, fan_out = 400, 30
    there = writes.weights[0].view(seeds, fan_out) > 0
    degree = int((writes.direction.relation.by_target.indptr.diff())[0])
    share = float(there[:, :degree].float().mean())
    assert abs(share - 0.5) < 0.05
    for seed in range(20):
        for slot in range(degree):
            parent = seed * fan_out + slot
            again = (back.group.nodes.view(-1, fan_out)[parent] == 0).nonzero()[:, 0]
            kept = back.weights[0].view(-1, fan_out)[parent]
            listed = [int(i) for i in again if i < _degree(back, writes.group.nodes[parent])]
            assert all((kept[i] > 0) == there[seed, slot] for i in listed)
    cites = [one for channel, one in by.items() if channel.relation[1] == "cites"]
    for one in cites:
        filled = one.weights[0].view(seeds, fan_out) > 0
        assert torch.equal(filled[0], filled[1])


def _degree(children, node):
    csr = children.direction.relation.csr(children.direction.channel.backwards)
    return int(csr.indptr[node + 1] - csr.indptr[node])


def test_a_part_of_a_batch_has_the_draws_that_it_has_in_the_whole():
    prepared = prepare(graph(), "none")
    given = source(prepared, 3, replace=True)
    nodes, views = torch.tensor([3, 1, 7, 7]), DropTyped(0.3, 0.3)
    whole = sampled(given, "author", nodes, seed=5, depth=2, perturbation=views)
    part = sampled(given, "author", nodes[2:], seed=5, depth=2, perturbation=views, first=2)
    assert torch.equal(part.inputs, whole.inputs[:, 2:])
    for one, other in zip(part.children, whole.children, strict=True):
        assert torch.equal(one.group.nodes, other.group.nodes.view(4, 3)[2:].reshape(-1))
        assert torch.equal(one.inputs, other.inputs[:, 2:])
        for low, high in zip(one.group.children, other.group.children, strict=True):
            assert torch.equal(low.weights, high.weights[:, 6:])
    assert not torch.equal(whole.inputs[:, 2], whole.inputs[:, 3])


def test_fan_outs_are_shared_by_degree_and_can_be_given():
    prepared = prepare(graph(), "none")
    found = fan_outs_of(prepared.graph, prepared.schema, 10)
    papers = [count for channel, count in found.items() if channel.receiver == "paper"]
    assert 9 <= sum(papers) <= 11
    assert min(found.values()) >= 1
    own = {("paper", "cites", "paper"): 7}
    given = fan_outs_of(prepared.graph, prepared.schema, 10, own)
    assert {count for channel, count in given.items() if channel.relation in own} == {7}
