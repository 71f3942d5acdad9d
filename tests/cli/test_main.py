import json
import os
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet
import pytest

from graphcl.cli.main import run
from graphcl.datasets import CATALOGUE
from graphcl.estimator import GraphCL

QUICK = ["--set", "epochs=2", "--set", "dim=8"]


@pytest.fixture
def arrays(graph):
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
def folder(tmp_path, monkeypatch, arrays):
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", **arrays)
    return tmp_path


@pytest.fixture
def trained(folder, capsys):
    assert run(["train", "mine.npz", *QUICK]) == 0
    capsys.readouterr()
    return folder / "runs/mine"


def fails(capsys, *arguments):
    """Runs a command that must fail as a user's error does; returns its one line."""
    assert run(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    last = captured.err.splitlines()[-1]
    assert last.startswith("graphcl")
    assert "Traceback" not in captured.err
    return last


def test_train_writes_a_run_and_prints_the_probe(folder, capsys):
    assert run(["train", "mine.npz", *QUICK]) == 0
    captured = capsys.readouterr()
    assert "probe: accuracy" in captured.out
    assert "epoch 2/2" in captured.err
    names = {path.name for path in (folder / "runs/mine").iterdir()}
    assert names == {
        "config.toml",
        "model.safetensors",
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


def test_json_is_one_object_on_stdout(folder, capsys):
    assert run(["train", "mine.npz", "--json", "--seed", "3", *QUICK]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["seed"], result["epochs"]) == (3, 2)
    assert run(["datasets", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["datasets"]
    assert [row["name"] for row in listed] == list(CATALOGUE)
    assert listed[0]["here"] == {
        "nodes": 2708,
        "edges": 5278,
        "features": 1433,
        "classes": 7,
        "split": [140, 500, 1000],
    }


def test_datasets_prints_table_1(capsys):
    assert run(["datasets"]) == 0
    out = capsys.readouterr().out
    for text in (
        "Cora",
        "5,429 (5,278)",
        "3,707 (3,703)",
        "Reddit",
        "11,606,919",
        "151,708/23,699/55,334",
    ):
        assert text in out


def test_embed_formats_and_ids(trained, capsys):
    assert run(["embed", "runs/mine", "--out", "z.npy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "out": "z.npy",
        "graph": "mine.npz",
        "first": 0,
        "nodes": 60,
        "dim": 8,
    }
    assert np.array_equal(np.load("z.npy"), np.load("runs/mine/embeddings.npy"))
    assert run(["embed", "runs/mine", "mine.npz", "--out", "z.parquet"]) == 0
    table = pyarrow.parquet.read_table("z.parquet")
    assert table["id"].to_pylist() == [f"node {n}" for n in range(60)]
    np.testing.assert_array_equal(
        np.array(table["embedding"].to_pylist(), dtype=np.float32), np.load("z.npy")
    )


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


def test_a_graph_without_labels_trains(folder, capsys, arrays):
    np.savez("bare.npz", edge_index=arrays["edge_index"], x=arrays["x"])
    assert run(["train", "bare.npz", *QUICK]) == 0
    assert "no probe: the graph has no labels" in capsys.readouterr().out
    assert "graph has no labels" in fails(capsys, "evaluate", "runs/bare")


def test_a_graph_without_edges_trains(folder, capsys, arrays):
    np.savez("loose.npz", **arrays | {"edge_index": np.zeros((2, 0), int)})
    assert run(["train", "loose.npz", *QUICK]) == 0


def test_a_labelled_graph_without_a_split_says_it_drew_one(folder, capsys, arrays):
    np.savez("free.npz", **{key: arrays[key] for key in ("edge_index", "x", "y")})
    assert run(["train", "free.npz", *QUICK]) == 0
    assert "random split" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "coar"], "unknown dataset 'coar'; known: cora, citeseer, pubmed"),
        (["train", "absent.npz"], "absent.npz: no such file"),
        (["train", "notes.doc"], "a graph file must be an .npz"),
        (["train", "mine.npz", "--set", "edge_dorp=0.1"], "did you mean 'edge_drop'?"),
        (["train", "mine.npz", "--set", "edge_drop=1.0"], "edge_drop must be in [0, 1); got 1.0"),
        (["train", "mine.npz", "--set", "feature_drop=-1"], "feature_drop must be in [0, 1)"),
        (["train", "mine.npz", "--set", "temperature=0"], "temperature must be positive; got 0.0"),
        (["train", "mine.npz", "--set", "epochs=0"], "epochs must be at least 1; got 0"),
        (["train", "mine.npz", "--set", "epochs"], "--set takes KEY=VALUE; got 'epochs'"),
        (["train", "mine.npz", "--set", "encoder=transformer"], "unknown encoder 'transformer'"),
        (["train", "mine.npz", "--recipe", "corra"], "unknown recipe 'corra'"),
        (["train", "mine.npz", "--recipe", "absent.toml"], "cannot be read"),
        (["train", "mine.npz", "--device", "tpu"], "device must be auto, cpu, cuda or cuda:N"),
        (["train", "mine.npz", "--seed", "x"], "--seed"),
        (["train", "mine.npz", "--out", "mine.npz"], "is a file; a run is a directory"),
        (["train", "mine.npz", "--out", "/proc/run"], "cannot be written"),
        (["train", "mine.npz", "--out", "mine.npz/run"], "cannot be written"),
        (["train", "mine.npz", "--bogus"], "No such option"),
        (["train", "mine.npz", "--set", "learning_rate=1e30"], "the loss became nan"),
        (["train"], "Missing argument"),
        (["frobnicate"], "No such command"),
        (["embed", "absent", "--out", "z.npy"], "absent: no such run"),
        (["embed", "absent", "--out", "z.txt"], "must end in .npy, .parquet or .csv"),
        (["embed", "absent", "--out", "nowhere/z.npy"], "does not exist"),
        (["embed", "absent"], "--out"),
        (["evaluate", "absent"], "absent: no such run"),
        (["evaluate", "absent", "--runs", "0"], "--runs must be at least 1; got 0"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(folder, capsys, arguments, message):
    (folder / "notes.doc").touch()
    before = sorted(path.name for path in folder.iterdir())
    assert message in fails(capsys, *arguments)
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x": np.array([[1.0], [np.nan]]), "edge_index": [[0], [1]]},
            "x: nan at node 1, feature 0",
        ),
        ({"edge_index": [[0], [60]]}, "edge 0 names node 60, but the nodes are 0 to 59"),
        ({"x": np.zeros((0, 3)), "edge_index": np.zeros((2, 0), int)}, "zero nodes"),
        ({"y": np.zeros(59, int)}, "y: 59 labels for 60 nodes"),
        ({"surprise": np.zeros(3)}, "unknown array 'surprise'"),
        ({"x": np.array([{}], dtype=object)}, "holds pickled objects, which are never read"),
    ],
)
def test_bad_graph_files(folder, capsys, arrays, changes, message):
    if "x" in changes:
        arrays = {"edge_index": arrays["edge_index"]}
    np.savez("bad.npz", **arrays | changes)
    assert message in fails(capsys, "train", "bad.npz", *QUICK)
    assert not (folder / "runs").exists()


def test_truncated_and_foreign_graph_files(folder, capsys):
    whole = (folder / "mine.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    assert "not a readable .npz" in fails(capsys, "train", "cut.npz")
    (folder / "empty.npz").touch()
    assert "not a readable .npz" in fails(capsys, "train", "empty.npz")
    np.save("single.npy", np.ones(3))
    (folder / "single.npy").rename(folder / "single.npz")
    assert "is a single array" in fails(capsys, "train", "single.npz")
    np.savez("few.npz", x=np.ones((2, 2)))
    assert "has no array 'edge_index'" in fails(capsys, "train", "few.npz")


def test_an_existing_run_is_kept_unless_told_otherwise(trained, capsys):
    before = (trained / "model.safetensors").read_bytes()
    message = fails(capsys, "train", "mine.npz", "--seed", "1", *QUICK)
    assert "already holds a run; pass --overwrite" in message
    assert (trained / "model.safetensors").read_bytes() == before
    assert run(["train", "mine.npz", "--seed", "1", "--overwrite", *QUICK]) == 0
    assert (trained / "model.safetensors").read_bytes() != before


def test_existing_embeddings_are_kept_unless_told_otherwise(trained, capsys):
    assert run(["embed", "runs/mine", "--out", "z.npy"]) == 0
    assert "already exists" in fails_after(capsys, "embed", "runs/mine", "--out", "z.npy")
    assert run(["embed", "runs/mine", "--out", "z.npy", "--overwrite"]) == 0


def fails_after(capsys, *arguments):
    capsys.readouterr()
    return fails(capsys, *arguments)


def test_a_truncated_model_is_refused(trained, capsys):
    path = trained / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    message = fails(capsys, "embed", "runs/mine", "--out", "z.npy")
    assert "model.safetensors: damaged or truncated" in message
    assert not (trained.parents[1] / "z.npy").exists()


def test_feature_mismatch(trained, capsys):
    message = fails(capsys, "embed", "runs/mine", "cora", "--out", "z.npy")
    assert "cora: has 1433 features; the model was trained on 12" in message


def test_a_bug_is_one_line_and_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr("graphcl.cli.datasets._row", lambda card: 1 / 0)
    assert run(["datasets"]) == 1
    assert "bug: ZeroDivisionError" in capsys.readouterr().err


def start(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "graphcl", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_a_reader_that_leaves_is_no_error(folder):
    with start(folder, "datasets") as process:
        process.stdout.close()
        err = process.stderr.read()
    assert process.returncode == 0, err
    assert err == ""


def test_help_and_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("graphcl ")
    assert run([]) == 0
    assert "Usage" in capsys.readouterr().out
    for command in ("build", "datasets", "train", "embed", "evaluate"):
        assert run([command, "--help"]) == 0
        assert "--json" in capsys.readouterr().out


def test_a_command_starts_quickly(folder):
    start(folder, "--version").communicate(timeout=60)
    began = time.perf_counter()
    start(folder, "--version").communicate(timeout=60)
    assert time.perf_counter() - began < 10
