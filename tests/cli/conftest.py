"""A small graph file, a run trained on it, and how commands are called."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from graphcl.cli.main import run
from graphcl.tabular.build import build_store
from tests.conftest import random_graph
from tests.groups import command
from tests.store.test_partition import typed_graph

PARTS_SETTINGS = {"epochs": 20, "dim": 32, "steps": 0, "batch_nodes": 32, "fan_out": 3}
PARTS_CHANGES = [f"--set={key}={value}" for key, value in PARTS_SETTINGS.items()]
QUICK = ["--set", "epochs=2", "--set", "dim=8"]


def arrays_of(graph):
    return {
        "edge_index": graph.edge_index(),
        "x": graph.x,
        "y": graph.y,
        "train_mask": graph.train_mask,
        "val_mask": graph.val_mask,
        "test_mask": graph.test_mask,
        "node_ids": np.array([f"node {n}" for n in range(graph.num_nodes)]),
    }


@pytest.fixture
def arrays(graph):
    return arrays_of(graph)


@pytest.fixture
def folder(tmp_path, monkeypatch, arrays):
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", **arrays)
    return tmp_path


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory):
    """The run that tests copy; it names its graph as they do, `mine.npz`."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        np.savez("mine.npz", **arrays_of(random_graph()))
        assert run(["train", "mine.npz", *QUICK]) == 0
    return place / "runs/mine"


@pytest.fixture
def trained(folder, trained_once, capsys):
    """A run trained on this folder's graph, to use or to break."""
    shutil.copytree(trained_once, folder / "runs/mine")
    capsys.readouterr()
    return folder / "runs/mine"


@pytest.fixture(scope="session")
def typed_parts(tmp_path_factory):
    """A typed graph, its store in two parts, and a training over them that nobody disturbs."""
    folder = tmp_path_factory.mktemp("typed-parts")
    graph = typed_graph(3, authors=40, papers=60, topics=4, edges=200)
    graph.save(folder / "typed")
    build_store(folder / "typed", out=folder / "t2", parts=2, order="as-is")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        code, _, err = command("train", "t2", "--out", "whole", *PARTS_CHANGES)
    assert code == 0, err
    assert "edges of other parts are asked for" in err
    return folder, graph


def weights(folder, name):
    """The bytes of a run's weights."""
    return (folder / name / "model.safetensors").read_bytes()


def fails(capsys, *arguments):
    """Runs a command that must fail as a user's error does; returns its one line."""
    assert run(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    last = captured.err.splitlines()[-1]
    assert last.startswith("graphcl")
    assert "Traceback" not in captured.err
    return last


def said(capsys):
    return capsys.readouterr().err.splitlines()[-1]


def call(*arguments, **changes):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | changes,
        timeout=120,
    )


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GRAPHCL_DATA", raising=False)
    return tmp_path
