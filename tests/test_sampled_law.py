"""A view of a seed node's tree is a view of the whole graph, drawn for this seed node.

With all neighbours in the tree, each pattern of kept edges and features must give the embedding
that the whole graph gives with this pattern. The draws are independent with the same probabilities
in both modes, so the laws of the embeddings are then equal.
"""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphcl import sampling
from graphcl.distributed import Share
from graphcl.encoders import Layer, build_encoder
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.counter import kept, stream_key, threshold
from graphcl.sampling import encode_tree, sample_tree, tree_views
from graphcl.views import Drop
from tests import drawn as plain
from tests.conftest import FUZZ, plain_topology
from tests.test_sampling import Stated

CPU = torch.device("cpu")
SHAPES = {
    "an edge": [(0, 1)],
    "a triangle": [(0, 1), (1, 2), (0, 2)],
    "a path": [(0, 1), (1, 2), (2, 3)],
    "a cycle and a leaf": [(0, 1), (1, 2), (2, 3), (3, 0), (2, 4)],
}
CASES = [
    ("an edge", 2),
    ("a triangle", 1),
    ("a triangle", 2),
    ("a path", 1),
    ("a cycle and a leaf", 1),
]
EVERYWHERE = pytest.mark.parametrize(("shape", "width"), CASES)
ENCODERS = pytest.mark.parametrize("name", ["mean", "residual"])
LAYERS = pytest.mark.parametrize("layers", [2, 3])


class Small:
    """A small graph whose kept and dropped edges and features are the bits of one number."""

    def __init__(self, shape, width):
        edges = np.array(SHAPES[shape]).T
        nodes = int(edges.max()) + 1
        x = np.random.default_rng(0).normal(size=(nodes, width)).astype(np.float32) + 1
        self.graph = Graph.from_edge_index(edges, x)
        self.x, self.adjacency = graph_tensors(self.graph, device=CPU)
        self.numbers = torch.full((nodes, nodes), -1)
        self.numbers[tuple(self.graph.edge_index())] = self.adjacency.edge_ids
        self.edges = self.adjacency.num_edges
        self.patterns = 2 ** (self.edges + nodes * width)

    def ends(self):
        """Returns the two ends of each edge, in the order of their bits."""
        return torch.stack([(self.numbers == n).nonzero()[0] for n in range(self.edges)]).T

    def whole(self, encoder, pattern):
        """Returns what the whole graph gives for a pattern; half of the features are dropped."""
        bits = (pattern >> torch.arange(self.edges + self.x.numel())) & 1
        x = self.x * bits[self.edges :].view(self.x.shape) * 2
        weight = self.adjacency.weight * bits[: self.edges][self.adjacency.edge_ids]
        return encoder(x, self.adjacency.with_weight(weight))

    def tree(self, node, count, layers):
        """Returns the trees of one node at many places of a batch, with all neighbours."""
        widest = int(np.diff(self.graph.indptr).max())
        nodes = torch.full((count,), node)
        topology = plain_topology(self.graph, widest, replace=False)
        return sample_tree(topology, {"node": nodes}, layers=layers, seed=0)

    def encoder(self, name, layers):
        generator = torch.Generator().manual_seed(1)
        width = self.x.shape[1]
        return build_encoder(name, width, dim=4, layers=layers, generator=generator)

    def drawn(self, places, view, edge_drop, seed):
        """Returns the patterns that the real draws of a view give to seed nodes."""
        nodes, width = self.x.shape
        low, high = self.ends()
        each = places.repeat_interleave(self.edges)
        keys = stream_key(seed, "edges"), stream_key(seed, "features")
        of_edges = plain.edge_draws(
            each, low.repeat(len(places)), high.repeat(len(places)), keys[0]
        )
        of_nodes = plain.feature_draws(
            places.repeat_interleave(nodes),
            torch.arange(nodes).repeat(len(places)),
            width,
            keys[1],
        )
        bits = torch.cat(
            [
                kept(of_edges, view, threshold(edge_drop)).view(len(places), -1),
                kept(of_nodes, view, threshold(0.5)).view(len(places), -1),
            ],
            dim=1,
        )
        return (bits.long() << torch.arange(bits.shape[1])).sum(1)


def inject(monkeypatch, small):
    """Puts patterns in the draws' place: number n in view 1 of place n, its opposite in view 2."""

    def halves(bits):
        return torch.where(bits == 1, 0xFFFF, 0xFFFF << 16)

    def of_edges(places, one, other, _):
        number = small.numbers[one, other]
        found = halves((places >> number.clamp(min=0)) & 1)
        return torch.where(number >= 0, found, 0)  # an empty slot holds the node itself

    def of_features(places, nodes, width, _):
        number = small.edges + nodes[:, None] * width + torch.arange(width)
        return halves((places[:, None] >> number) & 1)

    monkeypatch.setattr(plain, "edge_draws", of_edges)
    monkeypatch.setattr(plain, "feature_draws", of_features)
    monkeypatch.setattr(sampling, "gather_mean", plain.gather_mean)


@EVERYWHERE
@ENCODERS
@LAYERS
def test_each_pattern_gives_what_the_whole_graph_gives(monkeypatch, shape, width, name, layers):
    small = Small(shape, width)
    inject(monkeypatch, small)
    encoder = small.encoder(name, layers)
    with torch.no_grad():
        whole = torch.stack([small.whole(encoder, pattern) for pattern in range(small.patterns)])
        for node in range(len(small.x)):
            tree = small.tree(node, small.patterns, layers)
            views = tree_views(
                {"node": small.x}, tree, Drop(0.5, 0.5), own=name == "residual", seed=0
            )
            first, second = (encode_tree(view, encoder)[0] for view in views)
            torch.testing.assert_close(first, whole[:, node], rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(second, whole[:, node].flip(0), rtol=1e-6, atol=1e-6)


@EVERYWHERE
@ENCODERS
@LAYERS
def test_the_real_draws_are_patterns_of_the_whole_graph(shape, width, name, layers):
    small, count = Small(shape, width), 500
    encoder = small.encoder(name, layers)
    with torch.no_grad():
        whole = torch.stack([small.whole(encoder, pattern) for pattern in range(small.patterns)])
        for node in range(len(small.x)):
            tree = small.tree(node, count, layers)
            views = tree_views(
                {"node": small.x}, tree, Drop(0.25, 0.5), own=name == "residual", seed=node
            )
            for number, view in enumerate(views):
                patterns = small.drawn(torch.arange(count), number, 0.25, node)
                (found,) = encode_tree(view, encoder)
                torch.testing.assert_close(found, whole[patterns, node], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("view", [0, 1])
@EVERYWHERE
def test_the_real_draws_are_independent_at_the_stated_rates(shape, width, view):
    small, count = Small(shape, width), 200_000
    patterns = small.drawn(torch.arange(count), view, 0.25, 0)
    observed = np.bincount(patterns, minlength=small.patterns)
    held = (np.arange(small.patterns)[:, None] >> np.arange(small.edges)) & 1
    chance = np.where(held, 0.75, 0.25).prod(1) / 2 ** small.x.numel()
    assert scipy.stats.chisquare(observed, count * chance).pvalue > 1e-4


def test_two_nodes_and_an_edge_have_the_whole_graphs_two_embeddings():
    """Â²X: the edge is there in both layers or in none."""
    count, eye = 20_000, torch.eye(2)
    pair = plain_topology(Graph.from_edge_index([[0], [1]], eye.numpy()), 1, replace=False)
    nodes = torch.zeros(count, dtype=torch.int64)
    tree = sample_tree(pair, {"node": nodes}, layers=2, seed=0)
    for view in tree_views(pair.x, tree, Drop(0.5, 0.0), own=False, seed=0):
        (h,) = encode_tree(view, Stated(Layer(eye), Layer(eye, activation=None)))
        values, counts = h.unique(dim=0, return_counts=True)
        assert values.tolist() == [[0.5, 0.5], [1, 0]]
        assert (counts / count - 0.5).abs().max() < 5 * 0.5 / count**0.5


@st.composite
def trees(draw):
    nodes = draw(st.integers(2, 9))
    pairs = list(itertools.combinations(range(nodes), 2))
    edges = draw(st.lists(st.sampled_from(pairs), min_size=1, unique=True))
    graph = Graph.from_edge_index(np.array(edges).T, np.ones((nodes, 3), np.float32))
    fan_out, layers = draw(st.integers(1, 4)), draw(st.integers(2, 3))
    topology = plain_topology(graph, fan_out, replace=draw(st.booleans()))
    seeds = torch.tensor(draw(st.permutations(range(nodes))))
    before = draw(st.integers(0, 999))  # places that are another process's
    batch = {"node": torch.cat([torch.zeros(before, dtype=torch.int64), seeds])}
    own = slice(before, before + nodes)
    seed = draw(st.integers(0, 2**40))
    return sample_tree(topology, batch, layers=layers, seed=seed, own=own)


@FUZZ
@given(trees(), st.integers(0, 2**40))
def test_an_edge_and_a_node_are_perturbed_once_in_a_tree(tree, seed):
    of_edges, of_nodes = {}, {}
    real = sampling.gather_mean

    def watched(x, family, *, draws, out, column, own, edges):
        found = torch.empty(len(family.children), dtype=torch.int64)
        real(x, family, draws=draws, out=out, column=column, own=own, edges=found)
        if edges is not None:
            edges.copy_(found)
        for row, u in enumerate(family.parents.tolist()):
            mine = int(family.places[row])
            mask = tuple((out[:, row, 3:] != 0).flatten().tolist())
            assert of_nodes.setdefault((mine, u), mask) == mask
            for slot in range(row * family.fan_out, (row + 1) * family.fan_out):
                v, bits = int(family.children[slot]), int(found[slot])
                assert of_edges.setdefault((mine, min(u, v), max(u, v)), bits) == bits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "gather_mean", watched)
        views = tree_views({"node": torch.ones(9, 3)}, tree, Drop(0.5, 0.5), own=True, seed=seed)
    different = len(set(of_edges.values()))
    assert different >= len(of_edges) - 1  # other edges and other seed nodes: other draws
    for number, view in enumerate(views):  # the upper levels have the same edges
        for level, shares in zip(tree, view.shares, strict=False):
            table, (share,) = level["node"], shares["node"]
            children = table.children[0].nodes.view(len(table.nodes), -1)
            weight = table.children[0].weight.view(len(table.nodes), -1)
            for row, u in enumerate(table.nodes.tolist()):
                for slot, v in enumerate(children[row].tolist()):
                    drawn = of_edges[int(table.places[row]), min(u, v), max(u, v)]
                    there = bool(weight[row, slot]) and bool(
                        kept(torch.tensor(drawn), number, threshold(0.5))
                    )
                    assert bool(share.children[row, 0, slot]) == there


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_shares_of_a_batch_have_the_views_of_the_batch(graph, parts):
    topology, batch = plain_topology(graph, 3), {"node": torch.arange(20)}

    def encoded(own):
        tree = sample_tree(topology, batch, layers=2, seed=4, own=own)
        views = tree_views(topology.x, tree, Drop(0.3, 0.3), own=True, seed=5)
        count = own.stop - own.start
        return [
            level.reshape(count, -1)
            for view in views
            for level in (
                *(one["node"] for one in view.inputs),
                *(
                    part
                    for one in view.shares
                    for part in (one["node"][0].own, one["node"][0].children)
                ),
            )
        ]

    whole = encoded(slice(0, 20))
    shares = [encoded(Share(rank, parts).rows(20)) for rank in range(parts)]
    for together, pieces in zip(whole, zip(*shares, strict=True), strict=True):
        assert torch.equal(torch.cat(pieces), together)
