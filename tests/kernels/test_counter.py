import itertools

import numpy as np
import pytest
import scipy.stats
import torch

from graphcl.kernels.counter import (
    DeviceSeed,
    Draws,
    draw,
    draw_long_word,
    kept,
    step_key,
    stream_key,
    threshold,
)
from tests.drawn import draw_long, edge_draws, ends, feature_draws, nested

EDGES, FEATURES = stream_key(0, "edges"), stream_key(0, "features")
BEYOND = 5 << 32


def test_keys_name_independent_streams():
    counter = torch.arange(100_000)
    first, second = (draw(counter, stream_key(0, name)) for name in ("a", "b"))
    assert int(first.min()) >= 0
    assert int(first.max()) < 2**32
    for draws in (first, first ^ second, (first - first.roll(1)) & 0xFFFFFFFF):
        counts = np.bincount(draws >> 24, minlength=256)
        assert scipy.stats.chisquare(counts).pvalue > 1e-4


def test_a_seed_on_a_device_has_the_keys_of_its_number():
    seed, paths = DeviceSeed(torch.device("cpu")), [("edges",), ("neighbours", 2), ("a", "b", 1)]
    seed.set(7)
    keys = [step_key(seed, *path) for path in paths]
    for number in (7, 1 << 62, 3):
        seed.set(number)  # the tensors that were given out change
        expected = [stream_key(number, *path) for path in paths]
        assert [tuple(map(int, key)) for key in keys] == expected
        assert [step_key(number, *path) for path in paths] == expected
    many = [tuple(map(int, step_key(seed, "neighbours", hop))) for hop in range(3000)]
    assert many == [stream_key(3, "neighbours", hop) for hop in range(3000)]


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.999999])
def test_thresholds_meet_their_probability(probability):
    draws = draw(torch.arange(200_000), stream_key(3, "x"))
    for view in (0, 1):
        rate = kept(draws, view, threshold(probability)).double().mean()
        assert abs(rate - (1 - probability)) < 5 * 0.5 / 200_000**0.5
    assert threshold(probability) < 65536


def even(draws):
    """Says whether each byte of the draws takes its 256 values equally often."""
    counts = [
        np.bincount((draws.flatten() >> shift) & 255, minlength=256) for shift in (0, 8, 16, 24)
    ]
    return min(scipy.stats.chisquare(count).pvalue for count in counts) > 1e-5


def of_edges(places, pairs):
    """Returns the draws of edges in the trees of seed nodes, ``[places, pairs]``."""
    low, high = torch.tensor(pairs).T
    each = places.repeat_interleave(len(pairs))
    drawn = edge_draws(each, low.repeat(len(places)), high.repeat(len(places)), EDGES)
    return drawn.view(len(places), -1)


def of_features(places, nodes, width):
    """Returns the draws of features in the trees of seed nodes, ``[places, nodes · width]``."""
    each = places.repeat_interleave(len(nodes))
    drawn = feature_draws(each, torch.tensor(nodes).repeat(len(places)), width, FEATURES)
    return drawn.view(len(places), -1)


@pytest.mark.parametrize("offset", [0, 2**31 - 20, BEYOND - 20])
def test_draws_of_edges_nodes_and_seeds_are_even(offset):
    nodes = [offset + number for number in range(40)]
    places = torch.arange(300)
    edges = of_edges(places, list(itertools.combinations(nodes, 2)))
    features = of_features(places, nodes, 20)
    for draws in (edges, features):
        assert even(draws)
        for step in (1, 2, 64):  # differences between seed nodes, and between edges or features
            assert even(draws ^ draws.roll(step, 0))
            assert even(draws ^ draws.roll(step, 1))
            assert even((draws - draws.roll(step, 1)) & 0xFFFFFFFF)
    assert even(edges ^ features[:, : edges.shape[1]])
    assert even(edges[:, :1] ^ features)


@pytest.mark.parametrize("offset", [0, BEYOND - 3])
@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_no_two_edges_features_or_views_are_correlated(offset, probability):
    nodes = [offset + number for number in range(8)]
    places, limit = torch.arange(40_000), threshold(probability)
    draws = torch.cat(
        [of_edges(places, list(itertools.combinations(nodes, 2))), of_features(places, nodes, 4)], 1
    )
    bits = torch.cat([kept(draws, view, limit) for view in (0, 1)], 1).double()
    bits = torch.cat([bits, bits.roll(1, 0)[:, :30]], 1)  # the seed node before
    deviation = (bits.mean(0) - (1 - probability)) / (probability * (1 - probability)) ** 0.5
    assert deviation.abs().max() * len(places) ** 0.5 < 5
    correlation = torch.corrcoef(bits.T).fill_diagonal_(0)
    assert correlation.abs().max() * len(places) ** 0.5 < 5.5  # of 11,175 pairs
    # Three edges of a triangle, and two edges with a feature of the node between them.
    signs = bits * 2 - 1 - (1 - 2 * probability)
    for one, two, three in ((0, 1, 7), (0, 1, 28), (0, 7, 32)):
        product = signs[:, one] * signs[:, two] * signs[:, three]
        assert product.mean().abs() / product.std() * len(places) ** 0.5 < 5


def test_both_words_of_a_number_count():
    numbers = torch.tensor([0, 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, BEYOND, 2**62 + 3])
    low = numbers[:4]
    assert torch.equal(draw_long(low, EDGES), draw(low, EDGES))
    assert len({*zip(*(word.tolist() for word in nested(numbers, EDGES)), strict=True)}) == 8
    words = [np.uint32(word) for word in EDGES]
    compiled = [int(draw_long_word(np.int64(number), *words)) for number in numbers.tolist()]
    assert compiled == draw_long(numbers, EDGES).tolist()
    steps = torch.arange(60_000) << 32
    assert even(draw_long(steps, EDGES))
    assert even(nested(steps, EDGES)[1])


def test_an_edge_has_one_draw_in_both_directions():
    one, other = torch.tensor([3, BEYOND, 5]), torch.tensor([BEYOND, 4, 2**31])
    places = torch.tensor([0, 7, 2**20])
    for orders in ((0, 0), (1, 2)):  # undirected; along the edge, and against it
        there, back = (Draws(0, 0, EDGES, EDGES, order=order) for order in orders)
        found = edge_draws(places, *ends(there, one, other), EDGES)
        assert torch.equal(found, edge_draws(places, *ends(back, other, one), EDGES))
    reverse = edge_draws(places, *ends(there, other, one), EDGES)
    assert not (found == reverse).any()  # two directed edges
