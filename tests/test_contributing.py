"""CONTRIBUTING.md, executed: the "Add a …" sections as written, in one copy of the repository.

What is to be changed is changed first; then one process runs the tests and all commands.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
STEP = re.compile(
    r"(?:(Create|Append to|Change|change) `([^`]+)`|Run):\n\n```(\w+)\n(.*?)```", flags=re.DOTALL
)
SECTIONS = dict(re.findall(r"^## (Add an? \w+)\n(.*?)(?=^## )", PAGE, flags=re.DOTALL | re.M))


def skipped(folder, names):
    """What is not copied. What was compiled is: it is valid for files of the same time."""
    if Path(folder).name == "__pycache__":
        return [name for name in names if not name.endswith((".pyc", ".nbi", ".nbc"))]
    return [name for name in names if name == "results" or name.endswith(".egg-info")]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A copy of what a contributor changes, and of what the tests read."""
    folder = tmp_path_factory.mktemp("scratch")
    for name in ("src", "tests", "benchmarks", "scripts", "examples", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=skipped)
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def changed(text, diff):
    """The text after a diff that has no line numbers: its old lines stand there exactly once."""
    lines = diff.splitlines()
    assert all(line[:1] in (" ", "+", "-") for line in lines), diff
    old = "".join(f"{line[1:]}\n" for line in lines if line[0] != "+")
    new = "".join(f"{line[1:]}\n" for line in lines if line[0] != "-")
    assert text.count(old) == 1, old
    return text.replace(old, new)


def carry_out(scratch, verb, name, language, body):
    """Does one step; returns the commands that it says to run."""
    path = scratch / (name or "")
    if verb == "Create":
        assert not path.exists()
        path.write_text(body)
    elif verb == "Append to":
        path.write_text(f"{path.read_text()}\n\n{body.strip()}\n")
    elif verb:
        assert language == "diff"
        path.write_text(changed(path.read_text(), body))
    return [] if verb else [shlex.split(line) for line in body.splitlines()]


COMMANDS = """
import sys, json
import pytest
tests, commands = json.loads(sys.argv[1])
assert pytest.main(["-q", *tests]) == 0
from graphcl.cli.main import run
for words in commands:
    assert run(words) == 0, words
"""


def test_the_sections_work_as_written(scratch):
    assert list(SECTIONS) == ["Add an encoder", "Add a perturbation", "Add a baseline"]
    given = []
    for text in SECTIONS.values():
        steps = STEP.findall(text)
        assert len(steps) == text.count("```") // 2, "a block that is not a step"
        assert steps[-1][2] == "bash"
        given += [words for step in steps for words in carry_out(scratch, *step)]
    tests, ours = [], []
    for program, *words in given:
        assert program == "graphcl" or [program, *words[:3]] == ["python", "-m", "pytest", "-q"]
        (ours.append(words) if program == "graphcl" else tests.extend(words[3:]))
    for command in (
        ["-m", "ruff", "check", "src", "tests"],
        ["-m", "ruff", "format", "--check", "src", "tests"],
        ["-c", COMMANDS, json.dumps([list(dict.fromkeys(tests)), ours])],
    ):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=scratch,
            env=os.environ | {"PYTHONPATH": str(scratch / "src")},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
