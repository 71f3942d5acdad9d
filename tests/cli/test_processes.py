"""torchrun and --processes: a worker dies, and the training ends as if it had not."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from graphcl.cli import processes
from tests.conftest import random_graph

SETTINGS = {"epochs": 30, "dim": 8, "mode": "sampled", "batch_nodes": 8, "fan_out": 3}


def prepared(folder):
    graph = random_graph()
    np.savez(folder / "mine.npz", edge_index=graph.edge_index(), x=graph.x, y=graph.y)
    (folder / "temporary").mkdir()
    return folder


@pytest.fixture
def folder(tmp_path):
    return prepared(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The weights of an undisturbed training under torchrun."""
    folder = prepared(tmp_path_factory.mktemp("undisturbed"))
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "graphcl")
    process = start(folder, torchrun, "--out", "whole", "--json")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert json.loads(out)["epochs"] == SETTINGS["epochs"]
    assert err.count("epoch 1/") == 1  # one process speaks
    return weights(folder, "whole")


def start(folder, module, *arguments, variables=None, **settings):
    settings = SETTINGS | settings
    changes = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    quiet = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "TMPDIR": str(folder / "temporary")}
    return subprocess.Popen(
        [sys.executable, "-m", *module, "train", "mine.npz", *arguments, *changes],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | quiet | (variables or {}),
    )


def children(pid):
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    commands = {int(child): Path(f"/proc/{child}/cmdline").read_text() for child in found}
    return [child for child, command in commands.items() if "graphcl" in command]


def weights(folder, name):
    return (folder / name / "model.safetensors").read_bytes()


def wait_for(what, *processes):
    end = time.monotonic() + 240
    while not what():
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_killed_worker_changes_nothing(folder, whole):
    """By --processes, one worker killed in an epoch's middle."""
    # --log is an option of ours, and torchrun has one that begins so.
    command = ("--processes", "2", "--out", "run", "--checkpoint-every", "1epochs", "--log", "csv")
    process = start(folder, ("graphcl",), *command)
    saved = folder / "run.partial"
    wait_for(lambda: len(list(saved.glob("checkpoint-*"))) == 2, process)
    (pid,) = (folder / "temporary").glob("graphcl-*/pid-1")
    os.kill(int(pid.read_text()), signal.SIGKILL)
    first = pid.read_text()
    wait_for(lambda: pid.exists() and pid.read_text() not in ("", first), process)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert weights(folder, "run") == whole
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["mine.npz", "run", "temporary"]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds workers in /proc")
def test_two_hosts_meet_and_survive_a_killed_worker(folder, whole):
    """Two agents, as on two hosts with one disk; a worker of one dies, and both start again."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    meet = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "test")
    host = ("--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3", *meet)
    module = ("torch.distributed.run", *host, "-m", "graphcl")
    options = ("--out", "run", "--checkpoint-every", "1epochs", "--resume")
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    agents = [start(folder, module, *options, variables=own_store) for _ in range(2)]
    try:
        saved = folder / "run.partial"
        wait_for(lambda: len(list(saved.glob("checkpoint-*"))) == 2, *agents)
        (worker,) = children(agents[1].pid)
        os.kill(worker, signal.SIGKILL)
        with ThreadPoolExecutor(2) as pool:
            said = list(pool.map(lambda agent: agent.communicate(timeout=240)[1], agents))
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert "exitcode: -9" in said[1]
    assert weights(folder, "run") == whole


def test_ctrl_c_under_a_launcher_saves_and_exits_130(folder):
    process = start(folder, ("graphcl",), "--processes", "2", "--out", "run", epochs=10**6)
    for line in process.stderr:
        if "epoch 1/" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert err.count("saved in run.partial; go on with the same command and --resume") == 1
    assert len(list((folder / "run.partial").glob("checkpoint-*"))) == 1
    assert list((folder / "temporary").glob("graphcl-*")) == []


def test_a_worker_that_ends_on_purpose_is_not_restarted(tmp_path, monkeypatch):
    assert processes.leave(2) == 2  # alone, a code is a code
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert processes.leave(2) == 2  # under a bare torchrun, too
    monkeypatch.setenv("GRAPHCL_LAUNCH", str(tmp_path))
    assert processes.announce()
    assert (tmp_path / "pid-1").read_text() == str(os.getpid())
    assert processes.leave(1) == 1  # a bug, or a lost peer: torchrun may try again
    assert processes.announce()
    assert processes.leave(130) == 1  # torchrun stopped it, because another worker has died
    assert processes.announce()
    (tmp_path / "asked").touch()  # now somebody has asked the launcher to stop
    assert processes.leave(130) == 0
    assert not processes.announce()  # what torchrun starts after that has nothing to do
    assert (tmp_path / "code").read_text() == "130"
    (tmp_path / "code").unlink()
    assert not processes.announce()  # started again between the question and a worker's answer
    assert (tmp_path / "code").read_text() == "130"


def test_sigterm_ends_any_command_with_130_and_a_word(folder):
    options = ["--method", "dgi", "--set", "epochs=10000000", "--set", "patience=10000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "graphcl", "train", "mine.npz", *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=folder,
    )
    for line in process.stderr:
        if "DGI" in line:
            break
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.rstrip().endswith("graphcl: interrupted")
    assert {one.name for one in folder.iterdir()} == {"mine.npz", "temporary"}
