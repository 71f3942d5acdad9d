"""`graphcl train`: what it writes, and what it refuses."""

import json
import os

import numpy as np
import pytest

from graphcl.cli.main import run
from graphcl.estimator import GraphCL
from tests.cli.conftest import QUICK, fails, said


def test_a_run_has_a_name(folder, capsys):
    assert run(["train", "mine.npz", *QUICK, "--out", "."]) == 2
    assert said(capsys) == "graphcl: .: a run is a new folder; give it a name"


def test_weights_that_do_not_fit_are_refused(folder, capsys, monkeypatch):
    monkeypatch.setattr("graphcl.training.modes.available_memory_bytes", lambda _: 10**9)
    assert run(["train", "mine.npz", "--set", "dim=65536", "--out", "run"]) == 2
    assert said(capsys).endswith("the encoder's weights alone do not fit; set a smaller dim")


def test_a_name_that_is_not_utf8_is_refused_at_once(folder, capsys):
    name = os.fsdecode(b"\xffmine.npz")
    (folder / "mine.npz").rename(folder / name)
    assert run(["train", name, *QUICK]) == 2
    assert said(capsys).endswith("a name that is not UTF-8; rename it")


def test_half_a_split_gives_no_score_and_a_report_draws_none(folder, graph, capsys):
    train = np.arange(graph.num_nodes) < 20
    np.savez("half.npz", edge_index=graph.edge_index(), x=graph.x, y=graph.y, train_mask=train)
    assert run(["train", "half.npz", *QUICK, "--out", "run"]) == 0
    assert "no probe: probe: train nodes are given, validation and test" in capsys.readouterr().out
    kept = np.load("run/nodes.npz")["split"]
    assert np.array_equal(kept == 1, train)
    assert set(kept) == {0, 1}


def test_train_writes_a_run_and_prints_the_probe(folder, capsys):
    assert run(["train", "mine.npz", *QUICK]) == 0
    captured = capsys.readouterr()
    assert "probe: accuracy" in captured.out
    assert "epoch 2/2" in captured.err
    names = {path.name for path in (folder / "runs/mine").iterdir()}
    assert names == {
        "config.toml",
        "model.safetensors",
        "scaling.safetensors",
        "metrics.jsonl",
        "embeddings.npy",
        "result.json",
        "nodes.npz",
    }
    result = json.loads((folder / "runs/mine/result.json").read_text())
    assert result["status"] == "complete"
    assert 0 <= result["probe"]["accuracy"] <= 1
    assert {"seed", "versions", "train_seconds", "peak_memory_bytes"} <= result.keys()
    z = np.load(folder / "runs/mine/embeddings.npy")
    assert np.array_equal(z, GraphCL.load("runs/mine").transform(_graph(folder)))
    assert [path.name for path in (folder / "runs").iterdir()] == ["mine"]


def _graph(folder):
    from graphcl.cli._shared.graphs import load_graph

    return load_graph(str(folder / "mine.npz"))


def test_a_file_named_like_a_dataset_gets_the_default_recipe(folder, capsys):
    (folder / "mine.npz").rename(folder / "citeseer.npz")
    assert run(["train", "citeseer.npz", *QUICK, "--json"]) == 0
    captured = capsys.readouterr()
    assert "recipe default" in captured.err
    assert json.loads(captured.out)["mode"]["name"] == "full"


def test_a_graph_without_labels_trains(folder, capsys, arrays):
    np.savez("bare.npz", edge_index=arrays["edge_index"], x=arrays["x"])
    assert run(["train", "bare.npz", *QUICK]) == 0
    assert "no probe: the graph has no labels" in capsys.readouterr().out
    assert "graph has no labels" in fails(capsys, "evaluate", "runs/bare")


def test_a_graph_without_edges_trains(folder, capsys, arrays):
    np.savez("loose.npz", **arrays | {"edge_index": np.zeros((2, 0), int)})
    assert run(["train", "loose.npz", *QUICK]) == 0


def test_a_labelled_graph_without_a_split_says_what_it_did(folder, capsys, arrays):
    np.savez("free.npz", **{key: arrays[key] for key in ("edge_index", "x", "y")})
    assert run(["train", "free.npz", *QUICK]) == 0
    assert "60 labelled nodes, each held out in one of 10 folds" in capsys.readouterr().out


def test_an_existing_run_is_kept_unless_told_otherwise(trained, capsys):
    before = (trained / "model.safetensors").read_bytes()
    message = fails(capsys, "train", "mine.npz", "--seed", "1", *QUICK)
    assert "already holds a run; pass --overwrite" in message
    assert (trained / "model.safetensors").read_bytes() == before
    assert run(["train", "mine.npz", "--seed", "1", "--overwrite", *QUICK]) == 0
    assert (trained / "model.safetensors").read_bytes() != before


def test_tensorboard_curves_end_up_in_the_run(folder, capsys):
    assert run(["train", "mine.npz", *QUICK, "--log", "tensorboard"]) == 0
    assert "tensorboard --logdir" in capsys.readouterr().err
    assert len(list((folder / "runs/mine/tensorboard").iterdir())) == 1
    assert [path.name for path in (folder / "runs").iterdir()] == ["mine"]
    wild = ["--set", "learning_rate=1e30", "--log", "tensorboard", "--overwrite"]
    assert run(["train", "mine.npz", *QUICK, *wild]) == 2
    assert [path.name for path in (folder / "runs").iterdir()] == ["mine"]


def constant(folder, y):
    """Writes a graph whose features say nothing."""
    random = np.random.default_rng(0)
    np.savez("flat.npz", edge_index=random.integers(0, 90, (2, 200)), x=np.ones((90, 4)), y=y)


def test_a_training_that_failed_says_so_on_stderr_and_in_its_result(folder, capsys):
    constant(folder, np.random.default_rng(1).integers(0, 3, 90))
    plain = ["encoder=mean", "feature_scaling=row", "side_by_side=false", "own_features=0"]
    settings = ["epochs=6", "dim=8", "normalisation=none", *plain]
    command = [
        "train",
        "flat.npz",
        *(word for one in settings for word in ("--set", one)),
        "--json",
    ]
    assert run(command) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert [sign["name"] for sign in result["warnings"]] == ["loss", "collapse", "majority"]
    assert captured.err.count("warning: ") == 3
    assert captured.err.count("\n  try ") == 3
    assert "TrainingWarning" not in captured.err
    assert result["mean_cosine"] == pytest.approx(1)
    assert result["effective_rank"] == pytest.approx(1, abs=0.01)
    assert json.loads((folder / "runs/flat/result.json").read_text()) == result
    assert run([*command, "--resume"]) == 0  # the run is there: it is read, not trained
    assert json.loads(capsys.readouterr().out) == result
    assert run([*command, "--overwrite", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert len(json.loads(captured.out)["warnings"]) == 3


@pytest.mark.parametrize("y", [np.zeros(90, int), np.full(90, -1)])
def test_without_classes_to_tell_apart_the_other_signs_stay(folder, capsys, y):
    constant(folder, y)
    assert run(["train", "flat.npz", "--set", "epochs=6", "--set", "dim=8", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["probe"] is None
    assert [sign["name"] for sign in result["warnings"]] == ["loss", "collapse"]


def test_a_training_that_learned_says_nothing(folder, capsys):
    longer = ["--set", "epochs=40", "--set", "dim=32", "--set", "learning_rate=0.01"]
    assert run(["train", "mine.npz", *longer, "--set", "feature_scaling=none"]) == 0
    captured = capsys.readouterr()
    assert "warning" not in captured.err
    result = json.loads((folder / "runs/mine/result.json").read_text())
    assert result["warnings"] == []
    assert f"(majority {100 * result['probe']['majority']:.1f} %)" in captured.out


def test_another_system_keeps_the_facts_too(folder, capsys):
    assert run(["train", "mine.npz", "--method", "raw", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["effective_rank"] > 1
    assert -1 <= result["mean_cosine"] <= 1
    assert result["warnings"] == []
    assert 0 < result["scores"]["majority"] < 1


def test_a_run_of_an_earlier_version_has_no_facts_and_is_read(folder, capsys):
    assert run(["train", "mine.npz", *QUICK, "--json"]) == 0
    path = folder / "runs/mine/result.json"
    old = json.loads(path.read_text())
    for name in ("effective_rank", "mean_cosine", "warnings"):
        del old[name]
    del old["probe"]["majority"], old["probe"]["roc_auc"]
    path.write_text(json.dumps(old))
    capsys.readouterr()
    assert run(["train", "mine.npz", *QUICK, "--resume"]) == 0
    captured = capsys.readouterr()
    assert "majority" not in captured.out
    assert "already complete" in captured.err
    assert run(["report", "runs/mine", "--map", "pca"]) == 0
    assert "Effective rank" in (folder / "runs/mine/report.html").read_text()


def test_recipe_auto_writes_what_was_tried_and_is_found_again(here, graph, capsys):
    np.savez("mine.npz", edge_index=graph.edge_index(), x=graph.x, y=graph.y)
    command = ["train", "mine.npz", "--recipe", "auto", "--budget", "3", *QUICK]
    assert run([*command, "--json"]) == 0
    captured = capsys.readouterr()
    assert "trial 2/2" in captured.err
    result = json.loads(captured.out)
    written = json.loads((here / "runs/mine/choice.json").read_text())
    assert result["choice"]["reason"] == written["reason"]
    assert result["choice"]["trials"] == len(written["trials"]) == 2
    assert not (here / "runs/mine.partial").exists()
    assert run([*command, "--resume"]) == 0
    captured = capsys.readouterr()
    assert "already complete" in captured.err
    assert "trial 1/2" not in captured.err
    assert captured.out.startswith("recipe: ")
    assert run([*command[:-1], "dim=5", "--resume"]) == 2  # another choice than the one there
    assert "already holds a run" in capsys.readouterr().err
    assert run(["train", "mine.npz", "--recipe", "auto", "--set", "nonsense=1"]) == 2
    assert "unknown key 'nonsense'" in capsys.readouterr().err
    assert run(["train", "mine.npz", "--budget", "3"]) == 2
    assert "--budget must be left out without --recipe auto; got 3" in capsys.readouterr().err
    assert run(["train", "mine.npz", "--recipe", "auto", "--processes", "2"]) == 2
    assert "--processes must be 1 with --recipe auto" in capsys.readouterr().err
