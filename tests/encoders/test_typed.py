from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from torch.nn.functional import elu

from graphcl.encoders.layer import _results
from graphcl.encoders.paper import ResidualEncoder
from graphcl.encoders.typed import BASES, TypedEncoder
from graphcl.graphs.graph import Graph
from graphcl.graphs.schema import EDGES, Schema
from graphcl.graphs.tensors import graph_tensors

CPU = torch.device("cpu")


def two_types(seed=0):
    """Two types and three relations, with weights and edge vectors, one of them undirected."""
    random = np.random.default_rng(seed)
    authors, papers = 6, 9

    def pairs(left, right, edges):
        return random.integers(0, (left, right), (edges, 2)).T

    writes, cites, knows = pairs(authors, papers, 14), pairs(papers, papers, 12), pairs(6, 6, 7)
    knows = knows[:, knows[0] != knows[1]]
    return Graph.from_edges(
        {"author": random.normal(size=(authors, 4)), "paper": random.normal(size=(papers, 3))},
        {
            ("author", "writes", "paper"): {
                "edge_index": writes,
                "edge_features": random.normal(size=(14, 2)),
            },
            ("paper", "cites", "paper"): {
                "edge_index": cites,
                "edge_weight": random.random(12) + 0.5,
            },
            ("author", "knows", "author"): {"edge_index": knows, "undirected": True},
        },
    )


def encoder_of(graph, **options):
    generator = torch.Generator().manual_seed(0)
    settings = {"dim": 5, "layers": 2} | options
    return TypedEncoder(Schema.of(graph), generator=generator, **settings).double()


def loops(graph, encoder):
    """The results of every layer, one node and one message after the other, in float64."""
    h = {
        name: np.array([row @ encoder.input_map(name).detach().numpy() for row in nodes.x])
        for name, nodes in graph.nodes.items()
    }
    results = []
    for level in encoder.layer_specs():
        new = {}
        for name in h:
            rows = []
            for u in range(len(h[name])):
                total = h[name][u] @ level[name].own.detach().numpy()
                for message in level[name].received:
                    total = total + received(graph, h, message, u)
                if level[name].normalisation:
                    total = (total - total.mean()) / np.sqrt(total.var() + 1e-5)
                if level[name].activation is not None:
                    total = elu(torch.tensor(total)).numpy()
                rows.append(total)
            new[name] = np.array(rows)
        h = new
        results.append(h)
    return results


def received(graph, h, message, u):
    relation = graph.relations[message.direction.relation]
    sources, targets = relation.edge_index()
    ours, theirs = (sources, targets) if message.direction.backwards else (targets, sources)
    mine = np.flatnonzero(ours == u)
    weight = np.ones(len(sources)) if relation.edge_weight is None else relation.edge_weight
    weight = weight.astype(np.float64)
    within = relation.source == relation.target
    own = (weight[mine].mean() if len(mine) else 1.0) if within else 0.0
    total = np.zeros(h[message.direction.sender].shape[1])
    total = own * h[message.direction.receiver][u] if within else total
    for e in mine:
        sent = h[message.direction.sender][theirs[e]]
        if message.edges is not None:
            sent = sent + relation.edge_features[e] @ message.edges.detach().numpy()
        total = total + weight[e] * sent
    size = own + weight[mine].sum()
    return (total / size if size else total) @ message.pooled.detach().numpy()


@pytest.mark.parametrize("normalisation", ["none", "layer"])
def test_it_is_its_equations_node_by_node(normalisation):
    graph = two_types()
    encoder = encoder_of(graph, normalisation=normalisation)
    if normalisation == "layer":
        for module in encoder.modules():  # in float64, as the loops
            if isinstance(module, torch.nn.LayerNorm):
                module.forward = lambda h: torch.nn.functional.layer_norm(h, h.shape[-1:])
    x, relations = graph_tensors(graph, device=CPU, dtype=torch.float64)
    found = _results(x, relations, encoder.levels(), encoder.input_map)
    for result, expected in zip(found, loops(graph, encoder), strict=True):
        for name in graph.nodes:
            np.testing.assert_allclose(result[name].detach(), expected[name], rtol=1e-9)


def test_some_rows_are_those_of_all():
    graph = two_types()
    encoder = encoder_of(graph)
    tensors = graph_tensors(graph, device=CPU, dtype=torch.float64)
    rows = {"paper": torch.tensor([7, 0]), "author": torch.tensor([5])}
    whole, some = encoder(*tensors), encoder.on_rows(*tensors, rows)
    for name, chosen in rows.items():
        torch.testing.assert_close(some[name], whole[name][chosen])


def test_another_order_of_a_type_gives_the_same_rows_in_that_order():
    graph = two_types()
    encoder = encoder_of(graph)
    before = encoder(*graph_tensors(graph, device=CPU, dtype=torch.float64))
    for moved in graph.nodes:
        order = np.random.default_rng(3).permutation(graph.nodes[moved].num_nodes)
        place = np.argsort(order)
        relations = {}
        for key, one in graph.relations.items():
            edges = one.edge_index()
            if one.undirected:
                edges = edges[:, edges[0] < edges[1]]
            for row, end in ((0, one.source), (1, one.target)):
                edges[row] = place[edges[row]] if end == moved else edges[row]
            relations[key] = {"edge_index": edges, "undirected": one.undirected}
            relations[key] |= {"edge_weight": one.edge_weight, "edge_features": one.edge_features}
        nodes = {
            name: one.x[order] if name == moved else one.x for name, one in graph.nodes.items()
        }
        for key, one in graph.relations.items():
            if not one.undirected and one.source != one.target:
                relations[key].pop("undirected")
        other = Graph.from_edges(nodes, relations)
        after = encoder(*graph_tensors(other, device=CPU, dtype=torch.float64))
        for name in graph.nodes:
            rows = order if name == moved else slice(None)
            torch.testing.assert_close(after[name], before[name][rows])


def test_a_plain_graph_has_the_papers_encoder(graph):
    edges = {"edge_index": graph.edge_index(), "undirected": True}
    typed = Graph.from_edges({"node": graph.x}, {("node", "edge", "node"): edges})
    options = {"dim": 6, "layers": 3, "generator": torch.Generator().manual_seed(0)}
    encoder = TypedEncoder(Schema.of(typed), **options)
    plain = ResidualEncoder(6, **options)
    with torch.no_grad():
        for number in range(3):
            plain.pooled_weights[number].copy_(encoder.pooled[number][0])
            plain.own_weights[number].copy_(encoder.own[number][0])
    x, adjacency = graph_tensors(graph, device=CPU)
    expected = plain(x @ encoder.input_map("node"), adjacency)
    found = encoder(*graph_tensors(typed, device=CPU, plain=False))["node"]
    torch.testing.assert_close(found, expected)


def test_relations_with_few_edges_share_a_basis_and_others_do_not():
    names, many = count(), 1200
    x = np.ones((40, 2))
    few = [[0, 1, 2], [3, 4, 5]]
    random = np.random.default_rng(0).integers(0, 40, (2, many))
    relations = {("a", f"r{next(names)}", "b"): few for _ in range(5)}
    graph = Graph.from_edges({"a": x, "b": x}, relations | {("a", "big", "b"): random})
    assert graph.relation("big").num_edges < 1000  # duplicates: 40 · 40 pairs
    encoder = encoder_of(graph)
    assert len(encoder.bases[0]) == BASES
    assert encoder.coefficients[0].shape == (12, BASES)
    assert len(encoder.pooled[0]) == 0
    level = encoder.layer_specs()[0]
    fourth = next(one for one in level["a"].received if one.direction == encoder._shared[3])
    a, v = encoder.coefficients[0], list(encoder.bases[0])
    expected = sum(a[3, b] * v[b] for b in range(BASES))
    torch.testing.assert_close(fourth.pooled, expected)
    few_relations = dict(list(relations.items())[:2])
    alone = encoder_of(Graph.from_edges({"a": x, "b": x}, few_relations))
    assert len(alone.pooled[0]) == 4
    assert not hasattr(alone, "bases")


def test_embeddings_hold_own_features_and_all_layers_side_by_side():
    graph = two_types()
    options = {"side_by_side": True, "own_features": 0.5, "repeat_own": True, "dim": 12}
    encoder = encoder_of(graph, **options)
    tensors = graph_tensors(graph, device=CPU, dtype=torch.float64)
    z, results = (
        encoder.embedding(*tensors),
        _results(*tensors, encoder.levels(), encoder.input_map),
    )
    for name, nodes in graph.nodes.items():
        assert z[name].shape == (nodes.num_nodes, encoder.width == 12 and 12)
        torch.testing.assert_close(z[name][:, 6:9], results[0][name])
        torch.testing.assert_close(z[name][:, 9:], results[1][name])
        np.testing.assert_array_equal(z[name][:, 0].detach(), nodes.x[:, 0])


def smoothed_by_loops(graph, encoder):
    """The smoothed features of each type before they are shifted and scaled, one node at a time.

    In each layer a node gets the mean of its own row and of what each message brings: the mean over
    its senders, without the edges' vectors. On a plain graph the node is in the only message.
    """
    h = {name: nodes.x @ encoder.part(name).smoother.numpy() for name, nodes in graph.nodes.items()}
    columns = torch.eye(h[next(iter(h))].shape[1], dtype=torch.float64)
    for level in encoder.layer_specs():
        new = {}
        for name, rows in h.items():
            messages = [replace(one, pooled=columns, edges=None) for one in level[name].received]
            plain = [one.direction for one in messages] == [EDGES]
            new[name] = np.array([
                np.mean(([] if plain else [rows[u]])
                        + [received(graph, h, message, u) for message in messages],
                        axis=0)
                for u in range(len(rows))
            ])  # fmt: skip
        h = new
    return h


def one_type(*, undirected):
    """A plain graph but for its edges, which have vectors or a direction."""
    random = np.random.default_rng(1)
    edges = random.integers(0, 9, (2, 20))
    edges = edges[:, edges[0] != edges[1]]
    if undirected:
        edges = np.unique(np.sort(edges, axis=0), axis=1)
    vectors = {"edge_features": random.normal(size=(edges.shape[1], 2))} if undirected else {}
    relation = {"edge_index": edges, "undirected": undirected} | vectors
    nodes = {"node": random.normal(size=(9, 6))}
    return Graph.from_edges(nodes, {("node", "edge", "node"): relation})


@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize(
    ("graph", "messages"),
    [
        (two_types(), [2, 3]),
        (one_type(undirected=True), [1]),
        (one_type(undirected=False), [2]),
    ],
    ids=["two types", "edge features", "directed"],
)
def test_the_last_columns_are_means_of_features(graph, messages, layers, side_by_side):
    options = {"smoothed_features": 0.2, "own_features": 0.2, "side_by_side": side_by_side}
    encoder = encoder_of(graph, dim=11, layers=layers, **options)
    levels = encoder.layer_specs()
    assert sorted(len(one.received) for one in levels[0].values()) == messages
    tensors = graph_tensors(graph, device=CPU, dtype=torch.float64, plain=False)
    expected = smoothed_by_loops(graph, encoder)
    for name, rows in encoder.embedding(*tensors).items():
        assert encoder.part(name).smoothed == 2
        np.testing.assert_allclose(rows[:, -2:].detach(), expected[name], rtol=1e-6, atol=1e-6)
    before = encoder(*tensors)
    for name, part in ((name, encoder.part(name)) for name in graph.nodes):
        part.calibrate(3 * torch.randn(50, 11, generator=torch.Generator()).double() + 1)
        expected[name] = (expected[name] - part.shift[-2:].numpy()) * part.scale[-2:].numpy()
    for name, rows in encoder.embedding(*tensors).items():
        np.testing.assert_allclose(rows[:, -2:].detach(), expected[name], rtol=1e-6, atol=1e-6)
        # What training contrasts has no such columns.
        assert torch.equal(encoder(*tensors)[name], before[name])
        assert before[name].shape[1] == levels[-1][name].outputs


def test_a_graph_may_lack_types_and_relations():
    graph = two_types()
    encoder = encoder_of(graph)
    relation = graph.relations["paper", "cites", "paper"]
    less = Graph({"paper": graph.nodes["paper"]}, {relation.key: relation})
    found = encoder(*graph_tensors(less, device=CPU, dtype=torch.float64))
    assert list(found) == ["paper"]
