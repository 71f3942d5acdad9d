import json
import os
import signal
import subprocess
import sys
import time

import pytest

from graphcl.cli.main import run
from graphcl.cli.reproduce import STUDY_NAMES
from graphcl.research import rows
from graphcl.research.studies import STUDIES

QUICK = ["--set", "epochs=1", "--set", "dim=4", "--methods", "graphcl"]


def test_table_1(here, capsys):
    assert run(["reproduce", "table1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["table1"]
    assert [row["dataset"] for row in found["datasets"]] == [
        "cora",
        "citeseer",
        "pubmed",
        "reddit",
        "ppi",
    ]
    text = (here / "reproduction/table1.md").read_text()
    assert "| Cora | transductive | ours (paper's) | 2,708 | 5,278 (5,429) |" in text
    assert "| Reddit | inductive | paper's; ours absent |" in text


def test_table_2_in_all_its_forms(here, capsys):
    command = ["reproduce", "table2", "--datasets", "cora,reddit", "--runs", "2", *QUICK]
    assert run(command) == 0
    captured = capsys.readouterr()
    assert "run 2/2" in captured.err
    assert "ETA" in captured.err
    assert "83.6 ± 0.5" in captured.out
    assert "Absent: Reddit" in captured.out
    folder = here / "reproduction"
    assert {path.name for path in folder.iterdir()} == {
        f"table2.{ending}" for ending in ("jsonl", "md", "csv", "tex", "png")
    }
    assert run([*command, "--json"]) == 0  # nothing to run: the rows are there
    captured = capsys.readouterr()
    assert "run " not in captured.err
    report = json.loads(captured.out)["table2"]
    assert report["absent"] == ["reddit"]
    (cell,) = (cell for cell in report["cells"] if cell["dataset"] == "cora")
    assert cell["runs"] == 2
    assert len(rows.read(folder / "table2.jsonl")) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table3"], "unknown target 'table3'"),
        (["table2", "--datasets", "corra"], "unknown dataset 'corra'"),
        (["table2", "--methods", "dgy"], "unknown method 'dgy'"),
        (["table2", "--datasets", "cora", "--set", "epoch=1"], "none of the systems"),
        (["table2", "--runs", "0"], "Invalid value for '--runs'"),
        (["temperature", "--set", "hidden=1"], "none of the systems"),
    ],
)
def test_bad_input_is_one_line(here, capsys, arguments, message):
    assert run(["reproduce", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err.splitlines()[-1]
    assert not (here / "reproduction").exists()


@pytest.mark.usefixtures("forked")
def test_ctrl_c_keeps_rows_and_the_same_command_goes_on(here):
    command = [sys.executable, "-m", "graphcl", "reproduce", "table2", "--datasets", "cora"]
    command += ["--methods", "random-encoder", "--set", "dim=4", "--runs"]
    process = subprocess.Popen([*command, "400"], stderr=subprocess.PIPE, text=True)
    path = here / "reproduction/table2.jsonl"
    deadline = time.monotonic() + 120
    # The file appears a moment before its first row is in it.
    while not (path.exists() and b"\n" in path.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "finished rows are in reproduction/table2.jsonl" in err.splitlines()[-1]
    assert "Traceback" not in err
    kept = len(rows.read(path))
    assert kept >= 1
    assert run([*command[3:], f"{kept + 1}"]) == 0
    assert [row["seed"] for row in rows.read(path)] == list(range(kept + 1))


def test_the_command_names_every_study():
    assert list(STUDIES) == list(STUDY_NAMES)
