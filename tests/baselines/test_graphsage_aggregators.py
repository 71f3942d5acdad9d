import pytest
import torch
from torch.nn.functional import relu

from graphcl.baselines.graphsage_aggregators import build_aggregators


@pytest.fixture
def rows():
    draws = torch.Generator().manual_seed(1)
    return torch.randn(7, 5, generator=draws), torch.randn(7, 3, 5, generator=draws)


def layer(name):
    draws = torch.Generator().manual_seed(0)
    layers = build_aggregators(name, 5, dim=4, layers=2, pool_dim=6, lstm_dim=3, generator=draws)
    assert len(layers) == 2
    return layers[0]


def each(own, around, formula):
    return torch.stack([formula(own[n], list(around[n])) for n in range(len(own))])


def test_gcn_is_the_mean_with_the_node_itself(rows):
    gcn = layer("gcn")
    plain = each(*rows, lambda h, near: (h + sum(near)) / 4 @ gcn.weight)
    torch.testing.assert_close(gcn(*rows), plain)


def test_mean_keeps_the_node_beside_its_neighbours(rows):
    mean = layer("mean")
    plain = each(*rows, lambda h, near: torch.cat([h @ mean.own, sum(near) / 3 @ mean.weight]))
    torch.testing.assert_close(mean(*rows), plain)


def test_pool_is_the_maximum_of_a_small_network(rows):
    pool = layer("pool")
    with torch.no_grad():
        pool.pool_bias.normal_()

    def formula(h, near):
        hidden = torch.stack([relu(n @ pool.pool + pool.pool_bias) for n in near])
        return torch.cat([h @ pool.own, hidden.max(0).values @ pool.weight])

    torch.testing.assert_close(pool(*rows), each(*rows, formula))


def test_lstm_reads_the_neighbours_in_their_order(rows):
    lstm = layer("lstm")
    own, around = rows
    w_in, w_state = lstm.lstm.weight_ih_l0, lstm.lstm.weight_hh_l0

    def formula(h, near):
        state = cell = torch.zeros(3)
        for n in near:
            i, f, g, o = (w_in @ n + w_state @ state).split(3)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            state = torch.sigmoid(o) * torch.tanh(cell)
        return torch.cat([h @ lstm.own, state @ lstm.weight])

    torch.testing.assert_close(lstm(own, around), each(own, around, formula))
    assert not torch.allclose(lstm(own, around), lstm(own, around.flip(1)))


@pytest.mark.parametrize("name", ["gcn", "mean", "lstm", "pool"])
def test_the_generator_alone_decides_the_weights(name):
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, second = layer(name), layer(name)
    assert torch.equal(torch.random.get_rng_state(), before)
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
