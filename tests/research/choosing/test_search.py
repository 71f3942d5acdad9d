import json
from dataclasses import replace

import numpy as np
import pytest

from graphcl.errors import ParameterError, RunError, TrainingError
from graphcl.estimator.choice import Trial
from graphcl.recipes import load_recipe
from graphcl.research.choosing.evidence import Evidence
from graphcl.research.choosing.portfolio import Candidate
from graphcl.research.choosing.search import Trained, pick, search

BASE = load_recipe("default")
LISTED = [
    (Candidate(name, {"layers": layers}), BASE.with_values(layers=layers))
    for name, layers in (("noise", 1), ("features", 2), ("broken", 3))
]


def trial(name="a", *, own=0.0, rank=5.0, **other):
    return Trial(name, {}, {"effective_rank": rank, "own": own, "stability": 0.1}, **other)


def train(recipe, number):
    if recipe.layers == 3:
        raise ParameterError("needs the whole graph")
    if recipe.layers == 2:
        return Trained(lambda graph: np.asarray(graph.x), collapsed=False)
    random = np.random.default_rng(0)
    return Trained(lambda _: random.normal(size=(60, 12)), collapsed=False)


def test_the_highest_merit_is_picked_and_failures_are_kept(graph):
    kept = []
    evidence = Evidence.of(graph, seed=0, versions=1)
    choice = search(evidence, LISTED, train, keep=kept.append, about={"seed": 0})
    assert [one.name for one in kept] == ["noise", "features", "broken"]
    assert kept == list(choice.trials)
    assert choice.picked == 1
    assert choice.trials[2].failed == "needs the whole graph"
    assert choice.merits[2] is None
    assert choice.merits[1] > choice.merits[0]
    written = json.loads(json.dumps(choice.to_json(), allow_nan=False))
    assert written["about"] == {"seed": 0}
    assert [row["merit"] for row in written["trials"]] == list(choice.merits)
    assert choice.reason.startswith("features: merit ")
    assert choice.reason.endswith("of 3 trials; 1 failed or collapsed")


def test_known_trials_are_not_trained_again(graph):
    evidence, numbers = Evidence.of(graph, seed=0, versions=1), []

    def counted(recipe, number):
        numbers.append(number)
        return train(recipe, number)

    whole = search(evidence, LISTED, counted)
    parts = search(evidence, LISTED, counted, known=whole.trials[:2])
    assert numbers == [0, 1, 2, 2]
    assert parts.picked == whole.picked
    assert parts.merits == whole.merits
    with pytest.raises(RunError, match="the trial features was kept where noise is tried now"):
        search(evidence, LISTED, counted, known=whole.trials[1:])
    old = replace(whole.trials[0], measures={"effective_rank": 3.0, "own": 0.1, "around": 0.2})
    with pytest.raises(RunError, match="the trial noise was kept by another version of graphcl"):
        search(evidence, LISTED, counted, known=[old])


def test_the_collapsed_are_vetoed_unless_all_are():
    fine, gone = trial(own=0.1), trial(own=0.9, collapsed=True)
    assert pick([gone, fine]).picked == 1
    choice = pick([trial(rank=1.0, collapsed=True), trial("b", rank=2.0, collapsed=True)])
    assert choice.picked == 1
    assert choice.reason == "b: all 2 trials collapsed; the least of them"


def test_ties_go_to_the_first():
    assert pick([trial(), trial(), trial()]).picked == 0
    assert pick([trial(), trial(own=0.01), trial(own=0.01)]).picked == 1


def test_every_trial_failed():
    with pytest.raises(TrainingError, match="every trial failed; the last: not finite"):
        pick([Trial("a", {}, failed="other"), Trial("b", {}, failed="not finite")])
