"""`graphcl train PARTS`: killed, stopped, silent, torn; and the run that it writes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from graphcl.cli._shared.train_parts import parse_bytes
from graphcl.cli.main import run
from graphcl.errors import ParameterError, RunError
from graphcl.partitioned.embeddings import open_shards, type_shards
from graphcl.tabular.build import build_store
from graphcl.training.checkpoints import Checkpoints
from graphcl.training.part_checkpoints import PartCheckpoints
from tests.cli._shared.test_launch import wait_for, weights
from tests.conftest import random_graph
from tests.store.test_partition import typed_graph

SETTINGS = {"epochs": 30, "dim": 32, "steps": 0, "batch_nodes": 32, "fan_out": 3}
CHANGES = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    random_graph(num_nodes=90).save(folder / "store")
    for parts in (1, 2):
        build_store(folder / "store", out=folder / f"p{parts}", parts=parts, order="as-is")
    (folder / "temporary").mkdir()
    return folder


def start(folder, *arguments, module=("graphcl",), command=("train", "p2")):
    quiet = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "TMPDIR": str(folder / "temporary")}
    changes = CHANGES if "train" in command else []
    return subprocess.Popen(
        [sys.executable, "-m", *module, *command, *arguments, *changes],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | quiet,
    )


@pytest.fixture(scope="module")
def whole(prepared):
    """An undisturbed training over two parts."""
    process = start(prepared, "--processes", "2", "--out", "whole", "--cache", "1MB", "--json")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "edges of other parts are mapped" in err
    assert "MB sent a step" in err
    return prepared, json.loads(out)


def test_the_run_is_an_ordinary_one(whole, tmp_path, monkeypatch, capsys):
    folder, said = whole
    assert said["graph"]["nodes"] == 90
    reason = "a graph in parts; edges of other parts are mapped"
    assert said["mode"] == {"name": "sampled", "reason": reason}
    assert 0 < said["traffic"]["cache_hits"] <= 1
    lines = [json.loads(one) for one in (folder / "whole/metrics.jsonl").read_text().splitlines()]
    assert all(line["sent_bytes"] >= 0 for line in lines)
    assert lines[0]["sent_bytes"] > 0
    monkeypatch.chdir(folder)
    options = ["--set", "mode=sampled", *CHANGES]
    assert run(["train", "store", "--out", str(tmp_path / "one"), *options]) == 0
    alone = [json.loads(one) for one in (tmp_path / "one/metrics.jsonl").read_text().splitlines()]
    losses = np.array([[one["loss"] for one in both] for both in (alone, lines)])
    np.testing.assert_allclose(losses[0, :9], losses[1, :9], rtol=0, atol=1e-5)
    np.testing.assert_allclose(losses[0], losses[1], rtol=0, atol=1e-3)  # rounding grows with steps
    assert run(["embed", "whole", "store", "--out", str(tmp_path / "a.npy")]) == 0
    capsys.readouterr()
    assert run(["embed", "whole", "--out", str(tmp_path / "shards")]) == 2  # the run's own parts
    assert "p2: has 2 parts" in capsys.readouterr().err
    (folder / "p2").rename(folder / "kept")
    build_store(folder / "store", out=folder / "p2", parts=2, order="hash")
    assert run(["embed", "whole", "--out", str(tmp_path / "shards")]) == 2
    assert "p2 is not the graph that the run was trained on" in capsys.readouterr().err
    shutil.rmtree(folder / "p2")
    (folder / "kept").rename(folder / "p2")
    z, expected = np.load(tmp_path / "a.npy"), np.load(tmp_path / "one/embeddings.npy")
    np.testing.assert_allclose(z, expected, atol=2e-3 * np.abs(expected).max())


def test_a_killed_process_changes_nothing(whole):
    """One worker is killed after a checkpoint, and once more while all of them start again."""
    folder, _ = whole
    command = ("--processes", "2", "--out", "run", "--checkpoint-every", "1epochs")
    process = start(folder, *command, "--topology", "asked")
    wait_for(lambda: len(list(folder.glob("run.partial/checkpoint-*/complete.json"))) == 2, process)
    (pid,) = (folder / "temporary").glob("graphcl-*/pid-1")
    first = pid.read_text()
    os.kill(int(first), signal.SIGKILL)
    wait_for(lambda: pid.exists() and pid.read_text() not in ("", first), process)
    os.kill(int(pid.read_text()), signal.SIGKILL)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, (out, err)
    assert weights(folder, "run") == weights(folder, "whole")
    assert not (folder / "run.partial").exists()


def test_a_typed_graph_in_parts_is_trained_killed_and_embedded(prepared, monkeypatch):
    """The losses are those of one process on the whole store, though a worker is killed."""
    folder = prepared
    graph = typed_graph(3, authors=40, papers=60, topics=4, edges=200)
    graph.save(folder / "typed")
    build_store(folder / "typed", out=folder / "t2", parts=2, order="as-is")
    options = ("--processes", "2", "--out", "typedrun", "--checkpoint-every", "1epochs")
    process = start(folder, *options, command=("train", "t2"))
    saved = folder / "typedrun.partial"
    wait_for(lambda: len(list(saved.glob("checkpoint-*/complete.json"))) == 2, process)
    (pid,) = (folder / "temporary").glob("graphcl-*/pid-1")
    os.kill(int(pid.read_text()), signal.SIGKILL)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "edges of other parts are asked for" in err
    monkeypatch.chdir(folder)
    assert run(["train", "typed", "--out", "typedone", "--set", "mode=sampled", *CHANGES]) == 0
    both = [
        Path(name, "metrics.jsonl").read_text().splitlines() for name in ("typedone", "typedrun")
    ]
    losses = np.array([[json.loads(line)["loss"] for line in lines] for lines in both])
    assert losses.shape[1] == SETTINGS["epochs"]
    np.testing.assert_allclose(losses[0, :9], losses[1, :9], rtol=0, atol=1e-5)
    np.testing.assert_allclose(losses[0], losses[1], rtol=0, atol=1e-3)  # rounding grows with steps
    process = start(
        folder, "--processes", "2", "--out", "tz.parquet", command=("embed", "typedrun")
    )
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    for name in graph.nodes:
        assert run(["embed", "typedrun", "typed", "--type", name, "--out", f"{name}.npy"]) == 0
        found = open_shards(type_shards(Path("tz.parquet"), name))
        np.testing.assert_allclose(found[:], np.load(f"{name}.npy"), rtol=1e-4, atol=1e-5)
    answer = ["predict", "typedrun", "--type", "paper", "--all", "--out", "p.csv"]
    assert run([*answer, "--embeddings", "tz.parquet", "--graph", "t2"]) == 0


def test_a_silent_process_ends_in_an_error_after_the_stated_time(whole):
    folder, _ = whole
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "graphcl")
    options = ("--out", "silent", "--timeout", "3", "--checkpoint-every", "1epochs")
    process = start(folder, *options, "--set", "epochs=1000000", module=torchrun)
    stopped = 0
    try:
        saved = folder / "silent.partial"
        wait_for(lambda: any(saved.glob("checkpoint-*/complete.json")), process)
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ranks = {child: Path(f"/proc/{child}/environ").read_bytes() for child in listed}
        (stopped,) = (int(child) for child, about in ranks.items() if b"\0RANK=1\0" in about)
        os.kill(stopped, signal.SIGSTOP)
        began = time.monotonic()
        for line in process.stderr:
            if "rank 0 stops" in line:
                break
        else:
            pytest.fail("it did not end")
        assert time.monotonic() - began < 20
        assert "another process was silent for 3 s (--timeout)" in line
    finally:
        if stopped:
            os.kill(stopped, signal.SIGKILL)
        process.terminate()
        process.communicate(timeout=120)


def test_what_is_wrong_is_said_in_one_line(prepared, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(prepared)
    refused = {
        ("p2",): "has 2 parts, one for each process; got 1 process: pass --processes 2",
        ("p2", "--device", "tpu"): "device must be auto, cpu, cuda or cuda:N; got 'tpu'",
        ("p2", "--recipe", "auto"): "--recipe must be left out for a store in parts",
        ("p2", "--cache", "lots"): "--cache must be like 256MB or 1GB; got 'lots'",
        ("p2", "--timeout", "0"): "--timeout must be above 0",
        ("p2", "--topology", "x"): "--topology must be one of auto, asked; got 'x'",
        ("p2", "--set", "mode=full"): "mode must be auto or sampled over parts; got 'full'",
        ("store", "--cache", "1GB"): "--cache must be left out unless GRAPH is in parts",
        ("p2", "--label", "y"): "GRAPH must be tables",
    }
    for arguments, expected in refused.items():
        assert run(["train", *arguments, "--out", str(tmp_path / "out")]) == 2, arguments
        (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
        assert expected in line
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_of_another_kind_of_training_are_not_called_damaged(tmp_path):
    parted, whole = tmp_path / "parted", tmp_path / "whole"
    (parted / "checkpoint-00000001-00000000/part-00000").mkdir(parents=True)
    with pytest.raises(RunError, match="holds checkpoints of a training over parts"):
        Checkpoints(parted).latest({})
    (whole / "checkpoint-00000001-00000000").mkdir(parents=True)
    (whole / "checkpoint-00000001-00000000/state.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match="holds checkpoints of a training on a whole graph"):
        PartCheckpoints(whole).latest({})


def test_a_store_in_one_part_is_a_store(prepared, monkeypatch, tmp_path):
    monkeypatch.chdir(prepared)
    for graph, out in (("p1", "a"), ("store", "b")):
        assert run(["train", graph, "--out", str(tmp_path / out), *CHANGES]) == 0
    assert weights(tmp_path, "a") == weights(tmp_path, "b")
    assert (tmp_path / "a/embeddings.npy").exists()


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1000", 1000), ("256MB", 256 * 10**6), ("1.5 GiB", 3 * 2**29), ("2gb", 2 * 10**9)],
)
def test_bytes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1XB", "MB", "1e3", "١MBB"])
def test_what_is_not_a_size(text):
    with pytest.raises(ParameterError, match="--cache must be like"):
        parse_bytes(text)
