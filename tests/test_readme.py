"""The README's commands, tables and links."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks import readme
from graphcl.cli.main import run

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_readme_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("bash")
    commands = [shlex.split(line, comments=True) for line in block.splitlines() if line]
    assert [command[1] for command in commands] == [
        "train",
        "predict",
        "cluster",
        "links",
        "report",
    ]
    for program, *arguments in commands:
        assert program == "graphcl"
        if arguments[0] == "train":
            arguments += ["--set", "epochs=1", "--set", "dim=8"]  # later --set wins
        assert run(arguments) == 0, capsys.readouterr().err


def test_readme_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("python")
    quick = block.replace("epochs=20", "epochs=2, dim=16")
    assert quick != block
    exec(compile(quick, "README.md", "exec"), {})  # noqa: S102
    assert 0.3 < float(capsys.readouterr().out) < 1


def test_readme_names_the_two_commands_and_they_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in ("quickstart", "test"):
        assert f"make {target}" in README
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
    assert "make test" in (ROOT / ".ci/run").read_text()


def test_readme_tables_are_those_of_the_rows(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["readme", "--check"])
    with pytest.raises(SystemExit) as ended:
        readme.main()
    assert ended.value.code == 0


def test_readme_links_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
