"""Commands where locks, limits, forks, mapped patches and folders' handles of Unix are absent."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graphcl
from tests import elsewhere

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """What the commands left, how each ended, and what was said."""
    folder = tmp_path_factory.mktemp("elsewhere")
    names = [f"f{number}" for number in range(1433)]
    (folder / "nodes.csv").write_text(f"id,{','.join(names)}\nnew{',0' * 1433}\n")
    known = "".join(f"{number},{'ab'[number % 2]}\n" for number in range(40))
    (folder / "labels.csv").write_text(f"id,label\n{known}")
    (folder / "edges.csv").write_text("source,target\nnew,1\nnew,2\n0,5\n")
    streams = {"PYTHONIOENCODING": "cp1252:backslashreplace", "PYTHONUTF8": "0", "LC_ALL": "C"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    done = subprocess.run(
        [sys.executable, "-m", "tests.elsewhere", str(folder), port],
        cwd=ROOT,
        env=os.environ | streams,
        capture_output=True,
        encoding="cp1252",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads((folder / "codes.json").read_text()), done.stderr


def test_every_command_does_its_work(left):
    folder, codes, said = left
    expected = dict.fromkeys((*elsewhere.COMMANDS, elsewhere.SERVE), 0)
    assert codes == expected | dict.fromkeys(elsewhere.REFUSED, 2), said[-3000:]
    assert np.load(folder / "z.npy").shape == (2709, 8)
    assert len((folder / "answers.csv").read_text().splitlines()) == 2710 - 40
    assert np.array_equal(graphcl.Run(folder / "run").embeddings, np.load(folder / "z.npy"))
    assert not list(folder.rglob(".*"))


def test_several_processes_are_refused(left):
    _, _, said = left
    for name in ("--processes 2", "--workers 2"):
        assert f"graphcl: {name}: this system ({sys.platform}) cannot fork a process" in said
    assert "Traceback" not in said


def test_one_worker_counts_and_writes_its_log(left):
    folder, _, said = left
    figures = dict(
        line.rsplit(" ", 1) for line in (folder / "figures.txt").read_text().splitlines()
    )
    assert float(figures["graphcl_memory_bytes"]) > 2**20
    assert any("GET /metrics 200" in line for line in said.splitlines())
