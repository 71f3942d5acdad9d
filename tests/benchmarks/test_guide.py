"""benchmarks/README.md is complete and true: scripts, files of rows, commands, links."""

import argparse
import importlib
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from graphcl.cli.main import load_command
from tests.test_docs import anchors

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
RESULTS = FOLDER / "results"
GUIDE = (FOLDER / "README.md").read_text()
CURRENT, EARLIER = GUIDE.split("\n## results/earlier\n")
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if "__main__" in path.read_text())
_FENCED = "\n".join(re.findall(r"^```bash\n(.*?)^```$", GUIDE, flags=re.DOTALL | re.MULTILINE))
_INLINE = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", GUIDE, flags=re.S | re.M))
COMMANDS = [
    line
    for line in [*_FENCED.splitlines(), *_INLINE]
    if re.match(r"(python -m|graphcl|make) ", line) and "NAME" not in line
]


class _BuiltError(Exception):
    """Carries a parser out of a script that asks it to parse."""


@cache
def parser_of(script):
    """Returns the parser of a script's command line; nothing after it runs."""

    def caught(parser, *_):
        raise _BuiltError(parser)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", caught)
        with pytest.raises(_BuiltError) as built:
            importlib.import_module(f"benchmarks.{script}").main()
    return built.value.args[0]


def script_of(command):
    found = re.match(r"python -m benchmarks\.(\w+)", command)
    return found and found[1]


def test_commands_are_found():
    assert len(COMMANDS) > 30
    assert _FENCED.strip().splitlines() == [line for line in COMMANDS if line in _FENCED]


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_is_in_the_guide(script):
    assert script in {script_of(command) for command in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_accepted(command):
    program, *arguments = shlex.split(command)
    if program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    elif program == "graphcl":
        known = {option for one in load_command(arguments[0]).params for option in one.opts}
        assert {word for word in arguments if word.startswith("--")} <= known
    else:
        module, *given = arguments[1:]
        parser = parser_of(module.removeprefix("benchmarks."))
        options = {option for action in parser._actions for option in action.option_strings}
        if "--out" in options and "--out" not in given:  # the guide leaves it out
            given += ["--out", "rows.jsonl"]
        parser.parse_args(given)  # exits where it does not understand


def test_every_file_of_rows_is_named_in_its_place():
    for text, folder in ((CURRENT, RESULTS), (EARLIER, RESULTS / "earlier")):
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("*.jsonl")}
        if folder == RESULTS:
            files = {name for name in files if not name.startswith("earlier/")}
        assert set(re.findall(r"`([\w/]+\.jsonl)`", text)) == files


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)\s]+)\)", GUIDE):
        file, _, anchor = target.partition("#")
        there = (FOLDER / file).resolve() if file else FOLDER / "README.md"
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_scripts_of_the_guide_exist():
    assert set(re.findall(r"`(\w+\.(?:py|toml))`", GUIDE)) <= {
        path.name for path in FOLDER.iterdir()
    }
