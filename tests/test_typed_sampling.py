import numpy as np
import pytest
import torch

from graphcl.distributed import ALONE, Share
from graphcl.encoders.typed import TypedEncoder
from graphcl.graphs.graph import Graph
from graphcl.graphs.typed_tensors import prepare, typed_tensors
from graphcl.kernels.adjacency import mean_pool
from graphcl.kernels.counter import stream_key
from graphcl.kernels.gather_rows import gather_rows_reference
from graphcl.kernels.slots import Means, sample_means, sample_slots
from graphcl.training.typed_levels import encode_levels
from graphcl.training.typed_sampled import TypedSampledGraph, fan_outs_of
from graphcl.typed_drawing import Nodes, sample_slots_reference
from graphcl.typed_sampling import sample_levels
from graphcl.views import Drop

CPU = torch.device("cpu")
NOTHING = Drop(0.0, 0.0)


def graph(weighted=False):
    random = np.random.default_rng(0)
    writes = random.integers(0, (8, 12), (40, 2)).T
    cites, knows = random.integers(0, 12, (2, 30)), random.integers(0, 8, (2, 12))
    weight = {"edge_weight": random.random(30) + 0.2} if weighted else {}
    return Graph.from_edges(
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
    channels = prepared.schema.directions()
    return TypedSampledGraph.of(
        prepared,
        device=CPU,
        batch_nodes=4,
        fan_outs=dict.fromkeys(channels, fan_out),
        layers=layers,
        replace=replace,
    )


def sampled(given, name, nodes, *, seed, depth=1, perturbation=NOTHING):
    return sample_levels(
        {name: nodes},
        given.x,
        given.directions,
        perturbation,
        depth=depth,
        replace=given.replace,
        seed=seed,
        whole=True,
    )


def means_of(table, width):
    """The parts of a table's inputs: for each direction the means of features and of vectors."""
    start, found = width, []
    for one in table.children:
        relation = one.direction.relation
        senders = {"author": 3, "paper": 4}[one.direction.channel.sender]
        features = table.inputs[0, :, start : start + senders]
        start += senders
        vectors = table.inputs[0, :, start : start + one.direction.vectors]
        start += one.direction.vectors
        found.append((one.direction.channel, relation, features, vectors))
    assert start == table.inputs.shape[2]
    return found


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("replace", [True, False])
def test_the_sampled_mean_is_unbiased_per_relation(replace, weighted):
    if weighted and not replace:
        pytest.skip("unbiased in the limit of many draws only: see sample_tree")
    prepared = prepare(graph(weighted), "none")
    given = source(prepared, 2, replace=replace)
    x, _ = typed_tensors(prepared.graph, device=CPU)
    draws = 6000
    for name in ("author", "paper"):
        nodes = torch.arange(len(x[name])).repeat_interleave(draws)
        table = sampled(given, name, nodes, seed=1)[0][name]
        for channel, relation, features, vectors in means_of(table, x[name].shape[1]):
            exact = [(features, mean_pool(x[channel.sender], relation))]
            if relation.features is not None:
                exact.append((vectors, relation.edge_mean()))
            for found, expected in exact:
                means = found.reshape(len(x[name]), draws, -1)
                error = (means.mean(1) - expected).abs() / (means.std(1) / draws**0.5 + 1e-6)
                assert float(error.max()) < 5


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_tree_of_all_neighbours_is_encoded_as_the_whole_graph(weighted, layers):
    prepared = prepare(graph(weighted), "none")
    given = source(prepared, 12, replace=False)
    encoder = TypedEncoder(
        prepared.schema,
        dim=6,
        layers=layers,
        generator=torch.Generator().manual_seed(0),
        normalisation="layer",
    )
    exact = encoder(*typed_tensors(prepared.graph, device=CPU))
    seeds = {name: torch.arange(len(rows)) for name, rows in exact.items()}
    levels = sample_levels(
        seeds, given.x, given.directions, NOTHING, depth=layers, replace=False, seed=0
    )
    for name, both in encode_levels(levels, encoder).items():
        torch.testing.assert_close(both[0], exact[name], rtol=1e-4, atol=1e-5)
        assert torch.equal(both[0], both[1])


def test_an_edge_is_dropped_in_both_directions_wherever_it_occurs_and_rates_are_per_relation():
    prepared = prepare(graph(), "none")
    fan_out, seeds = 30, 400
    given = source(prepared, fan_out, replace=False)
    rates = Drop(0.5, 0.0, {("paper", "cites", "paper"): 0.0})
    zeros = torch.zeros(seeds, dtype=torch.int64)
    levels = sampled(given, "paper", zeros, seed=3, depth=2, perturbation=rates)
    top = {(one.direction.channel.relation[1], one.direction.channel.backwards): one
           for one in levels[0]["paper"].children}  # fmt: skip
    writes = top["writes", False]
    there = writes.weights[0].view(seeds, fan_out) > 0
    degree = _degree(writes, 0)
    assert abs(float(there[:, :degree].float().mean()) - 0.5) < 0.05
    authors = levels[1]["author"]
    (back,) = [one for one in authors.children if one.direction.channel.relation[1] == "writes"]
    papers = levels[2]["paper"].nodes[back.rows].view(-1, fan_out)
    again = back.weights[0].view(-1, fan_out) > 0
    checked = 0
    for seed in range(40):
        for slot in range(degree):
            parent = writes.rows.start + seed * fan_out + slot
            for place in range(_degree(back, authors.nodes[parent])):
                if papers[parent, place] == 0:
                    assert bool(again[parent, place]) == bool(there[seed, slot])
                    checked += 1
    assert checked >= 40
    for backwards in (False, True):
        filled = top["cites", backwards].weights[0].view(seeds, fan_out) > 0
        assert int(filled[0].sum()) == _degree(top["cites", backwards], 0)
        assert torch.equal(filled[0].expand(seeds, -1), filled)


def _degree(children, node):
    csr = children.direction.relation.csr
    return int(csr.indptr[node + 1] - csr.indptr[node])


@pytest.mark.parametrize("small", [0, 1 << 30])
def test_the_compiled_loop_is_the_plain_one(monkeypatch, small):
    monkeypatch.setattr("graphcl.kernels.slots.SMALL", small)
    prepared = prepare(graph(), "none")
    given = source(prepared, 3, replace=True)
    keys = stream_key(1, "neighbours"), stream_key(1, "edges")
    for name, directions in given.directions.items():
        nodes = torch.arange(given.sizes[name]).repeat(5)
        table = Nodes(
            nodes, torch.arange(len(nodes)) // 2, torch.arange(len(nodes)) + 3, len(nodes)
        )
        for direction in directions:
            relation = direction.relation
            csr = relation.csr
            found = sample_slots(
                *csr,
                relation.edge_ids,
                nodes,
                table.places,
                table.ranks,
                fan_out=3,
                edge_drop=0.4,
                within=relation.within,
                key=keys[0],
                edges=keys[1],
            )
            expected = sample_slots_reference(direction, table, keys, edge_drop=0.4, replace=True)
            filled = expected.weights.sum(0) > 0
            assert torch.equal(found.nodes[filled], expected.nodes[filled])
            assert torch.equal(found.numbers[filled], expected.numbers[filled])
            torch.testing.assert_close(found.weights, expected.weights)
            torch.testing.assert_close(found.own, expected.own)


@pytest.mark.parametrize("small", [0, 1 << 30])
@pytest.mark.parametrize("stored", [False, True])
def test_means_in_one_loop_are_those_of_sampled_children(monkeypatch, small, stored):
    monkeypatch.setattr("graphcl.kernels.slots.SMALL", small)
    prepared = prepare(graph(), "none")
    given = source(prepared, 3, replace=True)
    keys = stream_key(1, "neighbours"), stream_key(1, "edges")
    for name, directions in given.directions.items():
        nodes = torch.arange(given.sizes[name]).repeat(15)
        ranks = torch.arange(len(nodes)) + 3
        table = Nodes(nodes, torch.arange(len(nodes)) // 2, ranks, len(nodes))
        for direction in directions:
            relation, x = direction.relation, given.x[direction.channel.sender]
            own = torch.randn(2, len(nodes), x.shape[1])
            out = torch.empty(2, len(nodes), x.shape[1] + 2)[:, :, 1:-1]
            means = Means(x, stream_key(1, "features"), 0.3, own, out)
            found = sample_means(
                *relation.csr,
                relation.edge_ids,
                nodes,
                table.places,
                ranks,
                means,
                fan_out=3,
                edge_drop=0.4,
                within=relation.within,
                key=keys[0],
                edges=keys[1],
                stored=stored,
            )
            slots = sample_slots_reference(direction, table, keys, edge_drop=0.4, replace=True)
            expected = torch.empty_like(own)
            gather_rows_reference(
                x,
                slots.nodes,
                slots.weights,
                table.places,
                feature_drop=0.3,
                key=means.features,
                out=expected,
            )
            expected += slots.own * own if relation.within else 0
            torch.testing.assert_close(out, expected)
            assert (found is not None) == stored
            if found is not None:
                filled = slots.weights.sum(0) > 0
                assert torch.equal(found.nodes[filled], slots.nodes[filled])
                torch.testing.assert_close(found.weights, slots.weights)
                torch.testing.assert_close(found.own, slots.own)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
def test_shares_of_a_batch_are_the_batch(weighted, replace):
    prepared = prepare(graph(weighted), "none")
    given = source(prepared, 2, replace=replace)
    rows = {"author": torch.tensor([3, 1, 7]), "paper": torch.tensor([0, 5, 5, 11, 2])}
    rates = Drop(0.3, 0.3)
    encoder = TypedEncoder(
        prepared.schema, dim=6, layers=2, generator=torch.Generator().manual_seed(0)
    )
    whole = encoded(given, rows, rates, encoder, ALONE)
    for world in (2, 3, 10):
        parts = [encoded(given, rows, rates, encoder, Share(rank, world)) for rank in range(world)]
        torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def encoded(given, rows, rates, encoder, share):
    """The embeddings of a share of a batch in both views."""
    batch = given.batch(rows, rates, seed=4, share=share)
    assert batch.num_nodes == 8
    return torch.stack(batch.encode(encoder, batch.views(torch.Generator())))


def test_fan_outs_are_shared_by_degree_and_can_be_given():
    prepared = prepare(graph(), "none")
    found = fan_outs_of(prepared.graph, prepared.schema, 10)
    papers = [count for channel, count in found.items() if channel.receiver == "paper"]
    assert 9 <= sum(papers) <= 11
    assert min(found.values()) >= 1
    own = {("paper", "cites", "paper"): 7}
    given = fan_outs_of(prepared.graph, prepared.schema, 10, own)
    assert {count for channel, count in given.items() if channel.relation in own} == {7}
