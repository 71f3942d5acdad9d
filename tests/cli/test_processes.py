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
from graphcl.cli.main import run
from tests.cli.conftest import PARTS_CHANGES, weights
from tests.conftest import random_graph
from tests.groups import command, start_members
from tests.interpreter import warm

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
    """The weights of a training in two processes that nobody disturbs."""
    folder = prepared(tmp_path_factory.mktemp("undisturbed"))
    changes = [f"--set={key}={value}" for key, value in SETTINGS.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        code, out, err = command("train", "mine.npz", "--out", "whole", "--json", *changes)
    assert code == 0, err
    assert json.loads(out)["epochs"] == SETTINGS["epochs"]
    assert err.count("epoch 1/") == 1  # one process speaks
    return weights(folder, "whole")


def start(folder, module, *arguments, python, variables=None):
    quiet = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "TMPDIR": str(folder / "temporary")}
    return subprocess.Popen(
        [python, "-m", *module, "train", *arguments],
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


def wait_for(what, *processes):
    end = time.monotonic() + 240
    while not what():
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def newest(folder):
    """The name of the last checkpoint that is whole."""
    return max(one.name for one in folder.glob("run.partial/checkpoint-*"))


def test_killed_twice_and_stopped_a_training_ends_as_if_nothing_had_happened(typed_parts):
    """By --processes: a worker is killed, once more as all start again, and then comes Ctrl-C."""
    folder, _ = typed_parts
    (folder / "temporary").mkdir()
    # --log is an option of ours, and torchrun has one that begins so.
    options = ("--out", "run", "--checkpoint-every", "1epochs", "--log", "csv", *PARTS_CHANGES)
    process = start(folder, ("graphcl",), "t2", "--processes", "2", *options, python=warm())
    wait_for(lambda: len(list(folder.glob("run.partial/checkpoint-*"))) == 2, process)
    (pid,) = (folder / "temporary").glob("graphcl-*/pid-1")
    for _ in range(2):
        killed, epoch = pid.read_text(), newest(folder)
        os.kill(int(killed), signal.SIGKILL)
        wait_for(
            lambda killed=killed: pid.exists() and pid.read_text() not in ("", killed), process
        )
    wait_for(lambda: newest(folder) > epoch, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert err.count("saved in run.partial; go on with the same command and --resume") == 1
    assert list((folder / "temporary").glob("graphcl-*")) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        code, _, err = command("train", "t2", "--resume", *options)
    assert code == 0, err
    assert weights(folder, "run") == weights(folder, "whole")
    assert not (folder / "run.partial").exists()


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
    # What torchrun calls; its own children are then found in /proc.
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHON_EXEC": warm()}
    changes = [f"--set={key}={value}" for key, value in SETTINGS.items()]
    command = ("mine.npz", *options, *changes)
    agents = [
        start(folder, module, *command, python=sys.executable, variables=variables)
        for _ in range(2)
    ]
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


def test_a_silent_process_ends_in_an_error_after_the_stated_time(typed_parts):
    folder, _ = typed_parts
    options = ("--out", "silent", "--timeout", "3", "--checkpoint-every", "1epochs")
    words = ("train", "t2", *options, *PARTS_CHANGES, "--set", "epochs=1000000")
    first, second = members = start_members(*words, folder=folder)
    try:
        saved = folder / "silent.partial"
        wait_for(lambda: any(saved.glob("checkpoint-*")))
        os.kill(second.pid, signal.SIGSTOP)
        began = time.monotonic()
        first.join(60)
        assert time.monotonic() - began < 20
        said = (folder / "said-0").read_text()
        assert "rank 0 stops" in said
        assert "another process was silent for 3 s (--timeout)" in said
    finally:
        for one in members:
            one.kill()


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
        [warm(), "-m", "graphcl", "train", "mine.npz", *options],
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


@pytest.mark.parametrize("missing", ["os.fork", "signal.SIGKILL"])
def test_several_processes_are_refused_where_they_cannot_be(missing, monkeypatch, capsys):
    monkeypatch.delattr(missing)
    processes.check_several("--processes", 1)
    assert run(["train", "cora", "--processes", "3"]) == 2
    said = f"graphcl: --processes 3: this system ({sys.platform}) cannot fork a process"
    assert capsys.readouterr().err.startswith(said)
