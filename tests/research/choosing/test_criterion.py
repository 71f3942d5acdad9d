import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from graphcl.evaluation.agreement import linear_cka
from graphcl.evaluation.recovery import few_shot_recovery
from graphcl.research.choosing.criterion import MEASURES, VERSIONS, measure, merits
from graphcl.research.choosing.evidence import Evidence
from tests.conftest import random_graph


def test_measures_are_those_of_the_evidence():
    evidence = Evidence.of(random_graph(num_nodes=200), seed=0, versions=VERSIONS)
    shown = evidence.observe(lambda graph: np.asarray(graph.x))
    found = measure(evidence, shown)
    assert set(found) == set(MEASURES)
    assert found["own"] == few_shot_recovery(shown[0], evidence.own)
    expected = np.mean([linear_cka(shown[0], version) for version in shown[1:]])
    assert found["stability"] == pytest.approx(expected)
    assert 1 < found["effective_rank"] <= 12


def test_merits_are_mean_ranks():
    low, high = dict.fromkeys(MEASURES, 0.1), dict.fromkeys(MEASURES, 0.9)
    mixed = {"effective_rank": 0.5, "own": 0.1, "stability": 0.95}
    # ranks: 1, 3, 2; 1.5, 3, 1.5; 1, 2, 3
    assert merits([low, high, mixed]) == pytest.approx([3.5 / 9, 8 / 9, 6.5 / 9])
    assert merits([low]) == [1.0]
    assert merits([low, low]) == [0.75, 0.75]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_ranks_are_those_of_scipy(values):
    assert merits([dict.fromkeys(MEASURES, one) for one in values]) == pytest.approx(
        rankdata(values) / len(values)
    )


def test_noise_copies_and_coarse_clusters_come_after_what_is_rich_and_knows_and_lasts():
    graph = random_graph(num_nodes=300)
    evidence = Evidence.of(graph, seed=0, versions=VERSIONS)
    random = np.random.default_rng(0)
    mix = random.normal(size=(graph.num_features, 24)).astype(np.float32)

    def good(one):  # features and what is around them
        links = np.zeros((one.num_nodes, one.num_nodes), np.float32)
        links[tuple(one.edge_index())] = 1
        mean = links @ one.x / np.maximum(links.sum(axis=1, keepdims=True), 1)
        return np.concatenate([one.x, mean], axis=1)

    def noise(one):  # another one each time
        return random.normal(size=(one.num_nodes, 24))

    def coarse(one):
        return np.concatenate([good(one)[:, :1]] * 24, axis=1)

    def scrambled(one):  # few directions of the features, and much else
        return np.tanh(20 * one.x @ mix + random.normal(size=24))

    found = merits(
        [measure(evidence, evidence.observe(e)) for e in (noise, good, coarse, scrambled)]
    )
    assert found[1] == max(found)
