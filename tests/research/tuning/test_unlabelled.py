import dataclasses

import pytest
import torch

from graphcl.errors import GraphError, RunError
from graphcl.estimator import GraphCL
from graphcl.recipes import load_recipe
from graphcl.research.choosing import portfolio
from graphcl.research.choosing.portfolio import Candidate
from graphcl.research.trials import rows
from graphcl.research.tuning.search import RECIPE, TRIALS
from graphcl.research.tuning.unlabelled import UnlabelledSearch, tune_unlabelled
from tests.conftest import random_collection

BASE = load_recipe("default").with_values(dim=8, epochs=2)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    table = tuple(Candidate(f"t{t}", {"temperature": t}) for t in (0.2, 0.5, 0.8))
    monkeypatch.setattr(portfolio, "load_portfolio", lambda: table)


def search_of(data, folder, *, fixed=(), **changed):
    device = torch.device("cpu")
    return UnlabelledSearch(data, BASE.with_values(**changed), fixed, folder, 0, device)


def measures(folder):
    return [(row["number"], row["name"], row["measures"]) for row in rows.read(folder / TRIALS)]


def test_a_resumed_search_is_the_uninterrupted_one(graph, tmp_path):
    whole, recipe = tune_unlabelled(search_of(graph, tmp_path / "whole"), 3)
    tune_unlabelled(search_of(graph, tmp_path / "parts"), 2)
    path = tmp_path / "parts" / TRIALS
    path.write_bytes(path.read_bytes()[:-40])  # killed while it wrote the second
    told = []
    parts, again = tune_unlabelled(
        search_of(graph, tmp_path / "parts"), 3, on_trial=lambda number, _: told.append(number)
    )
    assert told == [2, 3]
    assert (parts.picked, again) == (whole.picked, recipe)
    assert measures(tmp_path / "parts") == measures(tmp_path / "whole")
    assert load_recipe(tmp_path / "parts" / RECIPE) == recipe
    assert whole.reason in (tmp_path / "whole" / RECIPE).read_text()


def test_it_is_the_choice_of_recipe_auto(graph, tmp_path):
    choice, recipe = tune_unlabelled(search_of(graph, tmp_path), 3)
    model = GraphCL("auto", dim=8, epochs=2, budget=4, device="cpu").fit(graph)
    assert model.recipe_ == recipe
    assert [t.measures for t in model.choice_.trials] == [t.measures for t in choice.trials]


def test_labels_play_no_part(graph, tmp_path):
    bare = dataclasses.replace(graph, y=None)
    found = [
        tune_unlabelled(search_of(g, tmp_path / str(n)), 2)[1] for n, g in enumerate((graph, bare))
    ]
    assert found[0] == found[1]
    assert measures(tmp_path / "0") == measures(tmp_path / "1")


def test_a_fixed_key_is_not_searched(graph, tmp_path):
    choice, recipe = tune_unlabelled(
        search_of(graph, tmp_path, fixed=("temperature",), temperature=0.33), 2
    )
    assert recipe.temperature == 0.33
    assert [trial.name for trial in choice.trials] == ["t0.2", "drawn-1"]


def test_what_cannot_be_is_refused(graph, tmp_path):
    tune_unlabelled(search_of(graph, tmp_path), 1)
    before = (tmp_path / TRIALS).read_bytes()
    with pytest.raises(RunError, match="another graph, recipe, seed or objective"):
        tune_unlabelled(search_of(graph, tmp_path, dim=4), 2)
    assert (tmp_path / TRIALS).read_bytes() == before
    with pytest.raises(GraphError, match="without labels, tuning needs a single graph"):
        tune_unlabelled(search_of(random_collection(), tmp_path / "several"), 1)


def test_a_search_in_which_all_fail_says_so(graph, tmp_path):
    search = search_of(graph, tmp_path, encoder="gcn", mode="sampled", fixed=("encoder", "mode"))
    with pytest.raises(RunError, match=r"every trial failed; the last: .*use mode=full"):
        tune_unlabelled(search, 1)
    assert not (tmp_path / RECIPE).exists()
