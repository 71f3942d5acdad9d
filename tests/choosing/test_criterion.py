import numpy as np
import pytest

from graphcl.choosing.criterion import measure, merit
from graphcl.choosing.evidence import Evidence
from graphcl.evaluation.recovery import few_shot_recovery
from tests.conftest import random_graph


def test_measures_are_those_of_the_evidence():
    evidence = Evidence.of(random_graph(num_nodes=200), seed=0)
    shown = evidence.observe(lambda graph: np.asarray(graph.x))
    found = measure(evidence, shown)
    assert found["own"] == few_shot_recovery(shown[0], evidence.own)
    assert found["around"] == few_shot_recovery(shown[0], evidence.around)
    assert 1 < found["effective_rank"] <= 12
    assert merit(found) == pytest.approx(found["own"] + found["around"])


def test_what_forgets_the_node_or_its_neighbours_has_less_merit():
    graph = random_graph(num_nodes=300)
    evidence = Evidence.of(graph, seed=0)
    own = np.asarray(graph.x, np.float32)
    around = evidence.features_around().astype(np.float32)
    noise = np.random.default_rng(0).normal(size=own.shape).astype(np.float32)

    def found(*parts):
        return merit(measure(evidence, np.concatenate(parts, axis=1)[None]))

    assert found(own, around) > max(found(own, noise), found(around, noise))
    assert min(found(own, noise), found(around, noise)) > found(noise, noise)
