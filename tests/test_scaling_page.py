"""The commands of docs/scaling.md for many machines, run on one: two processes in place of many.

They are taken from the page as they are. Numbers of machines and processes, addresses and paths are
changed; Slurm is two stand-ins that know one host.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from graphcl.cli import main
from graphcl.estimator import GraphCL
from graphcl.partitioned.embeddings import open_shards
from graphcl.tabular.build import build_store
from tests.cli.conftest import arrays_of
from tests.conftest import random_graph
from tests.test_docs import blocks

PAGE = Path(__file__).parents[1] / "docs/scaling.md"
QUICK = "--set epochs=1 --set dim=8"
SLURM = {"SLURM_NNODES": "1", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-4]"}
STAND_INS = {
    "scontrol": '[ "$*" = "show hostnames node[1-4]" ] && echo localhost',
    "srun": 'exec "$@"',
    "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
    "graphcl": f'exec {sys.executable} -m graphcl "$@"',
}


def shown():
    """The commands of the page: the blocks that it does not run, and those in YAML."""
    found = [one.text for one in blocks(PAGE) if one.language == "bash" and one.kind == "not run"]
    for one in blocks(PAGE):
        if one.language == "yaml":
            (listed,) = re.findall(r"command: \[(.*?)\]", one.text, re.DOTALL)
            found.append(" ".join(word.strip() for word in listed.split(",")))
    return found


def on_one_machine(text):
    """Returns a script for one machine, and leaves nothing that names many."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    changes = {
        r"--nnodes[ =]4": "--nnodes 1",
        r"--nproc-per-node[ =]\d": "--nproc-per-node 2",
        r"--processes \d": "--processes 2",
        r"--runs 8": "--runs 2",
        r"first-host:29500|graphcl-0\.graphcl:29500": f"localhost:{port}",
        r"\$first:29500": f"$first:{port}",
        r"/(?:shared|data)/": "",
        r"(graphcl (?:train|evaluate) [^\n]+)": rf"\1 {QUICK}",
    }
    text = text.replace("\\\n", " ")
    for pattern, instead in changes.items():
        text = re.sub(pattern, instead, text)
    return f"set -e\n{text}\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A graph, a run, and the graph in two parts."""
    folder = tmp_path_factory.mktemp("made")
    graph = random_graph()
    np.savez(folder / "mine.npz", **arrays_of(graph))
    graph.save(folder / "store")
    build_store(folder / "store", out=folder / "parts", parts=2, order="neighbours")
    GraphCL("default", epochs=1, dim=8, device="cpu").fit(graph).save(folder / "runs/cora")
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name, line in STAND_INS.items():
        (bin_folder / name).write_text(f"#!/bin/bash\n{line}\n")
        (bin_folder / name).chmod(0o755)
    return folder


def command(text):
    """The words of a command, without what launches it and what it is asked to save."""
    return re.sub(r"^.*-m graphcl", "graphcl", on_one_machine(text), flags=re.DOTALL).split()


def test_all_are_found_and_what_torchrun_starts_is_what_slurm_starts():
    texts = shown()
    assert len(texts) == 10
    assert sum("embed" in text and "parts" in text for text in texts) == 5
    by_slurm = [text for text in texts if "srun" in text]
    for slurm, torchrun in zip(by_slurm, (texts[1], texts[6]), strict=True):
        assert command(torchrun) == command(slurm)


# Those of `torchrun` alone are run by Slurm's stand-in, and `embed --processes` after a training.
RUN = (2, 3, 4, 7, 8, 9)


def test_it_runs_in_one_process(made, tmp_path, monkeypatch):
    """Those for one machine; `tests/cli/test_processes.py` has several processes."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(made / "mine.npz", tmp_path)
    for line in re.sub(r"processes 2", "processes 1", on_one_machine(shown()[0])).splitlines():
        if line.startswith("graphcl"):
            assert main.run(line.split()[1:]) == 0
    assert (tmp_path / "mine.npy").exists()


@pytest.mark.parametrize("number", RUN)
def test_it_runs_with_two_processes(made, tmp_path, number):
    text = shown()[number]
    shutil.copytree(made, tmp_path / "here")
    here = tmp_path / "here"
    if "embed runs/mine parts" in text or "/data/parts" in text:
        (here / "runs/cora").rename(here / "runs/mine")
    path = f"{here / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", on_one_machine(text)],
        cwd=here,
        env=os.environ | SLURM | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    if "embed" in text and "parts" in text:
        assert open_shards(here / "shards.parquet").shape[0] == 60
    else:
        assert (here / "runs/mine/model.safetensors").exists()
