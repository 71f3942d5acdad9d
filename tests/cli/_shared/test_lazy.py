"""Every command describes itself, and light commands import nothing heavy."""

import pytest

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


@pytest.mark.parametrize(
    ("arguments", "seconds"), [(["--version"], 0.5), (["--help"], 0.5), (["datasets"], 1.5)]
)
def test_light_commands_import_nothing_heavy(arguments, seconds):
    done = call("-c", LIGHT, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout
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
