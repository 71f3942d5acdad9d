"""What a command must not do: lose files, take one graph for another, end without a word."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from graphcl.cli.main import run

QUICK = ["--set", "epochs=2", "--set", "dim=4"]


@pytest.fixture
def folder(tmp_path, monkeypatch, graph):
    monkeypatch.chdir(tmp_path)
    write(graph)
    return tmp_path


def write(graph, shift=0.0):
    np.savez("mine.npz", edge_index=graph.edge_index(), x=graph.x + shift, y=graph.y)


def said(capsys):
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("setting", "code"), [("dim=4", 0), ("encoder=foo", 2)])
def test_somebodys_files_are_never_touched(folder, setting, code):
    (folder / "run.partial/photos").mkdir(parents=True)
    (folder / "run.partial/photos/1.jpg").write_text("mine")
    (folder / "run.partial/notes.txt").write_text("mine too")
    for option in ([], ["--overwrite"], ["--resume"]):
        command = ["train", "mine.npz", *QUICK, "--set", setting, "--out", "run", *option]
        assert run(command) == code
    assert (folder / "run").exists() == (code == 0)
    left = sorted(path.name for path in (folder / "run.partial").iterdir())
    assert left == ["notes.txt", "photos"]
    assert (folder / "run.partial/photos/1.jpg").read_text() == "mine"


def test_a_run_has_a_name(folder, capsys):
    assert run(["train", "mine.npz", *QUICK, "--out", "."]) == 2
    assert said(capsys) == "graphcl: .: a run is a new folder; give it a name"


def test_weights_that_do_not_fit_are_refused(folder, capsys, monkeypatch):
    monkeypatch.setattr("graphcl.training.modes.available_memory_bytes", lambda _: 10**9)
    assert run(["train", "mine.npz", "--set", "dim=65536", "--out", "run"]) == 2
    assert said(capsys).endswith("the encoder's weights alone do not fit; set a smaller dim")


def test_another_graph_of_the_same_name_is_noticed(folder, graph, capsys):
    train = ["train", "mine.npz", *QUICK, "--out", "run"]
    assert run(train) == 0
    assert run([*train, "--resume"]) == 0
    assert "run: already complete" in capsys.readouterr().err
    write(graph, shift=1.0)
    assert run([*train, "--resume"]) == 2
    assert "already holds a run" in said(capsys)
    assert run(["embed", "run", "--out", "z.npy"]) == 2
    assert said(capsys) == "graphcl: run: was trained on another graph than mine.npz is now"
    assert run(["embed", "run", "mine.npz", "--out", "z.npy"]) == 0  # by name: any graph
    (folder / "mine.npz").unlink()
    assert run(["evaluate", "run"]) == 2
    assert said(capsys).endswith("(the graph that run was trained on)")


def test_a_damaged_result_is_no_finished_run(folder, capsys):
    train = ["train", "mine.npz", *QUICK, "--out", "run"]
    assert run(train) == 0
    (folder / "run/result.json").write_text(json.dumps({}))
    assert run([*train, "--resume"]) == 2
    assert "run/result.json: damaged" in said(capsys)


def test_a_name_that_is_not_utf8_is_refused_at_once(folder, capsys):
    name = os.fsdecode(b"\xffmine.npz")
    (folder / "mine.npz").rename(folder / name)
    assert run(["train", name, *QUICK]) == 2
    assert said(capsys).endswith("a name that is not UTF-8; rename it")


def test_sigterm_ends_any_command_with_130_and_a_word(folder):
    options = ["--method", "dgi", "--set", "epochs=10000000", "--set", "patience=10000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "graphcl", "train", "mine.npz", *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    for line in process.stderr:
        if "DGI" in line:
            break
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.rstrip().endswith("graphcl: interrupted")
    assert list(folder.iterdir()) == [folder / "mine.npz"]


def test_output_that_cannot_be_encoded_does_not_end_a_command(folder):
    assert run(["train", "mine.npz", *QUICK, "--out", "run", "--quiet"]) == 0
    done = subprocess.run(
        [sys.executable, "-m", "graphcl", "evaluate", "run", "--runs", "2"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy:" in done.stdout


def test_half_a_split_gives_no_score_and_a_report_draws_none(folder, graph, capsys):
    train = np.arange(graph.num_nodes) < 20
    np.savez("half.npz", edge_index=graph.edge_index(), x=graph.x, y=graph.y, train_mask=train)
    assert run(["train", "half.npz", *QUICK, "--out", "run"]) == 0
    assert "no probe: probe: train nodes are given, validation and test" in capsys.readouterr().out
    kept = np.load("run/nodes.npz")["split"]
    assert np.array_equal(kept == 1, train)
    assert set(kept) == {0, 1}
