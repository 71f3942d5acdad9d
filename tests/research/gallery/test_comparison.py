from dataclasses import replace

import numpy as np
import pytest
import torch

from graphcl.errors import GraphCLError
from graphcl.research.gallery import comparison
from graphcl.research.gallery.comparison import compare, embedding_methods, read_systems
from graphcl.research.trials import rows
from tests.conftest import random_graph

CPU = torch.device("cpu")
SYSTEMS = "raw,random-encoder:dim=4"


def graphs(*names):
    return {name: lambda seed=seed: random_graph(seed) for seed, name in enumerate(names)}


def run(path, systems=SYSTEMS, names=("one", "two"), seeds=range(2), **options):
    chosen = read_systems([systems])
    return compare(graphs(*names), chosen, path, seeds=seeds, device=CPU, **options)


def test_systems_are_read_with_their_settings():
    one, two, three = read_systems(["graphcl:encoder=residual,layers=1, dgi", "grace:dim=4"])
    assert (one.name, one.method) == ("graphcl:encoder=residual,layers=1", "graphcl")
    assert one.settings == {"encoder": "residual", "layers": "1"}
    assert (two.name, two.settings) == ("dgi", {})
    assert three.settings == {"dim": "4"}
    assert [system.name for system in read_systems(["raw,raw", "raw"])] == ["raw"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dgy", "unknown method 'dgy'; known: graphcl, raw, .*did you mean 'dgi'"),
        ("dgi:dym=3", "dgi: unknown field 'dym'; did you mean 'dim'"),
        ("graphcl:layer=3", "layer"),
        ("dgi:dim", "a setting is KEY=VALUE; got 'dim' in 'dgi:dim'"),
        ("gcn", "compare: gcn predicts labels itself; systems that embed: graphcl, raw"),
    ],
)
def test_what_cannot_be_compared_is_refused(text, message):
    with pytest.raises(GraphCLError, match=message):
        read_systems([text])


def test_the_systems_that_embed_are_known():
    known = embedding_methods()
    assert {"graphcl", "raw", "grace", "bgrl", "cca-ssg", "graphmae"} <= set(known)
    assert not {"gcn", "gat", "label-propagation"} & set(known)


def test_every_graph_system_and_seed_has_a_row_and_a_deterministic_system_one(tmp_path):
    found = run(tmp_path / "rows.jsonl")
    keys = [(row["graph"], row["system"], row["seed"]) for row in found]
    assert keys == [
        ("one", "raw", 0),
        ("one", "random-encoder:dim=4", 0),
        ("two", "raw", 0),
        ("two", "random-encoder:dim=4", 0),
        ("one", "random-encoder:dim=4", 1),
        ("two", "random-encoder:dim=4", 1),
    ]
    for row in found:
        assert row["metric"] == "accuracy"
        assert row["score"] == np.mean(row["split_scores"])
        assert {"train_seconds", "probe_seconds", "device", "versions", "settings"} <= row.keys()
    assert found[1]["settings"]["dim"] == 4
    assert found[1]["score"] != found[4]["score"]


def test_finished_rows_are_not_computed_again(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    first = run(path)
    monkeypatch.setattr(comparison, "train_method", None)  # any call would fail
    scores = [row["score"] for row in first]
    assert [row["score"] for row in run(path)] == scores
    assert len(rows.read(path)) == len(first)


def test_a_failure_is_kept_and_tried_again(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    train = comparison.train_method

    def broken(name, graph, **options):
        if name == "random-encoder":
            raise RuntimeError("out of\n luck")
        return train(name, graph, **options)

    with monkeypatch.context() as patch:
        patch.setattr(comparison, "train_method", broken)
        found = run(path, seeds=[0])
    assert [row.get("failed") for row in found] == [None, "RuntimeError: out of luck"] * 2
    again = run(path, seeds=[0])
    assert [row.get("failed") for row in again] == [None] * 4
    assert len(rows.read(path)) == 6


def test_a_graph_that_cannot_be_scored_is_a_failure_with_its_reason(tmp_path):
    loaders = {"blind": lambda: replace(random_graph(), y=None)}
    path = tmp_path / "rows.jsonl"
    (row,) = compare(loaders, read_systems(["raw"]), path, seeds=[0], device=CPU)
    assert row["failed"] == "random: has no labels to score by"


def test_a_budget_leaves_the_rest_for_later(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert len(run(path, budget=0.0)) == 1
    assert len(run(path)) == 6
