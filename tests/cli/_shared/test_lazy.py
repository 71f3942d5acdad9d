"""Help, completion, colours, volume and speed: what a person expects of any command line."""

import os
import pty
import re
import subprocess
import sys

import pytest

from graphcl.cli._shared.lazy import COMMANDS, load_command
from graphcl.cli.main import run

LIGHT = """
import resource, sys
from graphcl.cli.main import run
code = run(sys.argv[1:])
assert "torch" not in sys.modules and "sklearn" not in sys.modules
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, file=sys.stderr)
sys.exit(code)
"""


def call(*arguments, **changes):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | changes,
        timeout=120,
    )


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


@pytest.mark.parametrize(
    ("arguments", "seconds"), [(["--version"], 0.5), (["--help"], 0.5), (["datasets"], 1.5)]
)
def test_light_commands_import_nothing_heavy(arguments, seconds):
    done = call("-c", LIGHT, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    # CPU seconds, doubled: on a busy machine two threads of one core slow each other down.
    assert float(done.stderr.splitlines()[-1]) < 2 * seconds


def test_the_library_imports_torch_when_it_is_used_and_not_before():
    code = (
        "import sys, graphcl; assert 'torch' not in sys.modules; graphcl.Graph, graphcl.GraphCL; "
        "assert 'torch' in sys.modules and graphcl.__version__; assert 'nt_xent' in dir(graphcl)"
    )
    done = call("-c", code)
    assert done.returncode == 0, done.stderr


def test_an_unknown_attribute_of_the_package():
    import graphcl

    with pytest.raises(AttributeError, match="no attribute 'Grahp'"):
        _ = graphcl.Grahp


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


def test_quiet_leaves_results_and_errors(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    quick = ["train", "cora", "--set", "epochs=1", "--set", "dim=8"]
    for arguments in (["--quiet", *quick], [*quick, "-q", "--overwrite"]):
        assert run(arguments) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        assert "probe: accuracy" in captured.out
    assert run([*quick, "--quiet"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "already holds a run" in captured.err
    assert run([*quick, "--overwrite"]) == 0  # quiet ends with its command
    assert "epoch 1/1" in capsys.readouterr().err
    assert run(["report", "runs/cora", "--map", "pca", "--verbose"]) == 0
    captured = capsys.readouterr()
    assert "nearest neighbours of 2708 nodes" in captured.err
    assert "ms" in captured.err


def test_verbose_shows_where_a_bug_is(monkeypatch, capsys):
    monkeypatch.setattr("graphcl.cli.datasets._row", lambda card: 1 / 0)
    assert run(["datasets"]) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert run(["-v", "datasets"]) == 1
    captured = capsys.readouterr()
    assert "Traceback" in captured.err
    assert captured.err.splitlines()[-1].startswith("graphcl: bug: ZeroDivisionError")
    assert run(["datasets"]) == 1
    assert "Traceback" not in capsys.readouterr().err
