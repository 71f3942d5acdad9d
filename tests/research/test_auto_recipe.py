import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from graphcl.errors import GraphError, ParameterError, RecipeError, RunError, TrainingError
from graphcl.estimator import GraphCL
from graphcl.estimator.choice import Trial
from graphcl.recipes import load_recipe
from graphcl.recipes.recipe import recipe_keys
from graphcl.research import auto_recipe, rows
from graphcl.research.auto_recipe import (
    Candidate,
    Trained,
    candidates,
    load_portfolio,
    pick,
    search,
    tune_unlabelled,
)
from graphcl.research.evidence import Evidence
from graphcl.research.tuning import RECIPE, TRIALS
from tests.conftest import random_collection

BASE = load_recipe("default")
LISTED = [
    (Candidate(name, {"layers": layers}), BASE.replace(layers=layers))
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


def test_the_shipped_table_holds_recipes():
    listed = load_portfolio()
    assert len(listed) >= 9
    assert len({one.name for one in listed}) == len(listed)
    for candidate in listed:
        assert candidate.values.keys() <= set(recipe_keys())
        BASE.replace(**candidate.values)  # every value is allowed


def test_candidates_are_the_table_s_first_and_differ(monkeypatch):
    listed = [("a", {}), ("b", {"layers": 1}), ("c", {"layers": 2}), ("d", {"layers": 1, "dim": 8})]
    table = tuple(Candidate(name, values) for name, values in listed)
    monkeypatch.setattr(auto_recipe, "load_portfolio", lambda: table)
    assert BASE.layers == 2  # so `c` comes to the same as `a`
    found = candidates(BASE, 3)
    assert [candidate.name for candidate, _ in found] == ["a", "b", "d"]
    assert [recipe for _, recipe in found] == [
        BASE,
        BASE.replace(layers=1),
        BASE.replace(layers=1, dim=8),
    ]
    assert [one.name for one, _ in candidates(BASE, 3, fixed=["dim"])] == ["a", "b", "drawn-1"]
    (fixed, recipe) = candidates(BASE, 2, fixed=["layers"])[1]
    assert (fixed.values, recipe.layers, recipe.dim) == ({"dim": 8}, 2, 8)


def test_beyond_the_table_recipes_are_drawn_and_more_of_them_keep_the_first():
    few, many = candidates(BASE, 5, seed=3), candidates(BASE, 40, seed=3)
    assert many[:5] == few
    recipes = [recipe for _, recipe in many]
    assert len(set(recipes)) == 40
    assert candidates(BASE, 40, seed=4)[:5] == few
    assert [r for _, r in candidates(BASE, 40, seed=4)] != recipes


def test_there_may_be_nothing_left_to_try():
    alone = candidates(BASE, 50, fixed=recipe_keys())
    assert [recipe for _, recipe in alone] == [BASE]


def test_what_trains_alike_is_tried_once():
    def same(recipe):
        return recipe.replace(feature_scaling="none")

    recipes = [same(recipe) for _, recipe in candidates(BASE, 12, same=same)]
    assert len(set(recipes)) == 12


def test_an_unknown_key_is_refused(monkeypatch):
    class Text:
        def __truediv__(self, name):
            return self

        def read_text(self):
            return '[[trial]]\nname = "a"\nlayer = 1\n'

    monkeypatch.setattr(auto_recipe.resources, "files", lambda _: Text())
    with pytest.raises(RecipeError, match=r"portfolio\.toml: a: unknown key 'layer'"):
        load_portfolio()


BASE_OF_UNLABELLED = load_recipe("default").replace(dim=8, epochs=2)


@pytest.fixture
def short(monkeypatch):
    table = tuple(Candidate(f"t{t}", {"temperature": t}) for t in (0.2, 0.5, 0.8))
    monkeypatch.setattr(auto_recipe, "load_portfolio", lambda: table)


def search_of(data, folder, *, fixed=(), **changed):
    options = {"fixed": fixed, "folder": folder, "seed": 0, "device": torch.device("cpu")}
    return partial(tune_unlabelled, data, BASE_OF_UNLABELLED.replace(**changed), **options)


def measures(folder):
    return [(row["number"], row["name"], row["measures"]) for row in rows.read(folder / TRIALS)]


def test_a_resumed_search_is_the_uninterrupted_one(graph, tmp_path, short):
    whole, recipe = search_of(graph, tmp_path / "whole")(3)
    search_of(graph, tmp_path / "parts")(2)
    path = tmp_path / "parts" / TRIALS
    path.write_bytes(path.read_bytes()[:-40])  # killed while it wrote the second
    told = []
    parts, again = search_of(graph, tmp_path / "parts")(
        3, on_trial=lambda _, *number: told.append(number)
    )
    assert told == [(2, 3), (3, 3)]
    assert (parts.picked, again) == (whole.picked, recipe)
    assert measures(tmp_path / "parts") == measures(tmp_path / "whole")
    assert load_recipe(tmp_path / "parts" / RECIPE) == recipe
    assert whole.reason in (tmp_path / "whole" / RECIPE).read_text()


def test_it_is_the_choice_of_recipe_auto(graph, tmp_path, short):
    choice, recipe = search_of(graph, tmp_path)(3)
    model = GraphCL("auto", dim=8, epochs=2, budget=4, device="cpu").fit(graph)
    assert model.recipe_ == recipe
    assert [t.measures for t in model.choice_.trials] == [t.measures for t in choice.trials]


def test_labels_play_no_part(graph, tmp_path, short):
    bare = graph.replace(y=None)
    found = [search_of(g, tmp_path / str(n))(2)[1] for n, g in enumerate((graph, bare))]
    assert found[0] == found[1]
    assert measures(tmp_path / "0") == measures(tmp_path / "1")


def test_a_fixed_key_is_not_searched(graph, tmp_path, short):
    search = search_of(graph, tmp_path, fixed=("temperature",), temperature=0.33)
    choice, recipe = search(2)
    assert recipe.temperature == 0.33
    assert [trial.name for trial in choice.trials] == ["t0.2", "drawn-1"]


def test_what_cannot_be_is_refused(graph, tmp_path, short):
    search_of(graph, tmp_path)(1)
    before = (tmp_path / TRIALS).read_bytes()
    with pytest.raises(RunError, match="another graph, recipe, seed or objective"):
        search_of(graph, tmp_path, dim=4)(2)
    assert (tmp_path / TRIALS).read_bytes() == before
    with pytest.raises(GraphError, match="without labels, tuning needs a single graph"):
        search_of(random_collection(), tmp_path / "several")(1)


def test_a_search_in_which_all_fail_says_so(graph, tmp_path, short):
    search = search_of(graph, tmp_path, encoder="gcn", mode="sampled", fixed=("encoder", "mode"))
    with pytest.raises(RunError, match=r"every trial failed; the last: .*use mode=full"):
        search(1)
    assert not (tmp_path / RECIPE).exists()
