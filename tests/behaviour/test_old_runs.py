"""Runs, and a checkpoint, that version 0.1.0 wrote (commit 07d8056) are read as they were."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import graphcl
from graphcl.cli.main import run
from tests.behaviour.record import arrays

OLD = Path(__file__).parents[1] / "fixtures" / "run_0_1"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A copy of the old files as the working directory, where their runs look for the graph."""
    shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def assert_rows(found, run):
    np.testing.assert_allclose(found, np.load(OLD / run / "embeddings.npy"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["mean", "residual"])
def test_an_old_run_embeds_to_the_same_numbers(here, name):
    given = graphcl.Graph.from_edge_index(**arrays(nodes=60, features=10))
    assert_rows(graphcl.GraphCL.load(here / name, device="cpu").transform(given), name)
    assert run(["embed", name, "--out", "z.npy"]) == 0
    assert_rows(np.load("z.npy"), name)


def test_old_runs_of_baselines_are_read(here):
    assert run(["embed", "dgi", "--out", "z.npy"]) == 0
    assert_rows(np.load("z.npy"), "dgi")
    assert run(["evaluate", "gcn"]) == 0


@pytest.mark.parametrize("name", ["mean", "residual"])
def test_an_old_run_is_evaluated_and_reported(here, name, capsys):
    assert run(["evaluate", name]) == 0
    assert "accuracy: 100.00 %" in capsys.readouterr().out
    assert run(["report", name, "--out", "page.html"]) == 0
    assert run(["neighbors", name, "3", "-k", "2"]) == 0


def test_an_old_run_is_known_as_complete(here, capsys):
    command = ["train", "graph.npz", "--set", "dim=8", "--set", "epochs=5", "--seed", "3"]
    assert run([*command, "--out", "mean", "--resume"]) == 0
    assert "already complete" in capsys.readouterr().err


def test_an_old_checkpoint_goes_on_to_the_same_weights(here):
    given = graphcl.Graph.from_edge_index(**arrays(nodes=60, features=10))
    model = graphcl.GraphCL(dim=8, epochs=5, seed=3, device="cpu")
    seen = []
    model.fit(given, checkpoints=here / "checkpoints", resume=True, on_epoch=seen.append)
    assert [metrics.epoch for metrics in seen] == [3, 4, 5]
    assert_rows(model.transform(given), "mean")
