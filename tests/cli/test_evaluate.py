import json

import numpy as np
import pytest

from graphcl.cli.graphs import load_graph
from graphcl.cli.main import run
from graphcl.evaluation.probe import linear_probe
from tests.cli.conftest import QUICK


def test_evaluate_one_run_and_several(trained, capsys):
    assert run(["evaluate", "runs/mine", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["accuracy"] == json.loads((trained / "result.json").read_text())["probe"]["accuracy"]
    assert run(["evaluate", "runs/mine", "--runs", "3", "--json"]) == 0
    three = json.loads(capsys.readouterr().out)
    assert set(three["accuracy"]) == {"mean", "std"}
    assert three["seeds"] == [0, 1, 2]
    assert run(["evaluate", "runs/mine", "--runs", "2", "--seed", "7"]) == 0
    assert "2 runs" in capsys.readouterr().out


def test_repeating_a_runs_own_seed_gives_its_score(trained, capsys):
    assert run(["evaluate", "runs/mine", "--seed", "0", "--json", "--device", "cpu"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (
        again["accuracy"] == json.loads((trained / "result.json").read_text())["probe"]["accuracy"]
    )


def test_all_splits_of_a_graph_are_scored(folder, arrays, capsys):
    for name in ("train_mask", "val_mask", "test_mask"):
        arrays[name] = np.stack([np.roll(arrays[name], shift) for shift in range(3)], 1)
    np.savez("several.npz", **arrays)
    assert run(["train", "several.npz", *QUICK]) == 0
    capsys.readouterr()
    assert run(["evaluate", "runs/several", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["splits"] == 3
    z = np.load("runs/several/embeddings.npy")
    graph = load_graph("several.npz")
    each = [linear_probe(z, graph.split(number)).accuracy for number in range(3)]
    assert report["accuracy"] == pytest.approx(sum(each) / 3)
    assert run(["evaluate", "runs/several"]) == 0
    assert "(test 20 nodes, 3 given splits; " in capsys.readouterr().out


def test_the_majority_is_beside_the_accuracy_and_shuffled_labels_warn(folder, arrays, capsys):
    random = np.random.default_rng(0)
    arrays["y"] = random.permutation(arrays["y"])
    np.savez("mine.npz", **arrays)
    assert run(["train", "mine.npz", *QUICK]) == 0
    capsys.readouterr()
    for more in ([], ["--runs", "2"]):
        assert run(["evaluate", "runs/mine", *more, "--json"]) == 0
        captured = capsys.readouterr()
        report = json.loads(captured.out)
        test = arrays["y"][arrays["test_mask"]]
        assert report["majority"] == pytest.approx(np.bincount(test).max() / len(test))
        assert [sign["name"] for sign in report["warnings"]] == ["majority"]
        assert "warning: the accuracy" in captured.err
        assert run(["evaluate", "runs/mine", *more]) == 0
        captured = capsys.readouterr()
        assert f"(majority {100 * report['majority']:.1f} %)" in captured.out
        assert "warning" not in captured.out
