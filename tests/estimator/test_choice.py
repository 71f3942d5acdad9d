import dataclasses
import json

import numpy as np
import pytest
import torch

from graphcl.errors import GraphError, ParameterError, RunError
from graphcl.estimator import GraphCL
from graphcl.graphs.collection import GraphCollection
from graphcl.research import auto_recipe, rows
from graphcl.research.auto_recipe import Candidate
from graphcl.training import Checkpoints
from graphcl.training.checkpoints import StoppedError
from tests.conftest import random_collection

TABLE = (
    Candidate("one", {"encoder": "residual", "layers": 1}),
    Candidate("two", {"encoder": "residual", "layers": 2}),
    Candidate("three", {"temperature": 0.2}),
)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(auto_recipe, "load_portfolio", lambda: TABLE)


def auto(**other):
    return GraphCL("auto", **{"dim": 8, "epochs": 2, "budget": 4, "device": "cpu", **other})


def test_the_pick_is_trained_and_says_why(graph, tmp_path):
    model = auto().fit(graph)
    found = model.choice_
    assert [trial.name for trial in found.trials] == ["one", "two", "three"]
    picked = found.trials[found.picked]
    assert model.recipe_ == model.complete_recipe().replace(**picked.values)
    alone = GraphCL(model.recipe_, device="cpu").fit(graph)
    np.testing.assert_array_equal(alone.transform(graph), model.transform(graph))
    model.save(tmp_path / "run", graph=graph)
    written = json.loads((tmp_path / "run/choice.json").read_text())
    assert written["reason"] == found.reason
    assert [row["name"] for row in written["trials"]] == ["one", "two", "three"]
    loaded = GraphCL.load(tmp_path / "run", device="cpu")
    assert loaded.recipe_ == model.recipe_
    assert not hasattr(loaded, "choice_")
    assert not hasattr(alone, "choice_")


def test_labels_play_no_part_and_the_seed_decides(graph):
    bare = graph.replace(y=None)
    one, other, again = (auto(seed=s).fit(g) for s, g in ((0, graph), (0, bare), (1, graph)))
    measures = [[trial.measures for trial in model.choice_.trials] for model in (one, other, again)]
    assert measures[0] == measures[1] != measures[2]
    np.testing.assert_array_equal(one.transform(graph), other.transform(graph))


def test_keywords_hold_in_every_trial(graph):
    model = auto(layers=1, encoder="residual").fit(graph)
    assert model.recipe_.layers == 1
    names = [trial.name for trial in model.choice_.trials]
    assert names == ["one", "three", "drawn-1"]  # `two` comes to the same as `one`
    assert all("layers" not in trial.values for trial in model.choice_.trials)


def test_a_scaling_that_comes_to_another_is_not_tried_twice(graph, monkeypatch):
    ones = graph.replace(x=(np.asarray(graph.x) > 0).astype(np.float32))
    table = tuple(Candidate(name, {"feature_scaling": name}) for name in ("none", "row", "auto"))
    monkeypatch.setattr(auto_recipe, "load_portfolio", lambda: table)
    names = [trial.name for trial in auto(budget=3).fit(ones).choice_.trials]
    assert names == ["none", "row"]
    assert [t.name for t in auto(budget=4).fit(ones).choice_.trials][2] != "auto"


def test_an_interrupted_choice_goes_on_to_the_same_bits(graph, tmp_path):
    whole = auto().fit(graph)
    first_is_kept = (tmp_path / "choosing/trials.jsonl").exists
    with pytest.raises(StoppedError):
        auto().fit(graph, checkpoints=Checkpoints(tmp_path, stop=first_is_kept))
    kept = rows.read(tmp_path / "choosing/trials.jsonl")
    assert [trial["name"] for trial in kept] == ["one"]
    assert (tmp_path / "choosing/trial-1").is_dir()
    with pytest.raises(RunError, match="is of another training"):
        auto(budget=3).fit(graph, checkpoints=tmp_path, resume=True)
    trained = []
    model = auto()
    first = model.get_params
    model.get_params = lambda deep=True: trained.append(1) or first(deep)
    model.fit(graph, checkpoints=tmp_path, resume=True)
    assert len(trained) == 2  # the first trial was not repeated
    assert [t.measures for t in model.choice_.trials] == [t.measures for t in whole.choice_.trials]
    np.testing.assert_array_equal(model.transform(graph), whole.transform(graph))
    (tmp_path / "choosing/trials.jsonl").write_text('{"trials": 3}\n')
    with pytest.raises(RunError, match="damaged; begin anew"):
        auto().fit(graph, checkpoints=tmp_path, resume=True)


def test_a_trial_that_collapses_is_not_picked_nor_warned_of(graph, monkeypatch):
    flat = graph.replace(x=np.ones_like(graph.x))
    with pytest.warns(match="coincide|directions|loss"):  # of the last training alone: all collapse
        model = auto(epochs=6, budget=3).fit(flat)
    assert all(trial.collapsed for trial in model.choice_.trials)
    assert "all 2 trials collapsed" in model.choice_.reason


def test_bad_input_is_one_clear_message(graph, monkeypatch):
    with pytest.raises(ParameterError, match="recipe auto: budget must be at least 2; got 1"):
        auto(budget=1).fit(graph)
    with pytest.raises(GraphError, match="tissues: recipe auto needs a single graph"):
        auto().fit(random_collection())
    assert isinstance(random_collection(), GraphCollection)
    share = dataclasses.replace(auto_recipe.current_share(), world=2)
    monkeypatch.setattr(auto_recipe, "current_share", lambda: share)
    with pytest.raises(ParameterError, match="chooses in one process"):
        auto().fit(graph)


def test_progress_is_shown(graph, capsys):
    auto(verbose=True).fit(graph)
    said = capsys.readouterr().err
    assert "trial 1/3 one: effective_rank" in said
    assert "picked " in said


def test_an_own_encoder_is_kept_in_every_trial(graph):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(12, 5)

        def forward(self, x, adjacency):
            return adjacency.pool(self.linear(x))

    model = auto(encoder=Own()).fit(graph)
    assert model.transform(graph).shape == (60, 5)
    assert [trial.name for trial in model.choice_.trials][:2] == ["one", "two"]
