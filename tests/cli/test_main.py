"""The entry point: exit codes, errors in one line, help, completion, colours and speed."""

import json
import os
import pty
import re
import subprocess
import sys
import time
from importlib import import_module

import numpy as np
import pytest
import typer

from graphcl.cli.main import COMMANDS, GROUPS, load_command, run
from graphcl.datasets import CATALOGUE
from tests.cli.conftest import QUICK, call, fails
from tests.interpreter import warm


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
        (["links", "absent", "--k", "3"], "No such option: --k; did you mean -k?"),
        (["neighbors", "absent", "--k=3"], "No such option: --k; did you mean -k?"),
        (["train", "mine.npz", "--set", "learning_rate=1e30"], "the loss became nan"),
        (["train"], "Missing argument"),
        (["frobnicate"], "No such command"),
        (["embed", "absent", "--out", "z.npy"], "absent: no such run"),
        (["embed", "absent", "--out", "z.txt"], "must end in .npy, .parquet or .csv"),
        (["embed", "absent", "--out", "nowhere/z.npy"], "does not exist"),
        (["embed", "absent"], "--out"),
        (["evaluate", "absent"], "absent: no such run"),
        (["evaluate", "absent", "--runs", "0"], "Invalid value for '--runs'"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(folder, capsys, arguments, message):
    (folder / "notes.doc").touch()
    before = sorted(path.name for path in folder.iterdir())
    assert message in fails(capsys, *arguments)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_bug_is_one_line_and_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr("graphcl.cli.datasets._row", lambda card: 1 / 0)
    assert run(["datasets"]) == 1
    assert "bug: ZeroDivisionError" in capsys.readouterr().err


def test_too_little_memory_is_no_bug(monkeypatch, capsys):
    monkeypatch.setattr("graphcl.cli.datasets._row", lambda card: np.zeros(1 << 50))
    assert "out of memory: Unable to allocate" in fails(capsys, "datasets")


def start(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "graphcl", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_a_reader_that_closes_the_pipe_is_not_an_error(folder):
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


@pytest.mark.parametrize("command", COMMANDS)
def test_each_group_of_options_fits_on_a_screen(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    for asked in ("--help", "--help-tables"):
        code = run([command, asked])
        shown = capsys.readouterr().out.splitlines()
        if asked == "--help":
            assert code == 0
        starts = [place for place, line in enumerate(shown) if line.startswith("╭")]
        ends = [place for place, line in enumerate(shown) if line.startswith("╰")]
        assert asked == "--help-tables" or starts
        for start, end in zip(starts, ends, strict=True):
            assert end - start < 24, shown[start]


def test_a_command_starts_quickly(folder):
    start(folder, "--version").communicate(timeout=60)
    began = time.perf_counter()
    start(folder, "--version").communicate(timeout=60)
    assert time.perf_counter() - began < 10


def test_output_that_cannot_be_encoded_does_not_end_a_command(folder):
    assert run(["train", "mine.npz", *QUICK, "--out", "run", "--quiet"]) == 0
    done = subprocess.run(
        [warm(), "-m", "graphcl", "evaluate", "run", "--runs", "2"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("accuracy ")


def test_tab_completes_commands_and_options():
    asked = {"_GRAPHCL_COMPLETE": "complete_bash", "COMP_WORDS": "graphcl ne", "COMP_CWORD": "1"}
    assert call("-m", "graphcl", **asked).stdout.split() == ["neighbors"]
    asked |= {"COMP_WORDS": "graphcl datasets --j", "COMP_CWORD": "2"}
    assert "--json" in call("-m", "graphcl", **asked).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_installs(shell, tmp_path):
    home = {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / ".config"),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    done = call("-m", "graphcl", "--install-completion", shell, **home)
    assert done.returncode == 0, done.stderr
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert any("graphcl" in text for text in written)


def on_a_terminal(*arguments, **changes):
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "graphcl", *arguments],
        stdout=theirs,
        stderr=theirs,
        env=environment | {"TERM": "xterm-256color"} | changes,
    )
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 4096):
            written += chunk
    except OSError:  # the terminal has closed
        pass
    process.wait(timeout=60)
    os.close(ours)
    return written.decode()


def test_no_color_is_heeded():
    colour = re.compile(r"\x1b\[(\d+;)*3[1-7]m")
    coloured, plain = on_a_terminal("--help"), on_a_terminal("--help", NO_COLOR="1")
    assert colour.search(coloured)
    assert not colour.search(plain)
    assert "Usage" in plain


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "coar", "--json"],
        ["evaluate", "absent", "--json"],
        ["train", "mine.npz", "--json", "--bogus"],
        ["neighbors", "absent", "1", "--json"],
    ],
)
def test_with_json_an_error_is_json_too(folder, capsys, arguments):
    assert run(arguments) == 2
    captured = capsys.readouterr()
    told = json.loads(captured.out)["error"]
    assert told["exit_code"] == 2
    assert told["message"] == captured.err.splitlines()[-1]


LIGHT = """
import resource, sys
from graphcl.cli.main import run
code = run(sys.argv[1:])
assert not {"torch", "sklearn", "numba"} & set(sys.modules)
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_summary_examples_and_common_options(name, capsys):
    command = load_command(name)
    assert command.help.strip().splitlines()[0] == COMMANDS[name]
    assert run([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Examples:" in text
    assert f"graphcl {name}" in text
    for option in ("--json", "--quiet", "--verbose"):
        assert option in text


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_in_brackets_is_shown(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    alone = typer.Typer()
    alone.command()(getattr(import_module(f"graphcl.cli.{name}"), name))
    plain = typer.main.get_command(alone)
    texts = [plain.help, *(getattr(one, "help", None) or "" for one in plain.params)]
    shown = ""
    for option in ("--help", "--help-tables"):
        if option == "--help" or any(option in one.opts for one in load_command(name).params):
            assert run([name, option]) == 0
            shown += re.sub(r"[\s│]+", "", capsys.readouterr().out)
    for text in texts:
        for words in re.findall(r"\[[^\]]*\]", text):
            assert re.sub(r"\s+", "", words) in shown
    assert (name != "export") or "x[nodes,features]" in shown


@pytest.mark.parametrize(
    ("arguments", "seconds", "code"),
    [
        (["--version"], 0.5, 0),
        (["--help"], 0.3, 0),
        (["datasets"], 1.5, 0),
        (["check", "missing.csv"], 1.5, 2),
        (["check", "coar"], 1.5, 2),
        (["train", "coar"], 1.5, 2),
        (["train", "cora", "--recipe", "coar"], 1.5, 2),
        (["train", "cora", "--set", "epoch=3"], 1.5, 2),
        (["tune", "coar"], 1.5, 2),
        (["check", "edges.csv", "--nodes", "nodes.csv"], 2, 0),
    ],
)
def test_light_commands_import_nothing_heavy(arguments, seconds, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GRAPHCL_DATA", raising=False)  # a gallery takes as long as it is large
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n2,3\n3,1\n")
    (tmp_path / "nodes.csv").write_text("id,age\n1,20\n2,30\n3,25\n")
    done = call("-c", LIGHT, *arguments)
    assert done.returncode == code, done.stderr
    assert bool(done.stdout) == (code == 0)
    # CPU seconds, doubled: on a busy machine two threads of one core slow each other down.
    assert float(done.stderr.splitlines()[-1]) < 2 * seconds


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_what_its_examples_use(name):
    command = load_command(name)
    shown = {
        word for one in command.params if not getattr(one, "hidden", False) for word in one.opts
    }
    lines = [line.strip() for line in command.help.splitlines()]
    examples = [line for line in lines if line.startswith(f"graphcl {name} ")]
    used = {word for line in examples for word in re.findall(r"(?<=\s)--[a-z-]+", line)}
    assert examples
    assert used <= shown


def test_options_of_tables_are_one_group_and_have_a_page_of_their_own(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("train", "predict", "embed", "build"):
        assert run([name, "--help"]) == 0
        first = capsys.readouterr().out
        assert first.count("─ Tables") == 1
        assert "--id-column" in first
        assert "--decimal" not in first
        assert run([name, "--help-tables"]) == 0
        second = capsys.readouterr().out
        assert "--id-column" in second
        assert "--decimal" in second
        assert "--device" not in second


def test_help_lists_commands_in_groups(capsys):
    assert run(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    groups = [line[:-1] for line in lines if line.endswith(":") and line[0] != " "]
    assert groups == ["Options", *GROUPS]
    named = [line.split()[0] for line in lines if re.match(r"  [a-z]", line)]
    assert named == list(COMMANDS)
    assert lines.index("Train:") < lines.index("Use:")


def test_help_and_typos_import_nothing_heavy():
    program = """
import contextlib, io, sys
from graphcl.cli.main import COMMANDS, run
for name in COMMANDS:
    for word, code in (("--help", 0), ("--hlep", 2)):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert run([name, word]) == code
    heavy = {"torch", "sklearn", "numba", "pandas", "scipy"} & set(sys.modules)
    assert not heavy, (name, heavy)
"""
    done = call("-c", program)
    assert done.returncode == 0, done.stderr
