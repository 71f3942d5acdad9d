"""Smoothing: against plain loops, and where it should and should not be."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse

from graphcl.evaluation.calibration import fit_calibrated
from graphcl.evaluation.smoothing import HOPS, PRIOR, STRENGTHS, Around, Smoothing, hops, weigh_hops


def means_of(graph):
    """The mean over neighbours; of a node without any, itself."""
    table = np.zeros((len(graph), len(graph)), np.float32)
    for node in graph:
        near = list(graph[node]) or [node]
        for one in near:
            table[node, one] = 1 / len(near)
    return scipy.sparse.csr_array(table)


def test_hops_and_their_weights_are_those_of_plain_loops():
    random = np.random.default_rng(0)
    graph = nx.gnm_random_graph(20, 25, seed=0)
    means, p = means_of(graph), random.dirichlet(np.ones(3), 20)
    rows, y = np.array([3, 5, 11, 3]), np.array([0, 2, 1, 0])  # node 3 was held out twice
    found = hops(means, p, rows)
    table, power = means.toarray(), p
    expected = np.zeros(len(STRENGTHS))
    for k in range(HOPS + 1):
        np.testing.assert_allclose(found[k], power[rows], rtol=1e-5)
        power = table @ power
    for place, strength in enumerate(STRENGTHS):
        for row, label in enumerate(y):
            smoothed = strength**HOPS * found[HOPS, row, label]
            for k in range(HOPS):
                smoothed += (1 - strength) * strength**k * found[k, row, label]
            expected[place] += np.log(smoothed) * (0.5 if rows[row] == 3 else 1)
    weight = PRIOR * np.exp(expected)
    weight /= weight.sum()
    shares = [
        sum(w * (1 - a) * a**k for w, a in zip(weight, STRENGTHS, strict=True)) for k in range(HOPS)
    ]
    shares.append(sum(w * a**HOPS for w, a in zip(weight, STRENGTHS, strict=True)))
    got = weigh_hops([(rows, found, np.eye(3, dtype=int)[y])], False)
    np.testing.assert_allclose(got, shares, rtol=1e-5)
    assert got.sum() == pytest.approx(1)
    whole = Smoothing.of(got, means, p.astype(np.float32))
    every = hops(means, p, np.arange(20))
    np.testing.assert_allclose(
        whole.smooth(p, means @ whole.near), np.einsum("k,kno->no", got, every), rtol=1e-4
    )


def drawn(seed, homophily):
    """A graph whose edges join equal classes or any, and rows that say little of the class."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, 400)
    graph = nx.Graph()
    graph.add_nodes_from(range(400))
    while graph.number_of_edges() < 1200:
        one, other = random.integers(0, 400, 2)
        if one != other and (random.random() > homophily or y[one] == y[other]):
            graph.add_edge(one, other)
    z = (random.normal(size=(400, 4)) + 0.5 * (2 * y[:, None] - 1) * (np.arange(4) == 0)).astype(
        np.float32
    )
    return y, graph, z


@pytest.mark.parametrize("several", [False, True])
def test_where_neighbours_are_alike_it_helps_and_elsewhere_it_stays_away(several):
    found = {}
    for homophily in (0.9, 0.0):
        y, graph, z = drawn(0, homophily)
        targets, rows = np.eye(2, dtype=np.int64)[y], np.arange(0, 400, 4)
        around = Around({"z": z}, rows, means_of(graph))
        how = {"several": several, "around": around}
        probe = fit_calibrated({"z": z[rows]}, targets[rows], **how)
        alone = fit_calibrated({"z": z[rows]}, targets[rows], several=several)
        smooth, p = probe.smoothing(around, targets[rows]), probe.probabilities({"z": z})
        others = np.setdiff1d(np.arange(400), rows)
        if smooth is not None:
            p = smooth.smooth(p, around.means @ smooth.near)
        right = (p.argmax(axis=1) == y)[others].mean()
        plain = (alone.probabilities({"z": z}).argmax(axis=1) == y)[others].mean()
        found[homophily] = (
            probe.shares[0],
            right - plain,
            probe.error.log_loss,
            right,
            probe.error,
        )
        assert abs(probe.error.accuracy - right) < 0.1  # what it says of itself holds for others
        assert probe.error.log_loss < alone.error.log_loss + 0.02
    assert found[0.9][0] < 0.6
    assert found[0.9][1] > 0.05
    assert found[0.0][0] > 0.6
    assert found[0.0][1] > -0.03


@pytest.mark.parametrize("several", [False, True])
def test_a_nodes_own_label_does_not_come_back_over_its_neighbours(monkeypatch, several):
    from graphcl.evaluation import folds

    y, graph, z = drawn(1, 0.9)
    rows = np.arange(0, 400, 10)
    monkeypatch.setattr(folds, "deal", lambda *_: np.arange(40) % 5)
    monkeypatch.setattr(folds, "MORE_FOLDS", 5)
    around, targets = Around({"z": z}, rows, means_of(graph)), np.eye(2, dtype=np.int64)[y[rows]]
    how = {"several": several, "around": around}
    before = fit_calibrated({"z": z[rows]}, targets, **how).held_out
    for node in (0, 17):
        other = targets.copy()
        other[node] = other[node][::-1]
        after = fit_calibrated({"z": z[rows]}, other, **how).held_out
        np.testing.assert_allclose(after[node], before[node], atol=1e-5)
        assert np.abs(np.delete(after - before, node, axis=0)).max() > 1e-3
