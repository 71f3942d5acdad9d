"""Sampled trees of plain graphs and of graphs with types, their views, and the encoder on them."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from graphcl import topology
from graphcl.distributed import ALONE, Share
from graphcl.encoders import Layer, LayeredEncoder, build_encoder, layered
from graphcl.encoders.layer import Message
from graphcl.encoders.typed import TypedEncoder
from graphcl.errors import ParameterError
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors, prepare
from graphcl.kernels import neighbours
from graphcl.kernels.adjacency import mean_pool
from graphcl.kernels.counter import DeviceSeed, Draws, kept, stream_key, threshold
from graphcl.kernels.neighbours import sample_levels
from graphcl.sampling import encode_tree, sample_tree, tree_to, tree_views
from graphcl.training.sampled import SampledGraph, fan_outs_of
from graphcl.views import Drop
from tests.conftest import dense_adjacency, plain_topology, random_graph
from tests.drawn import dropped, edge_draws, ends

CPU = torch.device("cpu")
NO_DROP = Drop(0.0, 0.0)


def tree_of(graph, nodes, *, fan_out, layers, seed=0, **options):
    topology = plain_topology(graph, fan_out, **options)
    return sample_tree(topology, {"node": nodes}, layers=layers, seed=seed)


def test_a_seed_on_a_device_gives_the_trees_and_views_of_its_number(graph, monkeypatch):
    """A GPU draws in plain operations, with keys that are tensors; here they run on a CPU."""
    monkeypatch.setattr(neighbours, "draw_neighbours", neighbours.draw_neighbours_reference)
    monkeypatch.setattr(topology, "draw_neighbours", neighbours.draw_neighbours_reference)
    seed = DeviceSeed(CPU)
    seed.set(11)
    nodes = torch.arange(0, graph.num_nodes, 7)
    trees = [tree_of(graph, nodes, fan_out=3, layers=2, seed=one) for one in (11, seed)]
    for ours, theirs in zip(*map(levels_of, trees), strict=True):
        assert all(map(torch.equal, ours, theirs))
    x, options = {"node": torch.tensor(graph.x)}, {"own": True}
    views = [tree_views(x, trees[0], Drop(0.3, 0.4), seed=one, **options) for one in (11, seed)]
    for ours, theirs in zip(*views, strict=True):
        assert torch.equal(ours.inputs[0]["node"], theirs.inputs[0]["node"])


def levels_of(tree):
    """The nodes of each level of a plain tree, and the weights of the children."""
    tables = [level["node"] for level in tree]
    below = [table.children[0] for table in tables]
    return [tables[0].nodes, *(one.nodes for one in below)], [one.weight for one in below]


def encoder_for(graph, name, layers, dim=8):
    return build_encoder(
        name, graph.num_features, dim=dim, layers=layers, generator=torch.Generator().manual_seed(0)
    )


def encoded(graph, tree, name, encoder, edge_drop=0.0, feature_drop=0.0, seed=0):
    perturbation, x = Drop(edge_drop, feature_drop), {"node": torch.tensor(graph.x)}
    views = tree_views(x, tree, perturbation, own=name == "residual", seed=seed)
    return [encode_tree(view, encoder)[0] for view in views]


class Stated(LayeredEncoder):
    """An encoder of given layers."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = layers

    def layer_specs(self):
        return self.layers


def with_isolated(graph):
    edges = graph.edge_index()
    return Graph.from_edge_index(edges[:, (edges > 2).all(0)], graph.x)


def test_a_tree_is_regular_and_follows_edges(graph):
    nodes, _ = levels_of(tree_of(graph, torch.arange(6), fan_out=3, layers=3))
    assert [len(level) for level in nodes] == [6, 18, 54, 162]
    edges = dense_adjacency(graph) + np.eye(graph.num_nodes)
    for parents, children in pairwise(nodes):
        assert edges[parents.repeat_interleave(3), children].all()
    alone = sample_levels(
        torch.tensor(graph.indptr), torch.tensor(graph.indices), nodes[0], fan_outs=(3,) * 3, seed=0
    )
    for one, other in zip(nodes, alone, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("name", ["mean", "residual"])
def test_a_tree_of_all_neighbours_is_exact(name, layers):
    """Without replacement and with room for every neighbour, nothing is left to chance."""
    graph = with_isolated(random_graph(num_nodes=30))
    widest = int(np.diff(graph.indptr).max())
    tree = tree_of(graph, torch.arange(30), fan_out=widest + 1, layers=layers, replace=False)
    encoder = encoder_for(graph, name, layers)
    expected = encoder(*graph_tensors(graph, device=CPU))
    for h in encoded(graph, tree, name, encoder):
        torch.testing.assert_close(h, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("name", ["mean", "residual"])
def test_the_expectation_of_a_linear_encoder_is_the_exact_one(name, replace):
    """Two layers and no ELU: Â² X W, or (Â W_1 + W_2)² with identity weights."""
    graph = with_isolated(random_graph(num_nodes=40))
    repeats, nodes = 3000, torch.arange(40)
    tree = tree_of(graph, nodes.repeat(repeats), fan_out=3, layers=2, replace=replace)
    # elu(h + c) − c = h wherever h + c > 0: a bias in the features makes the encoder linear.
    lifted = torch.tensor(graph.x) + 100
    views = tree_views({"node": lifted}, tree, NO_DROP, own=name == "residual", seed=0)
    eye = torch.eye(graph.num_features)
    own = eye if name == "residual" else None
    (h,) = encode_tree(views[0], Stated(Layer(eye, own), Layer(eye, own, activation=None)))
    samples = h.view(repeats, 40, -1).double()
    pool = torch.tensor(dense_adjacency(graph) + np.eye(40))
    pool = pool / pool.sum(1, keepdim=True)
    layer = pool + torch.eye(40) if name == "residual" else pool
    expected = layer @ layer @ lifted.double()
    error = (samples.mean(0) - expected).abs()
    bound = 5.5 * samples.std(0) / repeats**0.5 + 1e-4
    assert (error <= bound).all()
    assert (samples.std(0)[3:] > 0).any()


def test_children_stand_for_all_neighbours(graph):
    nodes = torch.arange(graph.num_nodes)
    degree = torch.tensor(np.diff(graph.indptr))
    for replace in (True, False):
        _, (weight,) = levels_of(tree_of(graph, nodes, fan_out=4, layers=1, replace=replace))
        torch.testing.assert_close(weight.view(-1, 4).sum(1), degree.float())
    assert ((weight.view(-1, 4) > 0).sum(1) == degree.clamp(max=4)).all()


def slow_encoding(x, tree, views_of, layers):
    """Node by node from the tree's definition, with the draws taken from `views_of`."""
    keeps, features = views_of
    (seeds, *_), weights = levels_of(tree)
    fan_out = tree[0]["node"].children[0].edges.fan_out

    def h(layer, level, place):
        if layer == 0:
            return features[level][place]
        total, count = h(layer - 1, level, place), 1.0
        own = total
        for child in range(place * fan_out, (place + 1) * fan_out):
            w = float(weights[level][child]) * float(keeps[level][child])
            if w:
                total = total + w * h(layer - 1, level + 1, child)
                count += w
        out = total / count @ layers[layer - 1].pooled
        if layers[layer - 1].own is not None:
            out = out + own @ layers[layer - 1].own
        return torch.nn.functional.elu(out) if layer < len(layers) else out

    return torch.stack([h(len(layers), 0, place) for place in range(len(seeds))])


@pytest.mark.parametrize("view", [0, 1])
@pytest.mark.parametrize("name", ["mean", "residual"])
def test_the_encoder_on_a_perturbed_tree_value_and_gradient(graph, name, view):
    x = torch.tensor(graph.x)
    tree = tree_of(graph, torch.tensor([3, 11]), fan_out=2, layers=3)
    nodes_of, _ = levels_of(tree)
    encoder = encoder_for(graph, name, 3)
    ours = encoded(graph, tree, name, encoder, edge_drop=0.3, feature_drop=0.4, seed=9)[view]
    draws = Draws(0.3, 0.4, stream_key(9, "edges"), stream_key(9, "features"))
    places = [torch.arange(len(nodes)) // (len(nodes) // 2) for nodes in nodes_of]
    keeps = [
        kept(
            edge_draws(below, *ends(draws, above.repeat_interleave(2), children), draws.edges),
            view,
            threshold(0.3),
        )
        for below, above, children in zip(places[1:], nodes_of, nodes_of[1:], strict=False)
    ]
    features = [
        dropped(x[nodes], place, nodes, draws)[view]
        for place, nodes in zip(places, nodes_of, strict=True)
    ]
    plain = slow_encoding(x, tree, (keeps, features), encoder.layer_specs())
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
    ours_gradient = torch.autograd.grad(ours.square().sum(), list(encoder.parameters()))
    plain_gradient = torch.autograd.grad(plain.square().sum(), list(encoder.parameters()))
    for a, b in zip(ours_gradient, plain_gradient, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_views_share_the_tree_and_differ(graph):
    tree = tree_of(graph, torch.arange(10), fan_out=3, layers=2)
    encoder = encoder_for(graph, "residual", 2)
    first, second = encoded(graph, tree, "residual", encoder, edge_drop=0.2, feature_drop=0.2)
    assert not torch.equal(first, second)
    again, _ = encoded(graph, tree, "residual", encoder, edge_drop=0.2, feature_drop=0.2)
    other, _ = encoded(graph, tree, "residual", encoder, edge_drop=0.2, feature_drop=0.2, seed=1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    same = encoded(graph, tree, "residual", encoder)
    assert torch.equal(*same)


def test_a_tree_moves_as_a_whole(graph):
    tree = tree_of(graph, torch.arange(3), fan_out=2, layers=2)
    moved = tree_to(tree, torch.device("meta"))
    for level, there in zip(tree, moved, strict=True):
        table, found = level["node"], there["node"]
        (one,), (other,) = table.children, found.children
        parts = found.nodes, found.places, found.ranks, other.nodes, other.weight
        assert all(part.device.type == "meta" for part in parts)
        assert (found.rows, other.vectors, found.total) == (None, None, table.total)
        assert other.edges is one.edges


def test_bad_arguments(graph):
    with pytest.raises(ParameterError, match="layers must be at least 1; got 0"):
        tree_of(graph, torch.arange(3), fan_out=3, layers=0)
    tree = tree_of(graph, torch.arange(3), fan_out=2, layers=2)
    with pytest.raises(ParameterError, match=r"Drop: edge_drop must be in \[0, 1\); got 1.0"):
        encoded(graph, tree, "mean", encoder_for(graph, "mean", 2), edge_drop=1.0)
    with pytest.raises(ParameterError, match="encode_tree: layers must be 2, the hops; got 3"):
        encoded(graph, tree, "mean", encoder_for(graph, "mean", 3))
    with pytest.raises(ParameterError, match=r"this needs an encoder that states its layers.*Pyg"):
        layered(encoder_for(graph, "gcn", 2))


def typed_graph(weighted=False):
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
    return SampledGraph.of(
        prepared.graph,
        device=CPU,
        feature_scaling=prepared.scaling,
        batch_nodes=4,
        fan_outs=fan_out,
        layers=layers,
        replace=replace,
    )


def means_of(given, prepared, name, nodes):
    """The means over each direction of a type's nodes: of features, and of vectors."""
    tree = sample_tree(given.topology, {name: nodes}, layers=1, seed=1)
    view, _ = tree_views(given.topology.x, tree, NO_DROP, own=True, seed=1)
    inputs, start = view.inputs[0][name], 0
    _, relations = graph_tensors(prepared.graph, device=CPU)
    for one in tree[0][name].children:
        direction = one.edges.direction
        relation = relations[direction.relation].toward(direction.backwards)
        sender = given.topology.x[direction.sender]
        yield inputs[:, start : start + sender.shape[1]], mean_pool(sender, relation)
        start += sender.shape[1]
        if one.edges.width:
            yield inputs[:, start : start + one.edges.width], relation.edge_mean()
        start += one.edges.width
    assert torch.equal(inputs[:, start:], given.topology.x[name][nodes])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("replace", [True, False])
def test_the_sampled_mean_is_unbiased_per_relation(replace, weighted):
    if weighted and not replace:
        pytest.skip("unbiased in the limit of many draws only: see sample_tree")
    (prepared,) = prepare([typed_graph(weighted)], "none")
    given, draws = source(prepared, 2, replace=replace), 6000
    for name, size in given.topology.sizes.items():
        nodes = torch.arange(size).repeat_interleave(draws)
        for found, expected in means_of(given, prepared, name, nodes):
            means = found.reshape(size, draws, -1)
            error = (means.mean(1) - expected).abs() / (means.std(1) / draws**0.5 + 1e-6)
            assert float(error.max()) < 5


@pytest.mark.parametrize("normalisation", ["layer", "none"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_typed_tree_of_all_neighbours_is_exact(weighted, layers, normalisation):
    """Value and gradient."""
    (prepared,) = prepare([typed_graph(weighted)], "none")
    given = source(prepared, 12, replace=False)
    generator = torch.Generator().manual_seed(0)
    options = {"dim": 6, "layers": layers, "generator": generator}
    encoder = TypedEncoder(prepared.schema, normalisation=normalisation, **options)
    exact = encoder(*graph_tensors(prepared.graph, device=CPU))
    seeds = {name: torch.arange(len(rows)) for name, rows in exact.items()}
    tree = sample_tree(given.topology, seeds, layers=layers, seed=0)
    views = tree_views(given.topology.x, tree, NO_DROP, own=True, seed=0)
    first, second = (encode_tree(view, encoder) for view in views)
    for rows, again, expected in zip(first, second, exact.values(), strict=True):
        torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(rows, again)
    weights = list(encoder.parameters())
    ours, theirs = (
        torch.autograd.grad(sum(one.square().sum() for one in tables), weights, allow_unused=True)
        for tables in (first, exact.values())
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


class Partial(LayeredEncoder):
    """Layers without own rows, and without messages in some directions."""

    def __init__(self, schema):
        super().__init__()
        widths = schema.widths
        self.first = torch.nn.Parameter(torch.ones(widths["author"], 3))
        self.second = torch.nn.Parameter(torch.ones(3, 3))
        (self.direction,) = [
            one for one in schema.into("paper") if one.sender == "author" and not one.backwards
        ]

    def layer_specs(self):
        none = Layer((), torch.zeros(3, 3), activation=None)
        into = Layer((Message(self.first, self.direction),))
        later = Layer((Message(self.second, self.direction),), activation=None)
        return {"author": Layer((), self.first), "paper": into}, {"author": none, "paper": later}


def test_an_encoder_may_leave_directions_and_own_rows_out():
    (prepared,) = prepare([typed_graph()], "none")
    given, encoder = source(prepared, 12, replace=False), Partial(prepared.schema)
    exact = encoder(*graph_tensors(prepared.graph, device=CPU))
    tree = sample_tree(given.topology, {"paper": torch.arange(12)}, layers=2, seed=0)
    view, _ = tree_views(given.topology.x, tree, NO_DROP, own=True, seed=0)
    (found,) = encode_tree(view, encoder)
    torch.testing.assert_close(found, exact["paper"], rtol=1e-4, atol=1e-5)


def test_an_edge_is_dropped_in_both_directions_wherever_it_occurs_and_rates_are_per_relation():
    (prepared,) = prepare([typed_graph()], "none")
    fan_out, seeds = 12, 400
    given = source(prepared, fan_out, replace=False)
    rates = Drop(0.5, 0.0, {("paper", "cites", "paper"): 0.0})
    zeros = torch.zeros(seeds, dtype=torch.int64)
    tree = sample_tree(given.topology, {"paper": zeros}, layers=3, seed=3)
    view, _ = tree_views(given.topology.x, tree, rates, own=True, seed=3)

    def present(depth, name):
        """What is drawn below a type: by relation and direction, children, and which are kept."""
        found = {}
        for one, share in zip(tree[depth][name].children, view.shares[depth][name], strict=True):
            direction = one.edges.direction
            there = share.children.view(-1, fan_out) > 0
            found[direction.relation[1], direction.backwards] = (one, there)
        return found

    top = present(0, "paper")
    writes, there = top["writes", False]
    degree = int(writes.edges.indptr[1] - writes.edges.indptr[0])
    assert abs(float(there[:, :degree].float().mean()) - 0.5) < 0.05
    authors = tree[1]["author"].nodes[: seeds * fan_out]  # they are the first of their type
    assert torch.equal(authors, writes.nodes)
    back, again = present(1, "author")["writes", True]
    papers = back.nodes.view(-1, fan_out)
    checked = 0
    for seed in range(40):
        for slot in range(degree):
            parent = seed * fan_out + slot
            indptr, node = back.edges.indptr, int(authors[parent])
            for place in range(int(indptr[node + 1] - indptr[node])):
                if papers[parent, place] == 0:
                    assert bool(again[parent, place]) == bool(there[seed, slot])
                    checked += 1
    assert checked >= 40
    for backwards in (False, True):
        one, filled = top["cites", backwards]
        assert int(filled[0].sum()) == int(one.edges.indptr[1] - one.edges.indptr[0])
        assert torch.equal(filled[0].expand(seeds, -1), filled)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("weighted", [False, True])
def test_shares_of_a_batch_are_the_batch(weighted, replace):
    (prepared,) = prepare([typed_graph(weighted)], "none")
    given = source(prepared, 2, replace=replace)
    rows = {"author": torch.tensor([3, 1, 7]), "paper": torch.tensor([0, 5, 5, 11, 2])}
    rates = Drop(0.3, 0.3)
    encoder = TypedEncoder(
        prepared.schema, dim=6, layers=2, generator=torch.Generator().manual_seed(0)
    )
    whole = both_views(given, rows, rates, encoder, ALONE)
    for world in (2, 3, 10):
        parts = [
            both_views(given, rows, rates, encoder, Share(rank, world)) for rank in range(world)
        ]
        torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def both_views(given, rows, rates, encoder, share):
    """The embeddings of a share of a batch in both views."""
    batch = given.batch(rows, rates, seed=4, share=share)
    assert batch.num_nodes == 8
    return torch.stack(batch.encode(encoder, batch.views(torch.Generator())))


def test_fan_outs_are_shared_by_degree_and_can_be_given():
    (prepared,) = prepare([typed_graph()], "none")
    sizes = {"author": 8, "paper": 12}
    found = fan_outs_of(prepared.schema, sizes, 10)
    papers = [count for channel, count in found.items() if channel.receiver == "paper"]
    assert 9 <= sum(papers) <= 11
    assert min(found.values()) >= 1
    own = {("paper", "cites", "paper"): 7}
    given = fan_outs_of(prepared.schema, sizes, 10, own)
    assert {count for channel, count in given.items() if channel.relation in own} == {7}
