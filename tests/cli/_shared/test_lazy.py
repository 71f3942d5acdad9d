"""Every command describes itself, and light commands import nothing heavy."""

import re
from importlib import import_module

import pytest
import typer

from graphcl.cli._shared.lazy import COMMANDS, load_command
from graphcl.cli.main import run
from tests.cli.conftest import call

LIGHT = """
import resource, sys
from graphcl.cli.main import run
code = run(sys.argv[1:])
assert "torch" not in sys.modules and "sklearn" not in sys.modules
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
        (["--help"], 0.5, 0),
        (["datasets"], 1.5, 0),
        (["check", "missing.csv"], 1.5, 2),
        (["check", "coar"], 1.5, 2),
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


def test_options_of_tables_have_a_page_of_their_own(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("train", "predict", "embed"):
        assert run([name, "--help"]) == 0
        first = capsys.readouterr().out
        assert "--id-column" not in first
        assert "--help-tables" in first
        assert run([name, "--help-tables"]) == 0
        second = capsys.readouterr().out
        assert "--id-column" in second
        assert "--device" not in second
    assert run(["build", "--help"]) == 0  # it is all about tables
    assert "--id-column" in capsys.readouterr().out
