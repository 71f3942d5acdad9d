"""The commands on a dataset of several graphs: a PPI of 24 tiny ones."""

import json
from importlib import import_module

import numpy as np
import pytest

from graphcl.cli.main import run
from graphcl.datasets import load_dataset
from graphcl.datasets.ppi import PREPARED_NOTE
from graphcl.estimator.model import GraphCL
from graphcl.evaluation.probe import linear_probe
from tests.datasets.test_ppi import NODES, small_ppi

QUICK = ["--set", "epochs=2", "--set", "dim=8", "--probe-steps", "20", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRAPHCL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data/ppi").mkdir(parents=True)
    np.savez(tmp_path / "data/ppi/ppi.npz", **small_ppi())
    return tmp_path


@pytest.fixture
def trained(folder, capsys):
    assert run(["train", "ppi", *QUICK]) == 0
    capsys.readouterr()
    return folder / "runs/ppi"


def test_train_ends_with_micro_f1_on_unseen_graphs_and_the_note(folder, capsys):
    assert run(["train", "ppi", *QUICK]) == 0
    captured = capsys.readouterr()
    assert "recipe ppi;" in captured.err
    assert "24 self-loops removed" in captured.err
    assert "probe: micro-F1 0." in captured.out
    assert "test 12 nodes, given split" in captured.out
    assert "20 steps of full-batch Adam" in captured.out
    assert f"note: {PREPARED_NOTE}" in captured.out
    result = json.loads((folder / "runs/ppi/result.json").read_text())
    assert result["note"] == PREPARED_NOTE
    assert result["probe"]["nodes"] == [20 * NODES, 2 * NODES, 2 * NODES]
    assert result["probe"]["steps"] == 20
    assert result["graph"]["nodes"] == 24 * NODES
    z = np.load(folder / "runs/ppi/embeddings.npy")
    collection = load_dataset("ppi")
    model = GraphCL.load("runs/ppi", device="cpu")
    assert np.array_equal(z, np.concatenate(model.transform(collection)))
    score = linear_probe(z, collection, steps=20, device="cpu")
    assert score.micro_f1 == result["probe"]["micro_f1"]


def test_evaluate(trained, capsys):
    probe = json.loads((trained / "result.json").read_text())["probe"]
    quick = ["--probe-steps", "20", "--device", "cpu"]
    assert run(["evaluate", "runs/ppi", "--json", *quick]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["micro_f1"] == probe["micro_f1"]
    assert one["note"] == PREPARED_NOTE
    assert run(["evaluate", "runs/ppi", "--runs", "2", "--json", *quick]) == 0
    two = json.loads(capsys.readouterr().out)
    assert set(two["micro_f1"]) == set(two["val_micro_f1"]) == {"mean", "std"}
    assert "val_accuracy" not in two
    assert (two["steps"], two["note"]) == (20, PREPARED_NOTE)
    assert run(["evaluate", "runs/ppi", "--runs", "2", *quick]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("micro-F1 0.")
    assert "(2 runs; test " in captured.out
    assert "given split; trained on " in captured.out
    assert "; 20 steps of " in captured.out
    assert f"note: {PREPARED_NOTE}" in captured.out
    assert "run 2/2: seed 1  micro-F1 0." in captured.err


def test_repeating_a_runs_own_seed_gives_its_score(trained, capsys):
    probe = json.loads((trained / "result.json").read_text())["probe"]
    arguments = ["--seed", "0", "--json", "--probe-steps", "20", "--device", "cpu"]
    assert run(["evaluate", "runs/ppi", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["micro_f1"] == probe["micro_f1"]


def test_embed_all_graphs_or_an_unseen_one(trained, capsys):
    assert run(["embed", "runs/ppi", "--out", "z.npy", "--device", "cpu"]) == 0
    z = np.load("z.npy")
    assert np.array_equal(z, np.load(trained / "embeddings.npy"))
    graph = load_dataset("ppi").test[1]
    np.savez("unseen.npz", edge_index=graph.edge_index(), x=graph.x)
    assert run(["embed", "runs/ppi", "unseen.npz", "--out", "one.npy", "--device", "cpu"]) == 0
    np.testing.assert_allclose(np.load("one.npy"), z[-NODES:], atol=1e-6)
    assert "6 embeddings of 8 numbers" in capsys.readouterr().out


def test_datasets_shows_ppi_and_our_figures(folder, capsys):
    assert run(["datasets"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "PPI" in line)
    assert "818,716 (48)" in line
    assert "44,906 (120)/6,154 (12)/5,524 (12)" in line
    assert line.rstrip().endswith("yes")
    (folder / "data/ppi/ppi.npz").write_bytes(b"")
    assert run(["datasets"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "PPI" in line)
    assert line.rstrip().endswith("damaged")


def test_ppi_that_cannot_be_had_is_one_line(folder, capsys, monkeypatch):
    (folder / "data/ppi/ppi.npz").unlink()

    def fail(*_args, **_keywords):
        raise OSError("no network")

    monkeypatch.setattr("graphcl.datasets.ppi.fetch_zip", fail)
    assert run(["train", "ppi", *QUICK]) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1
    assert "could not be loaded" in err[0]
    assert "no network" in err[0]


def test_ctrl_c_in_the_probe_keeps_the_training(folder, capsys, monkeypatch):
    def interrupt(*_args, **_keywords):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("graphcl.cli.train.probe", interrupt)
        assert run(["train", "ppi", *QUICK]) == 130
    assert "saved in runs/ppi.partial" in capsys.readouterr().err
    assert [path.name for path in (folder / "runs").iterdir()] == ["ppi.partial"]
    with monkeypatch.context() as patched:
        patched.setattr(
            import_module("graphcl.losses.nt_xent"), "nt_xent", interrupt
        )  # no step left
        assert run(["train", "ppi", "--resume", *QUICK]) == 0
    assert len(GraphCL.load("runs/ppi").history_) == 2
    assert [path.name for path in (folder / "runs").iterdir()] == ["ppi"]


def test_a_bad_number_of_steps(folder, capsys):
    assert run(["train", "ppi", "--probe-steps", "0"]) == 2
    assert "--probe-steps" in capsys.readouterr().err
