"""Trainings that stop, from the command line: by a signal, by kill -9, by a full disk."""

import json
import os
import resource
import signal
import subprocess
import sys
from datetime import timedelta

import numpy as np
import pytest

from benchmarks.kill import killed_and_resumed
from graphcl.cli.main import run
from graphcl.runs import files as runs
from graphcl.training_run import unfinished_run, why_others
from tests.cli.conftest import said

LONG = ["--set", "epochs=1000000", "--set", "dim=8"]
QUICK = ["--set", "epochs=3", "--set", "dim=8"]
FILES = sorted(
    [runs.CONFIG, runs.MODEL, runs.SCALING, runs.METRICS, runs.EMBEDDINGS, runs.RESULT, "nodes.npz"]
)
pytestmark = pytest.mark.usefixtures("forked")


@pytest.fixture
def folder(tmp_path, monkeypatch, graph):
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", edge_index=graph.edge_index(), x=graph.x, y=graph.y)
    return tmp_path


def start(folder, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "graphcl", "train", "mine.npz", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        **options,
    )


def until(process, text):
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"{text!r} was never said")


def test_a_signal_saves_and_exits_130(folder, capsys):
    """SIGTERM here; the training that it leaves behind is resumed, and stopped by Ctrl-C."""
    process = start(folder, *LONG)
    until(process, "epoch 1/")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "saved in runs/mine.partial; go on with the same command and --resume" in err
    assert not (folder / "runs/mine").exists()
    reached = newest(folder)
    assert reached > (0, 0)
    process = start(folder, *LONG, "--resume")
    until(process, f"epoch {reached[0] + 1}/")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert newest(folder) > reached

    assert run(["train", "mine.npz", *LONG]) == 2
    assert "holds an unfinished training; go on with --resume" in capsys.readouterr().err
    assert run(["train", "mine.npz", "--resume", *QUICK]) == 2
    said = capsys.readouterr().err.splitlines()
    assert "is of another training (epochs 1000000, now 3)" in said[-1]
    assert run(["train", "mine.npz", "--overwrite", *QUICK]) == 0
    found = sorted(path.name for path in (folder / "runs").rglob("*") if path.is_file())
    assert found == FILES


def newest(folder):
    """Returns the position of the newest checkpoint."""
    path = max((folder / "runs/mine.partial").glob("checkpoint-*"))
    about = json.loads((path / "checkpoint.json").read_text())
    return about["epoch"], about["step"]


def test_resume_begins_goes_on_and_knows_when_it_is_done(folder, capsys):
    assert run(["train", "mine.npz", "--resume", *QUICK]) == 0
    first = (folder / "runs/mine/model.safetensors").read_bytes()
    capsys.readouterr()
    (folder / "runs/mine.partial").mkdir()  # as if killed between finishing and tidying up
    assert run(["train", "mine.npz", "--resume", "--json", *QUICK]) == 0
    captured = capsys.readouterr()
    assert "already complete" in captured.err
    assert json.loads(captured.out)["epochs"] == 3
    assert [path.name for path in (folder / "runs").iterdir()] == ["mine"]
    assert (folder / "runs/mine/model.safetensors").read_bytes() == first
    assert run(["train", "mine.npz", "--resume", "--seed", "1", *QUICK]) == 2
    assert "already holds a run; pass --overwrite" in capsys.readouterr().err


def test_one_process_at_a_time(folder, capsys):
    with unfinished_run(folder / "runs/mine"):
        assert run(["train", "mine.npz", "--resume", *QUICK]) == 2
    assert "another process is training this run" in capsys.readouterr().err
    assert not (folder / "runs/mine.partial").exists()


def test_a_full_disk_is_one_line_and_the_last_checkpoint_stays(folder, graph):
    """A limit on file sizes stands for the disk: checkpoints fit, embeddings.npy does not."""
    np.savez("mine.npz", edge_index=np.zeros((2, 0), int), x=np.eye(3, 12)[np.arange(3000) % 3])
    quick = ["--set", "epochs=1", "--set", "dim=64", "--set", "layers=1", "--set", "batch_nodes=64"]

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    process = start(folder, *quick, preexec_fn=limit)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2, err
    assert "Traceback" not in err
    assert "could not be written" in err
    assert "make room, then go on with --resume" in err.splitlines()[-1]
    assert [path.name for path in (folder / "runs").iterdir()] == ["mine.partial"]
    assert run(["train", "mine.npz", "--resume", *quick]) == 0
    assert [path.name for path in (folder / "runs").iterdir()] == ["mine"]


@pytest.mark.parametrize("text", ["soon", "0s", "1.5epochs", "-1s"])
def test_checkpoint_every_is_checked(folder, capsys, text):
    assert run(["train", "mine.npz", f"--checkpoint-every={text}"]) == 2
    assert "must be like 60s, 5min, 10epochs or never" in capsys.readouterr().err


def test_kill_9_at_random_moments(folder):
    """The small sister of `python -m benchmarks.kill`, which does it 50 times on Cora."""
    settings = {"epochs": 100, "dim": 16}
    row = killed_and_resumed("mine.npz", settings, kills=2, seed=0, folder=folder / "out")
    assert row["bitwise_equal"]
    assert row["stray"] == []
    assert row["kills"] == 2


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


def test_a_damaged_result_is_no_finished_run(folder, capsys):
    train = ["train", "mine.npz", *QUICK, "--out", "run"]
    assert run(train) == 0
    (folder / "run/result.json").write_text(json.dumps({}))
    assert run([*train, "--resume"]) == 2
    assert "run/result.json: damaged" in said(capsys)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            "[/a/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.77.0.3]:23230. This "
            "is typically caused by a remote worker crashing.",
            "another process, [10.77.0.3]:23230, has ended",
        ),
        ("Read error [fe80::1]:7: Connection reset by peer", "another process has ended"),
        ("[/a/unbound_buffer.cc:81] Timed out waiting 5000ms for recv", "was silent for 5 s"),
        ("Application timeout caused pair closure", "was silent for 5 s"),
        ("mat1 and mat2 shapes cannot be multiplied", "mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_what_happened_to_another_process_is_said_in_plain_words(said, why):
    found = why_others(said, timedelta(seconds=5))
    assert why in found
    assert ("--resume" in found) == ("mat1" not in said)
